"""The spectrum of h: closed forms, trace, the FFT on the circle, quadrature, and what lies outside the RKHS."""

import math

import pytest
import torch

from squareloss.ntk.kernels import NTK
from squareloss.ntk.spectrum import (
    Spectrum,
    angles,
    empirical_spectrum,
    multiplicity,
    ntk_spectrum,
    polynomials,
    smallest_eigenvalue,
    zonal_norm,
    zonal_spectrum,
)

H = NTK()


def sphere(n, d, seed=0):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)


def test_circle_has_the_closed_form():
    values = ntk_spectrum(2, 40).values
    k = torch.arange(0, 41, 2, dtype=torch.float64)
    torch.testing.assert_close(values[::2], (k**2 + 1) / (math.pi**2 * (k**2 - 1) ** 2), rtol=1e-12, atol=0)
    assert values[1].item() == pytest.approx(1 / 8, rel=1e-14)
    assert (values[3::2] == 0).all()


@pytest.mark.parametrize("d", [2, 3, 5, 10])
def test_closed_form_is_the_quadrature(d):
    exact, found = ntk_spectrum(d, 30), zonal_spectrum(H.of_cosine, d, 30)
    torch.testing.assert_close(found.values, exact.values, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [2, 3, 4])
def test_trace_tends_to_the_kernel_on_the_diagonal(d):
    """The rest after degree D falls as D^(-1): the eigenvalues decay as k^(-d), their number grows as k^(d-2)."""
    gaps = [0.5 - ntk_spectrum(d, degree).trace() for degree in (1000, 2000)]
    assert 0 < gaps[1] < gaps[0] < 2e-3
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.01)


def test_expansion_gives_the_kernel_back():
    spectrum, u = ntk_spectrum(5, 400), torch.linspace(-1, 1, 41, dtype=torch.float64)
    series = (spectrum.values * spectrum.counts) @ polynomials(5, 400, u)
    torch.testing.assert_close(series, H.of_cosine(u), rtol=0, atol=5e-3)
    torch.testing.assert_close(series[5:-5], H.of_cosine(u)[5:-5], rtol=0, atol=1e-5)


def test_equispaced_points_of_the_circle_agree_with_the_fft_and_with_aliased_eigenvalues():
    n = 64
    angle = torch.arange(n, dtype=torch.float64) * 2 * math.pi / n
    x = torch.stack([angle.cos(), angle.sin()], 1)
    fft = torch.fft.fft(H.of_cosine(angle.cos())).real / n
    found = empirical_spectrum(H.matrix(x))
    torch.testing.assert_close(found, fft.sort(descending=True).values, rtol=0, atol=1e-12)
    exact = ntk_spectrum(2, 200 * n).values
    tail = 2 / (math.pi**2 * n**2 * 190.5)  # of the aliases beyond, by an integral
    aliased = sum(exact[abs(10 + j * n)] for j in range(-190, 191)) + tail
    assert fft[10].item() == pytest.approx(aliased.item(), abs=1e-9)


@pytest.mark.parametrize("d", [2, 3, 5])
def test_decay_has_the_exponent_of_the_lemma(d):
    spectrum = ntk_spectrum(d, 400)
    j = spectrum.counts[spectrum.values > 0].cumsum(0)
    values = spectrum.values[spectrum.values > 0]
    slope = (values[-1] / values[-50]).log() / (j[-1] / j[-50]).log()
    assert slope.item() == pytest.approx(-d / (d - 1), abs=0.02)


def test_sequence_repeats_and_sorts():
    spectrum = Spectrum(3, torch.tensor([0.1, 0.2, 0.05, 0.0]), torch.tensor([1.0, 3.0, 5.0, 7.0]))
    assert spectrum.sequence(6).tolist() == pytest.approx([0.2] * 3 + [0.1] + [0.05] * 2)
    assert len(spectrum.sequence(100)) == 9
    ordered = ntk_spectrum(3, 60).sequence(500)
    assert len(ordered) == 500 and (ordered[1:] <= ordered[:-1]).all()


def test_harmonics_are_counted_and_polynomials_are_orthogonal():
    assert multiplicity(2, 4).tolist() == [1, 2, 2, 2, 2]
    assert multiplicity(3, 4).tolist() == [1, 3, 5, 7, 9]
    cosine, weight = angles(4, 60)
    rows = polynomials(4, 12, cosine)
    assert torch.equal(polynomials(4, 0, cosine), rows[:1])
    torch.testing.assert_close((rows * weight) @ rows.T, torch.diag(1 / multiplicity(4, 12)), rtol=0, atol=1e-13)


def test_norm_of_a_section_of_the_kernel_is_the_kernel():
    """f = h(., e) has |f|^2 = h(e, e) = 1/2, and a linear function c.x has |c|^2 / (d lambda_1)."""
    d, spectrum = 3, ntk_spectrum(3, 600)
    assert zonal_norm(H.of_cosine, spectrum).squared[-1].item() == pytest.approx(0.5, abs=2e-3)
    assert zonal_norm(lambda u: u, spectrum).squared[-1].item() == pytest.approx(1 / (d * spectrum.values[1].item()), rel=1e-9)


def test_what_is_odd_of_degree_three_lies_outside():
    spectrum = ntk_spectrum(2, 9)
    cubic = zonal_norm(lambda u: 4 * u**3 - 3 * u, spectrum)  # cos 3 theta, mean square 1/2
    assert cubic.outside == pytest.approx(0.5, rel=1e-12) and cubic.squared[-1].item() == pytest.approx(0, abs=1e-20)
    # x_1 |x_1| is odd: its norm up to degree D stays that of its linear part, the rest lies outside
    assert zonal_norm(lambda u: u * u.abs(), spectrum, nodes=1000).outside > 1e-3


def test_effective_dimension_and_entropy_by_hand():
    spectrum = Spectrum(3, torch.tensor([0.04, 0.01], dtype=torch.float64), torch.tensor([1.0, 3.0], dtype=torch.float64))
    assert spectrum.effective_dimension(0.01) == pytest.approx(0.8 + 1.5)
    assert spectrum.entropy(0.05) == pytest.approx(math.log(4) + 3 * math.log(2))
    assert spectrum.entropy(0.1) == pytest.approx(math.log(2))


def test_effective_dimension_counts_the_degrees_beyond():
    few, many = ntk_spectrum(3, 40), ntk_spectrum(3, 2000)
    ridge = 30 * few.values[40].item()
    assert few.missing == pytest.approx(0.5 - few.trace()) and many.missing < few.missing / 40
    assert few.effective_dimension(ridge) == pytest.approx(many.effective_dimension(ridge), rel=0.02)
    assert zonal_spectrum(H.of_cosine, 3, 40).missing == pytest.approx(few.missing, rel=1e-9)


def test_empirical_eigenvalues_tend_to_the_exact_ones_and_antipodes_make_the_matrix_singular():
    x = sphere(1000, 3)
    found = empirical_spectrum(H.matrix(x))
    torch.testing.assert_close(found[:4], ntk_spectrum(3, 10).sequence(4), rtol=0.15, atol=0)
    apart = sphere(5, 3, seed=1)
    assert smallest_eigenvalue(H.matrix(apart)).item() > 1e-3
    stack = torch.stack([H.matrix(apart), 2 * H.matrix(apart), H.matrix(apart.roll(1, 1))])
    for of in (empirical_spectrum, smallest_eigenvalue):
        torch.testing.assert_close(of(stack), torch.stack([of(matrix) for matrix in stack]))
    torch.testing.assert_close(smallest_eigenvalue(stack[0]), torch.linalg.eigvalsh(stack[0])[0])
    # d pairs can still be told apart by the linear part of h; one more cannot
    assert abs(smallest_eigenvalue(H.matrix(torch.cat([apart[:4], -apart[:4]]))).item()) < 1e-14
    assert smallest_eigenvalue(H.matrix(torch.cat([apart[:3], -apart[:3]]))).item() > 1e-4


def test_bad_input_is_refused():
    with pytest.raises(ValueError, match="degree of 0 or more, got -1"):
        ntk_spectrum(3, -1)
    with pytest.raises(ValueError, match="degree of 0 or more, got -1"):
        zonal_spectrum(NTK().of_cosine, 3, -1)
    with pytest.raises(ValueError, match="dimension of 2 or more"):
        ntk_spectrum(1, 3)
    with pytest.raises(ValueError, match="square kernel matrix"):
        empirical_spectrum(torch.zeros(3, 4))
