"""Descent of wide networks: stacked equals single, tiles do not matter, the limits are ridge and the interpolant."""

import math

import pytest
import torch

from squareloss.ntk.descent import Linear, Networks, descend, draw, safe_rate
from squareloss.ntk.kernels import NTK, finite_width

H = NTK()


def data(replications=1, n=12, d=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(replications, n, d, generator=generator, dtype=torch.float64)
    x = x / x.norm(dim=2, keepdim=True)
    return x, torch.sign(x[..., 0] * x[..., 1])


def train(networks, x, y, steps, **options):
    return list(descend(networks, x, y, at=[steps], **options))


def test_one_step_is_the_gradient_of_the_objective():
    x, y = data()
    networks = draw([0], 20, 3)
    weights = networks.weights.clone().requires_grad_()
    hidden = (weights @ x.mT).relu()
    f = (networks.signs.unsqueeze(2) * hidden).sum(1) / math.sqrt(20)
    objective = ((f - y) ** 2).sum() + 0.3 * (weights**2).sum()
    (gradient,) = torch.autograd.grad(objective, weights)
    torch.testing.assert_close(networks.outputs(x), f.detach())
    train(networks, x, y, 1, mu=0.3, rate=0.01)
    torch.testing.assert_close(networks.weights, weights.detach() - 0.01 * gradient)


def test_one_step_of_cross_entropy_is_its_gradient():
    x, y = data()
    networks = draw([0], 20, 3)
    weights = networks.weights.clone().requires_grad_()
    f = (networks.signs.unsqueeze(2) * (weights @ x.mT).relu()).sum(1) / math.sqrt(20)
    objective = torch.nn.functional.softplus(-y * f).sum() + 0.3 * (weights**2).sum()
    (gradient,) = torch.autograd.grad(objective, weights)
    train(networks, x, y, 1, mu=0.3, rate=0.01, loss="logistic")
    torch.testing.assert_close(networks.weights, weights.detach() - 0.01 * gradient)


@pytest.mark.parametrize("toward", ["zero", "start"])
def test_stacked_equals_single_and_tiles_do_not_matter(toward):
    x, y = data(3)
    together = draw([5, 6, 7], 30, 3)
    together.tile = 40  # one unit at a time
    train(together, x, y, 20, mu=0.2, rate=0.02, toward=toward)
    for i, seed in enumerate([5, 6, 7]):
        single = draw([seed], 30, 3)
        train(single, x[i : i + 1], y[i : i + 1], 20, mu=0.2, rate=0.02, toward=toward)
        torch.testing.assert_close(together.weights[i], single.weights[0])
        torch.testing.assert_close(together.kernel(x)[i], single.kernel(x[i : i + 1])[0])
        torch.testing.assert_close(together.changed(x)[i], single.changed(x[i : i + 1])[0])


def test_points_for_all_networks_are_given_once():
    x, y = data()
    shared, each = (draw([0, 1], 20, 3) for _ in range(2))
    train(shared, x[0], y[0], 3, mu=0.3, rate=0.01)
    train(each, x.repeat(2, 1, 1), y.repeat(2, 1), 3, mu=0.3, rate=0.01)
    torch.testing.assert_close(shared.weights, each.weights)
    torch.testing.assert_close(shared.outputs(x[0]), each.outputs(x.repeat(2, 1, 1)))


def test_a_safe_rate_is_safe_for_the_largest_of_all_eigenvalues():
    kernels = torch.diag_embed(torch.tensor([[1.0, 2.0], [5.0, 3.0]]))
    assert safe_rate(kernels, 3.0) == pytest.approx(0.5 / 8)
    assert safe_rate(kernels, 0.0, share=0.9) == pytest.approx(0.9 / 5)


def test_pauses_do_not_change_the_descent():
    x, y = data()
    once, paused = draw([0], 16, 3), draw([0], 16, 3)
    train(once, x, y, 9, mu=0.1, rate=0.02)
    assert list(descend(paused, x, y, mu=0.1, rate=0.02, at=[0, 4, 9])) == [0, 4, 9]
    torch.testing.assert_close(paused.weights, once.weights)


@pytest.mark.parametrize("toward", ["zero", "start"])
@pytest.mark.parametrize("mu", [0.0, 0.4])
def test_linear_descent_is_the_descent_of_fixed_features(toward, mu):
    """Against the plain loop on W with Z held at its start."""
    x, y = data()
    networks = draw([3], 25, 3)
    active = (networks.start[0] @ x[0].T >= 0).double()  # (m, n)
    z = torch.einsum("m,mn,nd->mdn", networks.signs[0], active, x[0]).reshape(-1, 12) / 5.0
    w, centre = networks.start[0].reshape(-1), networks.start[0].reshape(-1) if toward == "start" else 0.0
    for _ in range(40):
        w = w - 0.04 * (z @ (z.T @ w - y[0]) + mu * (w - centre))
    kernel, f0 = networks.kernel(x), networks.outputs(x)
    torch.testing.assert_close(kernel[0], z.T @ z)
    linear = Linear.fit(kernel, y, f0, mu=mu, rate=0.02, toward=toward)
    torch.testing.assert_close(linear.outputs(kernel, f0, 40)[0], z.T @ w)


def test_linear_limits_are_ridge_and_the_interpolant():
    x, y = data(2)
    test, _ = data(2, 7, seed=9)
    kernel, cross = H.of_cosine(x @ x.mT), H.of_cosine(test @ x.mT)
    f0, g0 = torch.sin(x[..., 0] * 3), torch.sin(test[..., 0] * 3)
    rate = safe_rate(kernel, 0.5)
    ridge = (cross @ torch.linalg.solve(kernel + 0.5 * torch.eye(12), y.unsqueeze(2))).squeeze(2)
    linear = Linear.fit(kernel, y, f0, mu=0.5, rate=rate)
    torch.testing.assert_close(linear.outputs(cross, g0, 1000), ridge)
    shifted = (cross @ torch.linalg.solve(kernel + 0.5 * torch.eye(12), (y - f0).unsqueeze(2))).squeeze(2)
    linear = Linear.fit(kernel, y, f0, mu=0.5, rate=rate, toward="start")
    torch.testing.assert_close(linear.outputs(cross, g0, 1000), g0 + shifted)
    exact = g0 + (cross @ torch.linalg.solve(kernel, (y - f0).unsqueeze(2))).squeeze(2)
    linear = Linear.fit(kernel, y, f0, mu=0.0, rate=rate)
    torch.testing.assert_close(linear.outputs(cross, g0, 10**7), exact)


def test_penalised_descent_of_a_wide_network_is_ridge_at_the_same_mu():
    """And closer the wider: the error falls by about two for four times the width."""
    x, y = data(8, 10)
    test = torch.nn.functional.normalize(
        torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64), dim=1
    )
    kernel, cross, mu = H.of_cosine(x @ x.mT), H.of_cosine(test @ x.mT), 0.3
    ridge = (cross @ torch.linalg.solve(kernel + mu * torch.eye(10), y.unsqueeze(2))).squeeze(2)
    errors = []
    for width in (512, 8192):
        networks = draw(range(8), width, 3, antisymmetric=True)
        train(networks, x, y, 250, mu=mu, rate=safe_rate(kernel, mu), toward="start")
        errors.append((networks.outputs(test) - ridge).square().mean().sqrt().item())
    assert errors[1] < 0.4 * errors[0] and errors[1] < 0.01


def test_unpenalised_descent_of_a_wide_network_is_the_interpolant_through_its_start():
    x, y = data(2, 6)
    kernel = H.of_cosine(x @ x.mT)
    networks = draw([0, 1], 40000, 3, dtype=torch.float32)
    f0 = networks.outputs(x.float()).double()
    train(networks, x.float(), y.float(), 400, mu=0.0, rate=safe_rate(kernel, 0.0))
    test, _ = data(2, 40, seed=4)
    g0 = networks.outputs(test.float(), at_start=True).double()
    exact = g0 + (H.of_cosine(test @ x.mT) @ torch.linalg.solve(kernel, (y - f0).unsqueeze(2))).squeeze(2)
    gap = networks.outputs(test.float()).double() - exact
    assert gap.square().mean().sqrt() < 0.1 * (exact - g0).square().mean().sqrt()


def test_antisymmetric_start_is_zero_and_keeps_the_kernel():
    x, _ = data()
    networks = draw([0], 10, 3, antisymmetric=True)
    assert networks.outputs(x).abs().max() < 1e-14
    half = Networks(networks.weights[:, :5], networks.start[:, :5], networks.signs[:, :5])
    torch.testing.assert_close(networks.kernel(x), half.kernel(x))


def test_finite_kernel_tends_to_h_and_diagnostics_start_at_zero():
    x, _ = data()
    networks = draw([0], 200_000, 3)
    assert (networks.kernel(x)[0] - H.matrix(x[0])).abs().max() < 5 / math.sqrt(200_000)
    assert networks.moved().item() == 0 and networks.changed(x).item() == 0
    z = data(n=5, seed=1)[0]
    torch.testing.assert_close(networks.kernel(x, z), finite_width(networks.weights, x[0], z[0]))
    networks.weights[:, :50_000] *= -1
    torch.testing.assert_close(networks.kernel(x, z, at_start=True), finite_width(networks.start, x[0], z[0]))
    assert networks.changed(x).item() == 1 / 4
    assert networks.moved().item() == pytest.approx(2 * networks.start[0, :50_000].norm(dim=1).max().item())


def test_a_network_depends_on_its_seed_alone():
    torch.testing.assert_close(draw([1, 2], 6, 2).weights[1], draw([2], 6, 2).weights[0])
    assert draw([2], 6, 2, xi=3.0).weights.std() > 2 * draw([2], 6, 2).weights.std()


def test_bad_input_is_refused():
    x, y = data()
    networks = draw([0], 6, 3)
    for width, dimension in ((0, 3), (4, 0)):
        with pytest.raises(ValueError, match="width and a dimension of 1 or more"):
            draw([0], width=width, dimension=dimension)
    with pytest.raises(ValueError, match="even width"):
        draw([0], 5, 3, antisymmetric=True)
    with pytest.raises(ValueError, match="Available: zero, start"):
        train(networks, x, y, 1, mu=0.1, rate=0.1, toward="one")
    with pytest.raises(ValueError, match="Available: zero, start"):
        Linear.fit(networks.kernel(x), y, networks.outputs(x), mu=0.1, rate=0.1, toward="one")
    with pytest.raises(ValueError, match="Available: square, logistic"):
        train(networks, x, y, 1, mu=0.1, rate=0.1, loss="hinge")
    with pytest.raises(ValueError, match="ascend"):
        list(descend(networks, x, y, mu=0.1, rate=0.1, at=[3, 1]))
    with pytest.raises(ValueError, match="expected points"):
        networks.outputs(torch.zeros(4, 2, dtype=torch.float64))
    with pytest.raises(ArithmeticError, match="lower the rate"):
        train(networks, x, y, 400, mu=50.0, rate=10.0)
    with pytest.raises(ArithmeticError, match="lower the rate"):  # one of two, whose points are not zero
        train(draw([0, 1], 1, 3), torch.cat([0 * x, x]), y, 400, mu=0.0, rate=10.0)
