"""The distributions are what their docstrings say: curves, densities, Bayes errors, exponents, margins."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from squareloss.lab.data import synthetic

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]

DRAWS = {
    "spirals": lambda g, **o: synthetic.spirals(30, 4, g, **o),
    "sine": lambda g, **o: synthetic.sine(60, 4, g, **o),
    "sphere": lambda g, **o: synthetic.sphere(60, 4, g, dim=3, kappa=2, **o),
    "caps": lambda g, **o: synthetic.caps(60, 4, g, dim=3, gamma=0.2, **o),
}


def _generator(seed=0, device="cpu"):
    return torch.Generator(device).manual_seed(seed)


def _agrees(values, distribution):
    """Kolmogorov and Smirnov find nothing: with a fixed seed this fails only if the distribution is another one."""
    return stats.kstest(np.asarray(values).ravel(), distribution).pvalue > 1e-3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_shapes_dtypes_and_generators(draw, dtype, device):
    state = torch.get_rng_state()
    x, y, eta = draw(_generator(1, device), dtype=dtype)
    assert x.shape[:2] == y.shape == eta.shape == (4, 60)
    assert (x.dtype, y.dtype, eta.dtype) == (dtype, torch.int64, dtype)
    assert x.device.type == y.device.type == eta.device.type == device
    assert set(y.unique().tolist()) == {0, 1}
    assert ((eta >= 0) & (eta <= 1)).all()
    assert not torch.equal(x[0], x[1])  # replications differ
    again, other = draw(_generator(1, device), dtype=dtype), draw(_generator(2, device), dtype=dtype)
    assert torch.equal(again.x, x)
    assert torch.equal(again.y, y)
    assert not torch.equal(other.x, x)
    assert torch.equal(torch.get_rng_state(), state)  # the global generator is not touched


# spirals


def test_spirals_lie_on_their_curves():
    x, y, eta = synthetic.spirals(20_000, 2, _generator(), dtype=torch.float64)
    assert y[:, :20_000].sum() == 0
    assert (y[:, 20_000:] == 1).all()
    assert torch.equal(eta, y.double())
    p = (x * (1 - 2 * y)[..., None]).numpy() - [0.04, 0]  # class 1 is -P
    radius, angle = np.hypot(*p.T), np.arctan2(*p.T) % (2 * np.pi)  # rho, theta modulo 2 pi
    turns = np.stack([angle, angle + 2 * np.pi]) / (4 * np.pi)
    noise = radius - turns**0.8
    arm = np.abs(noise).argmin(0)  # the two arms lie 0.4 apart, so this is the true one
    noise, turn = (np.take_along_axis(a, arm[None], 0)[0] for a in (noise, turns))
    outer = (radius > 0.03) & (turn > 0.05)  # nearer the centre rho may be negative, which turns the angle
    assert np.abs(noise[outer]).max() <= 0.03 + 1e-12
    assert _agrees(noise[outer], stats.uniform(-0.03, 0.06).cdf)
    assert _agrees(turn[outer], stats.uniform(0.05, 0.95).cdf)
    assert radius.min() < 0.03
    assert np.mean(outer) == pytest.approx(0.95, abs=0.005)


def test_spirals_are_separable():
    x, y, _ = synthetic.spirals(500, 3, _generator(), dtype=torch.float64)
    for points, labels in zip(x, y, strict=True):
        gap = torch.cdist(points[labels == 0], points[labels == 1]).min()
        assert gap > 0.01


# the sine


@pytest.mark.parametrize(("reading", "bayes"), [("affine", 0.1646), ("clipped", 0.079), ("absolute", 0.193), ("half", 0.160)])
def test_bayes_error_of_each_reading(reading, bayes):
    ticks = (torch.arange(1000, dtype=torch.float64) + 0.5) / 500 - 1
    grid = torch.cartesian_prod(ticks, ticks)
    eta = synthetic.sine_eta(grid, reading)
    error = torch.minimum(eta, 1 - eta).mean().item()
    assert error == pytest.approx(bayes, abs=5e-4 if bayes != 0.1646 else 5e-5)
    x, y, true = synthetic.sine(100_000, 2, _generator(), reading=reading, dtype=torch.float64)
    torch.testing.assert_close(true, synthetic.sine_eta(x, reading))
    drawn = ((true > 0.5).long() != y).double().mean().item()
    assert drawn == pytest.approx(error, abs=4 * math.sqrt(error / 200_000))


def test_sine_is_the_formula_on_the_uniform_square():
    x, _, eta = synthetic.sine(20_000, 1, _generator(), dtype=torch.float64)
    assert _agrees(x[..., 0], stats.uniform(-1, 2).cdf)
    assert _agrees(x[..., 1], stats.uniform(-1, 2).cdf)
    assert abs(np.corrcoef(x[0].T.numpy())[0, 1]) < 0.03
    radius = np.hypot(*x[0].T.numpy())
    np.testing.assert_allclose(2 * eta[0].numpy() - 1, np.sin(np.sqrt(2) * np.pi * radius), atol=1e-12)


@pytest.mark.parametrize("reading", synthetic.READINGS)
def test_sine_is_a_probability_everywhere(reading):
    corners = torch.tensor([[1.0, 1.0], [-1.0, 1.0], [0.0, 0.0], [0.5, 0.5]])
    for dtype in (torch.float32, torch.float64):
        eta = synthetic.sine_eta(corners.to(dtype), reading)
        assert ((eta >= 0) & (eta <= 1)).all()


# the sphere

CASES = [(2, 0.5), (4, 0.5), (2, 1), (3, 1), (6, 1), (2, 2), (3, 2), (6, 2)]


def _density(t, dim, kappa):
    """Density of x_1 up to a constant: uniform on the sphere, times |s| for kappa = 2."""
    return (1 - t**2) ** ((dim - 3) / 2) * (np.abs(t**2 - 1 / dim) if kappa == 2 else 1)


@pytest.mark.parametrize(("dim", "kappa"), CASES)
def test_points_on_the_sphere_have_their_density(dim, kappa):
    x = synthetic.sphere(20_000, 2, _generator(3), dim=dim, kappa=kappa, dtype=torch.float64).x
    torch.testing.assert_close(torch.linalg.vector_norm(x, dim=-1), torch.ones(2, 20_000, dtype=torch.float64))
    # x_1 = cos(angle), which takes the singularity at +-1 out of the circle's density
    angle = np.linspace(0, np.pi, 20_001)
    mass = _density(np.cos(angle[1:-1]), dim, kappa) * np.sin(angle[1:-1])
    cdf = np.concatenate([[0], np.cumsum(mass), [mass.sum()]]) / mass.sum()
    assert _agrees(np.arccos(x[..., 0].numpy()), lambda a: np.interp(a, angle, cdf))
    others = x[..., 1:] / torch.linalg.vector_norm(x[..., 1:], dim=-1, keepdim=True)
    assert others.mean((0, 1)).abs().max() < 0.03  # and the rest is uniform on its own sphere


@pytest.mark.parametrize(("dim", "kappa"), CASES)
def test_tsybakov_exponent(dim, kappa):
    x, _, eta = synthetic.sphere(200_000, 5, _generator(4), dim=dim, kappa=kappa, dtype=torch.float64)
    assert torch.equal(eta > 0.5, x[..., 0] ** 2 - 1 / dim > 0)
    distance = (2 * eta - 1).abs().flatten()
    assert distance.max() <= 0.9 + 1e-12
    t = torch.tensor([0.01, 0.02, 0.04], dtype=torch.float64)
    below = torch.tensor([(distance < s).double().mean() for s in t])
    slope = torch.diff(below.log()) / math.log(2)
    assert slope.mean().item() == pytest.approx(kappa, abs=0.12)


@pytest.mark.parametrize("kappa", synthetic.KAPPAS)
def test_labels_follow_eta(kappa):
    sample = synthetic.sphere(100_000, 2, _generator(5), dim=3, kappa=kappa, dtype=torch.float64)
    bins = [(sample.eta >= low) & (sample.eta < low + 0.1) for low in np.arange(0.05, 0.95, 0.1)]
    filled = [inside for inside in bins if inside.sum() > 1000]
    assert len(filled) >= 5
    for inside in filled:
        gap = (sample.y[inside].double() - sample.eta[inside]).mean().abs()
        assert gap < 4 * 0.5 / math.sqrt(int(inside.sum()))
    torch.testing.assert_close(sample.eta, synthetic.sphere_eta(sample.x, kappa))


@pytest.mark.parametrize("kappa", synthetic.KAPPAS)
def test_eta_lies_in_the_rkhs_of_the_kernel_on_the_circle(kappa):
    angle = torch.arange(2**14, dtype=torch.float64) * (2 * math.pi / 2**14)
    f = 2 * synthetic.sphere_eta(torch.stack([angle.cos(), angle.sin()], 1), kappa) - 1
    coefficients = torch.fft.rfft(f)[:4001].abs() / 2**14
    assert coefficients[3::2].max() < 1e-14  # odd degrees from three on have eigenvalue zero
    k = torch.arange(2, 4001, 2, dtype=torch.float64)
    eigenvalues = (k**2 + 1) / (math.pi**2 * (k**2 - 1) ** 2)
    norm = torch.cumsum(coefficients[2::2] ** 2 / eigenvalues, 0)
    assert norm[-1] / norm[250] == pytest.approx(1, abs=0.01)  # |f|^2 in the RKHS converges
    rough = torch.sign(f) * torch.cos(2 * angle).abs() ** 0.3  # below the power that lies in it, the sum goes on growing
    diverging = torch.cumsum((torch.fft.rfft(rough)[2:4001:2].abs() / 2**14) ** 2 / eigenvalues, 0)
    assert diverging[-1] / diverging[250] > 1.2


# caps


@pytest.mark.parametrize(("dim", "gamma"), [(2, 0.3), (3, 0.05), (5, 0.4)])
def test_caps_have_their_margin(dim, gamma):
    x, y, eta = synthetic.caps(3000, 2, _generator(6), dim=dim, gamma=gamma, dtype=torch.float64)
    torch.testing.assert_close(torch.linalg.vector_norm(x, dim=-1), torch.ones(2, 3000, dtype=torch.float64))
    assert torch.equal(eta, y.double())
    assert torch.equal(y == 1, x[..., 0] > 0)
    gaps = torch.stack(
        [torch.cdist(points[labels == 0], points[labels == 1]).min() for points, labels in zip(x, y, strict=True)]
    )
    assert (gaps >= 2 * gamma).all()
    assert 2 * x[..., 0].abs().min() < 2 * gamma + 0.01  # and no more than that
    assert y.double().mean().item() == pytest.approx(0.5, abs=0.03)
    uniform = stats.beta(0.5, (dim - 1) / 2)  # of x_1^2, uniform on the sphere
    low = uniform.cdf(gamma**2)
    assert _agrees(x[..., 0].numpy() ** 2, lambda s: (uniform.cdf(s) - low) / (1 - low))


def test_options_that_make_no_sense():
    generator = _generator()
    with pytest.raises(ValueError, match="Unknown reading 'sin'. Available: affine"):
        synthetic.sine(5, 1, generator, reading="sin")
    with pytest.raises(ValueError, match="Unknown kappa 3"):
        synthetic.sphere(5, 1, generator, dim=3, kappa=3)
    with pytest.raises(ValueError, match="expected dim of 2 to 4"):
        synthetic.sphere(5, 1, generator, dim=5, kappa=0.5)
    with pytest.raises(ValueError, match="expected dim of 2 or more"):
        synthetic.sphere(5, 1, generator, dim=1, kappa=1)
    with pytest.raises(ValueError, match="gamma in"):
        synthetic.caps(5, 1, generator, dim=3, gamma=1.0)
    with pytest.raises(ValueError, match="take a smaller gamma"):
        synthetic.caps(5, 1, generator, dim=50, gamma=0.9)
    with pytest.raises(ValueError, match="expected replications >= 1"):
        synthetic.spirals(5, 0, generator)
