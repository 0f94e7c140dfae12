"""Kernels of wide networks: closed forms, tiles, the diagonal, the limit of finite widths, and bad input."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from squareloss.models import OneHidden
from squareloss.ntk import NTK, Laplace, TwoLayerNTK, finite_width, to_sphere

KERNELS = [NTK(), TwoLayerNTK(), Laplace(0.7)]


def sphere(n, d, seed=0):
    x = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True)


def closed_form(kernel, u):
    """In numpy, straight from the formulas of the module."""
    h = u * (math.pi - np.arccos(u)) / (2 * math.pi)
    if isinstance(kernel, NTK):
        return h
    if isinstance(kernel, TwoLayerNTK):
        return 2 * h + np.sqrt(1 - u**2) / (2 * math.pi)
    return np.exp(-np.sqrt(2 - 2 * u) / kernel.scale)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_values_are_the_closed_form(kernel):
    u = np.linspace(-1, 1, 1001)
    np.testing.assert_allclose(kernel.of_cosine(torch.from_numpy(u)).numpy(), closed_form(kernel, u), atol=1e-15)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@given(n=st.integers(1, 40), m=st.integers(1, 40), tile=st.integers(1, 50), seed=st.integers(0, 9))
def test_tiles_change_nothing(kernel, n, m, tile, seed):
    x, z = sphere(n, 3, seed), sphere(m, 3, seed + 10)
    v = torch.randn(m, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = closed_form(kernel, (x @ z.T).numpy())
    np.testing.assert_allclose(kernel.matrix(x, z, tile=tile).numpy(), expected, atol=1e-13)
    np.testing.assert_allclose(kernel.product(x, z, v, tile=tile).numpy(), expected @ v.numpy(), atol=1e-12)
    square = kernel.matrix(x, tile=tile)
    assert torch.equal(square, square.T)
    np.testing.assert_allclose(square.numpy(), kernel.matrix(x, x).numpy(), atol=1e-7)  # the diagonal is exact in one only
    w = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(kernel.product(x, None, w, tile=tile), square @ w, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_the_diagonal_and_repeated_and_antipodal_points_are_exact(kernel):
    x = to_sphere(torch.randn(300, 7, generator=torch.Generator().manual_seed(1)))
    wide = to_sphere(torch.randn(300, 3000, generator=torch.Generator().manual_seed(1)))  # whose products are not quite one
    for points in (x, wide):
        assert torch.equal(kernel.matrix(points).diagonal(), torch.full((300,), kernel.diagonal, dtype=torch.float64))
    one, other = torch.tensor([1.0, -1.0], dtype=torch.float64), kernel.matrix(x, -x).diagonal()
    exact = kernel.of_cosine(one)
    torch.testing.assert_close(kernel.matrix(x, x).diagonal(), exact[0].expand(300), atol=1e-15, rtol=0)
    torch.testing.assert_close(other, exact[1].expand(300), atol=1e-15, rtol=0)
    assert float(exact[0]) == pytest.approx(kernel.diagonal, abs=1e-15)


@pytest.mark.parametrize("n", [8, 101, 512])
def test_the_spectrum_on_the_circle_is_a_fourier_transform(n):
    """The matrix of equispaced points is circulant: its eigenvalues are the transform of its first row."""
    angle = 2 * np.pi * np.arange(n) / n
    x = torch.from_numpy(np.stack([np.cos(angle), np.sin(angle)], 1))
    for kernel in KERNELS:
        gap = np.minimum(angle, 2 * np.pi - angle)  # h in the angle itself: no arccos, no rounded cosine
        h = np.cos(gap) * (np.pi - gap) / (2 * np.pi)
        row = {NTK: h, TwoLayerNTK: 2 * h + np.sin(gap) / (2 * np.pi)}.get(type(kernel), np.exp(-2 * np.sin(gap / 2) / 0.7))
        found = torch.linalg.eigvalsh(kernel.matrix(x)).numpy()
        np.testing.assert_allclose(found, np.sort(np.fft.fft(row).real), atol=1e-12)


def test_eigenvalues_on_the_circle_are_the_known_ones():
    """(k^2 + 1) / (pi^2 (k^2 - 1)^2) at even k, 1/8 at k = 1, nothing at odd k >= 3."""
    n = 4096
    u = torch.cos(2 * math.pi * torch.arange(n, dtype=torch.float64) / n)
    found = torch.fft.fft(NTK().of_cosine(u)).real / n
    k = torch.arange(0, 12, 2, dtype=torch.float64)
    expected = (k**2 + 1) / (math.pi**2 * (k**2 - 1) ** 2)
    torch.testing.assert_close(found[0:12:2], expected, atol=1e-7, rtol=0)
    assert float(found[1]) == pytest.approx(1 / 8, abs=1e-12)
    assert found[3:12:2].abs().max() < 1e-14


def monte_carlo(x, z, weights, seed=0):
    """Mean and standard error of the tangent kernels of one unit each, by its definition, for both kinds of training."""
    generator = torch.Generator().manual_seed(seed)
    first, both = [], []
    for start in range(0, weights, 10**6):
        w = torch.randn(min(10**6, weights - start), len(x), generator=generator, dtype=torch.float64)
        a, b = w @ x, w @ z
        first.append(float(x @ z) * ((a > 0) & (b > 0)))
        both.append(first[-1] + a.relu() * b.relu())
    stacks = [torch.cat(part) for part in (first, both)]
    return [(float(s.mean()), float(s.std()) / weights**0.5) for s in stacks]


@pytest.mark.parametrize("weights", [200_000, pytest.param(10_000_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", range(4))
def test_monte_carlo_over_weights(weights, seed):
    x, z = sphere(2, 4, seed)
    u = x @ z
    for (mean, error), kernel in zip(monte_carlo(x, z, weights, seed), [NTK(), TwoLayerNTK()], strict=True):
        assert abs(mean - float(kernel.of_cosine(u))) < 4 * error


def gradients(network, x):
    """The gradient of every output by W, (n, m d), by automatic differentiation."""
    outputs = network(x).squeeze(1)
    return torch.stack([torch.autograd.grad(f, network.weight, retain_graph=True)[0].flatten() for f in outputs])


def test_finite_width_is_the_product_of_gradients():
    network = OneHidden(5, 64, generator=torch.Generator().manual_seed(0)).double()
    x, z = sphere(9, 5), sphere(4, 5, 1)
    jx, jz = gradients(network, x), gradients(network, z)
    torch.testing.assert_close(finite_width(network, x), jx @ jx.T)
    torch.testing.assert_close(finite_width(network, x, z, chunk=7), jx @ jz.T)
    weights = torch.stack([network.weight.detach(), -2 * network.weight.detach()])
    stacked = finite_width(weights, x)
    assert torch.equal(stacked[0], finite_width(network, x)) and torch.equal(stacked[1], finite_width(weights[1], x))


def test_finite_width_tends_to_the_kernel():
    x, generator = sphere(20, 3), torch.Generator().manual_seed(0)
    for width in (10**3, 10**5):
        w = torch.randn(width, 3, generator=generator, dtype=torch.float64)
        error = (finite_width(w, x) - NTK().matrix(x)).abs().max()
        assert error < 4 * 0.5 / width**0.5  # a share of units: its standard deviation is at most half of 1/sqrt(m)


def test_float32_is_close_and_sums_stay_in_float64():
    x = to_sphere(torch.randn(700, 5, generator=torch.Generator().manual_seed(0)))
    v = torch.randn(700, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    for kernel in KERNELS:
        wide, narrow = kernel.product(x, None, v), kernel.product(x, None, v, dtype=torch.float32)
        assert narrow.dtype == torch.float64
        assert (wide - narrow).norm() < 2e-5 * wide.norm()
        assert kernel.matrix(x, dtype=torch.float32).dtype == torch.float32


def test_out_is_written_to():
    x = sphere(60, 3)
    out = torch.empty(60, 60, dtype=torch.float64)
    assert NTK().matrix(x, out=out) is out and torch.equal(out, NTK().matrix(x))


def test_to_sphere():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0))
    with_bias = to_sphere(x)
    torch.testing.assert_close(with_bias.norm(dim=1), torch.ones(50, dtype=torch.float64))
    torch.testing.assert_close(with_bias[:, :3] / with_bias[:, 3:], x.double())
    torch.testing.assert_close(to_sphere(x, bias=False) * x.double().norm(dim=1, keepdim=True), x.double())
    with pytest.raises(ValueError, match="no direction"):
        to_sphere(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), bias=False)
    with pytest.raises(ValueError, match="expected finite x"):
        to_sphere(torch.tensor([[1.0, math.inf]]))
    with pytest.raises(TypeError, match="expected a tensor x"):
        to_sphere([[1.0, 0.0]])


def test_bad_input():
    x = sphere(5, 3)
    with pytest.raises(ValueError, match="off by 0.5.*to_sphere"):
        NTK().matrix(1.5 * x)
    with pytest.raises(ValueError, match="NaN"):
        NTK().matrix(x * math.nan)
    for wrong in (x[0], x[:0], x[:, :0], torch.eye(3, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"expected points x \(n, d\)"):
            NTK().matrix(wrong)
    with pytest.raises(ValueError, match=r"expected z \(m, 3\)"):
        NTK().matrix(x, sphere(5, 4))
    with pytest.raises(ValueError, match="expected out"):
        NTK().matrix(x, out=torch.empty(5, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="expected v"):
        NTK().product(x, None, torch.ones(4))
    with pytest.raises(TypeError, match="float64 or float32"):
        NTK().matrix(x, dtype=torch.float16)
    with pytest.raises(ValueError, match="scale > 0"):
        Laplace(-1.0)
    with pytest.raises(TypeError, match="hidden weights"):
        finite_width(torch.nn.ReLU(), x)


def test_a_matrix_beyond_memory_is_refused_before_it_is_tried():
    x = sphere(3, 2).repeat(2**20, 1)  # 3 million points: 79 TB
    with pytest.raises(MemoryError, match="needs 7.92e.04 GB.*conjugate_gradients"):
        NTK().matrix(x)
