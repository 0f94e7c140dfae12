"""The distributions are what their docstrings say: curves, densities, Bayes errors."""

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


def test_readings_are_known_by_name():
    with pytest.raises(ValueError, match="Unknown reading 'sin'. Available: affine"):
        synthetic.sine(5, 1, _generator(), reading="sin")
