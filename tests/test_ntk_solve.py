"""Exact and iterative ridge with a kernel: scikit-learn's KernelRidge, each other, and limits that are known."""

import math

import numpy as np
import pytest
import torch
from sklearn.kernel_ridge import KernelRidge

from squareloss.ntk import NTK, Laplace, Nystrom, Spectral, TwoLayerNTK, conjugate_gradients, ridge, ridge_path, to_sphere
from squareloss.ntk.cholesky import Factor
from squareloss.ntk.iterative import default_rank

KERNELS = [NTK(), TwoLayerNTK(), Laplace(0.7)]


def problem(n=150, d=3, outputs=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = to_sphere(torch.randn(n, d, generator=generator, dtype=torch.float64))
    return x, torch.randn(n, outputs, generator=generator, dtype=torch.float64)


def relative(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("mu", [1e-3, 1.0, 100.0])
def test_ridge_is_sklearns_kernel_ridge(kernel, mu):
    x, y = problem()
    z, _ = problem(seed=1)
    matrix, cross = kernel.matrix(x).numpy(), kernel.matrix(z, x).numpy()
    expected = KernelRidge(kernel="precomputed", alpha=mu).fit(matrix, y.numpy())
    found = ridge(x, y, mu, kernel)
    np.testing.assert_allclose(found.dual.numpy(), expected.dual_coef_, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(found(z).numpy(), expected.predict(cross), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("solver", [lambda x, y: ridge(x, y, 0.0), lambda x, y: Spectral.of(x, y).ridge(0.0)])
def test_no_penalty_interpolates(solver):
    x, y = problem()
    torch.testing.assert_close(solver(x, y)(x), y, atol=1e-9, rtol=0)
    one = solver(x, y[:, 0])
    assert one.dual.shape == (150,) and one(x[:7]).shape == (7,)
    torch.testing.assert_close(one(x), y[:, 0], atol=1e-9, rtol=0)


@pytest.mark.parametrize("block", [1, 7, 64, 150, 1000])
def test_blocks_change_nothing(block):
    x, y = problem()
    matrix = NTK().matrix(x)
    whole = matrix + 0.3 * torch.eye(150, dtype=torch.float64)
    factor = Factor.of(matrix.clone(), 0.3, block=block)
    lower = factor.matrix.tril()
    torch.testing.assert_close(lower @ lower.T, whole, atol=1e-14, rtol=0)
    torch.testing.assert_close(whole @ factor.solve(y), y, atol=1e-12, rtol=0)
    torch.testing.assert_close(factor.inverse_diagonal(), torch.linalg.inv(whole).diagonal(), atol=1e-12, rtol=1e-12)


def test_factorisation_takes_no_second_matrix():
    x, _ = problem()
    matrix = NTK().matrix(x)
    assert Factor.of(matrix, 0.3).matrix.data_ptr() == matrix.data_ptr()


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_a_path_is_its_single_fits(kernel):
    """Five decades, in no order, with 0 and a value given twice; a column of zeros stays zero."""
    x, y = problem(n=600, outputs=3)
    y[:, 1] = 0
    mus = [1.0, 0.0, *np.logspace(-3, 2, 9).tolist(), 1.0]
    for mu, found in zip(mus, ridge_path(x, y, mus, kernel), strict=True):
        expected = ridge(x, y, mu, kernel)
        assert found.mu == mu and found.residual <= 1e-12
        assert relative(found.dual, expected.dual) < 1e-8
        residual = y - kernel.matrix(x) @ found.dual - mu * found.dual
        assert float((residual.norm(dim=0) / y.norm(dim=0).clamp_min(1)).max()) < 1e-10


def test_a_factorisation_serves_two_decades_of_a_path(monkeypatch):
    x, y = problem(n=30)
    poles, of = [], Factor.of
    monkeypatch.setattr(Factor, "of", lambda matrix, mu, *rest, **options: poles.append(mu) or of(matrix, mu, *rest, **options))
    ridge_path(x, y, [1e4, 1.0, 10.0, 100.0, 1e6, 101.0, 0.0])
    assert poles == pytest.approx([0.0, 10.0, math.sqrt(101 * 1e4), 1e6])


def test_spectral_is_cholesky():
    x, y = problem()
    spectral = Spectral.of(x, y)
    for mu in (0.01, 1.0, 30.0):
        assert relative(spectral.ridge(mu).dual, ridge(x, y, mu).dual) < 1e-10
    torch.testing.assert_close(spectral.flow(math.inf, 0.5).dual, spectral.ridge(0.5).dual)


def test_flow_solves_its_equation():
    """d a / dt = y - (H + mu) a from a = 0, by small steps of Runge and Kutta; steps of descent get there too."""
    x, y = problem(n=40)
    h, mu = NTK().matrix(x), 0.2
    a, dt, slope = torch.zeros_like(y), 1 / 64, lambda a: y - h @ a - mu * a
    for _ in range(128):
        k1 = slope(a)
        k2 = slope(a + dt / 2 * k1)
        k3 = slope(a + dt / 2 * k2)
        a = a + dt / 6 * (k1 + 2 * k2 + 2 * k3 + slope(a + dt * k3))
    found = Spectral.of(x, y).flow(2.0, mu)
    assert relative(found.dual, a) < 1e-6
    descent, zeta = torch.zeros_like(y), 1e-4
    for _ in range(10_000):
        descent = descent + 2 * zeta * slope(descent)
    assert relative(found.dual, descent) < 1e-3


WEIGHTED = {
    "ridge": lambda x, y, **w: Spectral.of(x, y, **w).ridge(0.3),
    "flow": lambda x, y, **w: Spectral.of(x, y, **w).flow(0.7, mu=0.2),
    "conjugate gradients": lambda x, y, **w: conjugate_gradients(x, y, 0.3, tolerance=1e-12, **w),
    "in float32": lambda x, y, **w: conjugate_gradients(x, y, 0.3, tolerance=1e-12, dtype=torch.float32, **w),
}


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("solver", WEIGHTED)
def test_whole_weights_are_repeated_samples(solver, outputs):
    (x, y), (z, _) = problem(outputs=outputs), problem(seed=1)
    y = y.squeeze(1)
    weight = torch.randint(1, 5, (150,), generator=torch.Generator().manual_seed(0))
    repeated = WEIGHTED[solver](x.repeat_interleave(weight, 0), y.repeat_interleave(weight, 0))
    weighted = WEIGHTED[solver](x, y, weight=weight)
    torch.testing.assert_close(weighted(z), repeated(z), atol=1e-9, rtol=0)
    assert weighted.dual.shape == y.shape


def test_the_preconditioner_knows_the_weights():
    """Of weights that differ by far, one that does not takes many more iterations; and a start is one of a, not of b."""
    x, y = problem(n=600)
    weight = torch.logspace(-3, 3, 600, dtype=torch.float64)
    nystrom = Nystrom.of(NTK(), x, 300, weight=weight)
    matrix = (weight.sqrt() * NTK().matrix(x)) * weight.sqrt().unsqueeze(1)
    assert relative(nystrom.factor @ nystrom.factor.T, matrix) < 0.02
    found = conjugate_gradients(x, y, 1.0, weight=weight, preconditioner=nystrom)
    blind = conjugate_gradients(x, y, 1.0, weight=weight, preconditioner=Nystrom.of(NTK(), x, 300))
    assert found.residual <= 1e-6 and found.iterations < blind.iterations / 2
    assert conjugate_gradients(x, y, 1.0, weight=weight, preconditioner=nystrom, start=found.dual).iterations == 0


@pytest.mark.parametrize("wrong", [torch.zeros(150), torch.ones(149), torch.full((150,), math.inf)])
def test_weights_are_positive_and_one_a_sample(wrong):
    x, y = problem()
    for solver in WEIGHTED.values():
        with pytest.raises(ValueError, match=r"expected (positive|finite).*weights|expected weights of shape \(150,\)"):
            solver(x, y, weight=wrong)


def test_flow_in_directions_the_kernel_cannot_see():
    """Antipodal pairs: some eigenvalues are zero, and there a grows as t y."""
    x, y = problem(n=20, d=1)
    x = torch.cat([x, -x])
    y = torch.cat([y, y])
    spectral = Spectral.of(x, y)
    assert bool(spectral.flow(10.0).dual.isfinite().all())
    assert relative(spectral.flow(1e-6).dual, 1e-6 * y) < 1e-4


def test_leave_one_out_is_leaving_one_out():
    x, y = problem(n=30)
    found = Spectral.of(x, y).leave_one_out(0.1)
    factor = Factor.of(NTK().matrix(x), 0.1)
    by_factor = y - factor.solve(y) / factor.inverse_diagonal().unsqueeze(1)
    for i in range(30):
        keep = torch.arange(30) != i
        expected = ridge(x[keep], y[keep], 0.1)(x[i : i + 1])[0]
        torch.testing.assert_close(found[i], expected, atol=1e-10, rtol=0)
        torch.testing.assert_close(by_factor[i], expected, atol=1e-10, rtol=0)


@pytest.mark.parametrize("outputs", [None, 1, 7])
def test_leave_one_out_of_a_path_is_that_of_every_mu(outputs):
    x, _ = problem(n=30)
    y = torch.randn(30, *([] if outputs is None else [outputs]), generator=torch.Generator().manual_seed(0))
    spectral, mus = Spectral.of(x, y), [1e-3, 0.1, 1.0, 5.0, 30.0]  # with seven outputs in groups of two
    path = spectral.leave_one_out_path(mus)
    assert [part.shape for part in path] == [y.shape] * 5
    for mu, part in zip(mus, path, strict=True):
        torch.testing.assert_close(part, spectral.leave_one_out(mu), atol=1e-10, rtol=0)
    repeated = torch.cat([x, x])
    with pytest.raises(ValueError, match="expected mu > 0 for a singular kernel matrix, got mu = 0; raise mu"):
        Spectral.of(repeated, torch.cat([y, y])).leave_one_out_path([1.0, 0.0])


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_repeated_points_need_a_penalty(kernel):
    x, y = problem(n=50)
    x[7], x[9] = x[1], x[2]
    with pytest.raises(ValueError, match="mu = 0, but 2 of 50 points are repeated.*raise mu"):
        ridge(x, y, 0.0, kernel)
    with pytest.raises(ValueError, match="expected mu > 0 for a singular kernel matrix, got mu = 0; raise mu"):
        Spectral.of(x, y, kernel).ridge(0.0)
    with pytest.raises(ValueError, match="expected mu > 0 for a singular kernel matrix"):
        Spectral.of(x, y, kernel).flow(math.inf)
    assert bool(ridge(x, y, 1e-6, kernel).dual.isfinite().all())


def test_antipodal_pairs_make_the_ntk_singular():
    x, y = problem(n=8, d=2)  # in the plane after the bias: more than three pairs in three dimensions
    with pytest.raises(ValueError, match="mu = 0, but it is singular"):
        ridge(torch.cat([x, -x]), torch.cat([y, y]), 0.0)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_a_matrix_is_singular_at_any_scale_or_at_none(scale):
    x, y = problem(n=20)
    matrix = scale * NTK().matrix(x)
    torch.testing.assert_close(matrix @ Factor.of(matrix.clone(), 0.0).solve(y), y, rtol=1e-6, atol=1e-6)
    x[7] = x[1]
    with pytest.raises(ValueError, match="mu = 0, but it is singular"):
        Factor.of(scale * NTK().matrix(x), 0.0)


@pytest.mark.parametrize("block", [1, 2, 3])
def test_a_matrix_that_is_not_positive_definite_is_named(block):
    matrix = torch.tensor([[2.0, 0.0, 1.0], [0.0, 1.0, 3.0], [1.0, 3.0, 1.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match="positive definite kernel matrix at mu = 0.5, but it is singular"):
        Factor.of(matrix, 0.5, block=block)


def test_bad_input():
    x, y = problem(n=20)
    for bad in (-1.0, math.inf, math.nan):
        fits = (lambda mu: ridge(x, y, mu), lambda mu: conjugate_gradients(x, y, mu))
        for solve in (*fits, Spectral.of(x, y).ridge, Spectral.of(x, y).leave_one_out):
            with pytest.raises(ValueError, match="expected a finite mu >= 0"):
                solve(bad)
    with pytest.raises(ValueError, match="expected y on the device of x, cpu, got meta"):
        ridge(x, y.to("meta"), 1.0)
    with pytest.raises(ValueError, match=r"expected y of shape \(20,\)"):
        ridge(x, y[:5], 1.0)
    with pytest.raises(ValueError, match="finite y"):
        ridge(x, y * math.nan, 1.0)
    with pytest.raises(TypeError, match=r"tensor x, got ndarray; use torch.as_tensor\(x\)"):
        ridge(x.numpy(), y.numpy(), 0.1)
    with pytest.raises(TypeError, match="tensor y, got ndarray"):
        ridge(x, y.numpy(), 0.1)
    with pytest.raises(TypeError, match="kernel such as .* got 'foo'"):
        ridge(x, y, 0.1, kernel="foo")
    with pytest.raises(ValueError, match="unit sphere"):
        ridge(2 * x, y, 1.0)
    with pytest.raises(MemoryError, match="at most 1e-06 GB on cpu, got a problem that needs 3.2e-06 GB"):
        ridge(x, y, 1.0, memory_gb=1e-6)
    with pytest.raises(ValueError, match="time >= 0"):
        Spectral.of(x, y).flow(-1.0)


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_conjugate_gradients_is_cholesky(kernel, dtype):
    """To the residual it states, which is the true one; in float32, too, beyond the digits of float32."""
    x, y = problem(n=500, outputs=3)
    y[:, 1] = 0
    for mu in (0.01, 1.0):
        found = conjugate_gradients(x, y, mu, kernel, tolerance=1e-9, rank=80, dtype=dtype)
        residual = y - kernel.matrix(x) @ found.dual - mu * found.dual
        true = float((residual.norm(dim=0) / y.norm(dim=0).clamp_min(1e-300)).max())
        assert found.residual <= 1e-9 and true == pytest.approx(found.residual, rel=0.01, abs=1e-13)
        expected = ridge(x, y, mu, kernel).dual
        # |a - a'| <= |residual| / mu
        assert float((found.dual - expected).norm(dim=0).max()) <= 1.01e-9 * float(y.norm(dim=0).max()) / mu
        assert float(found.dual[:, 1].abs().max()) == 0


def test_the_preconditioner_is_its_formula(monkeypatch):
    """P^-1 from the eigenvectors of F F', and the full sample makes P proportional to H + mu."""
    monkeypatch.setattr("squareloss.ntk.iterative.ROWS", 25)  # at a time
    x, y = problem(n=60)
    for rank in (20, 60):
        nystrom = Nystrom.of(NTK(), x, rank)
        s, u = torch.linalg.eigh(nystrom.factor @ nystrom.factor.T)
        s, u = s[-rank:], u[:, -rank:]
        expected = (u * ((s[0] + 0.3) / (s + 0.3) - 1)) @ (u.T @ y) + y
        torch.testing.assert_close(nystrom.at(0.3)(y), expected, atol=1e-9, rtol=0)
    assert relative(nystrom.factor @ nystrom.factor.T, NTK().matrix(x)) < 1e-9


def test_the_rank_of_the_preconditioner():
    assert [default_rank(n) for n in (4, 50, 100, 10**6, 10**8)] == [4, 36, 50, 5000, 5000]


def test_a_preconditioner_of_more_points_than_there_are_is_refused():
    with pytest.raises(ValueError, match="a rank from 1 to the 5 points there are, got 6"):
        Nystrom.of(NTK(), problem(n=5)[0], 6)


def test_a_preconditioner_saves_iterations_and_serves_every_mu():
    x, y = problem(n=800)
    one, many = Nystrom.of(NTK(), x, 1), Nystrom.of(NTK(), x, 300)
    slow = conjugate_gradients(x, y, 0.1, preconditioner=one)
    quick = conjugate_gradients(x, y, 0.1, preconditioner=many)
    assert quick.iterations < slow.iterations / 2
    warm = conjugate_gradients(x, y, 0.095, preconditioner=many, start=quick.dual)
    cold = conjugate_gradients(x, y, 0.095, preconditioner=many)
    assert warm.iterations < cold.iterations and warm.residual <= 1e-6
    assert conjugate_gradients(x, y, 0.1, preconditioner=many, start=quick.dual).iterations == 0


def test_repeated_points_and_one_column():
    x, y = problem(n=100)
    x[50:] = x[:50]
    found = conjugate_gradients(x, y[:, 0], 0.5, rank=100, tolerance=1e-10)
    assert found.dual.shape == (100,)
    assert relative(found.dual, ridge(x, y[:, 0], 0.5).dual) < 1e-9


def test_conjugate_gradients_says_if_it_did_not_get_there():
    x, y = problem(n=300)
    with pytest.warns(RuntimeWarning, match="relative residual of 1e-06, got .* after 3 iterations; raise rank"):
        found = conjugate_gradients(x, y, 1e-4, rank=5, max_iterations=3)
    assert found.residual > 1e-6 and found.iterations == 3
    with pytest.raises(ValueError, match="mu > 0.*ridge"):
        conjugate_gradients(x, y, 0.0)
    with pytest.raises(MemoryError, match="at most 1e-06 GB.* needs 0.00024 GB.* or a lower rank"):  # 300 rows of 100 numbers
        conjugate_gradients(x, y, 1.0, rank=100, memory_gb=1e-6)


def test_progress(capsys, monkeypatch):
    x, y = problem(n=600)
    clock = iter(range(0, 5000, 5))
    monkeypatch.setattr("squareloss._progress.time.monotonic", lambda: next(clock))
    ridge(x, y, 1.0, progress=True)
    assert "factorisation:" in capsys.readouterr().err
    conjugate_gradients(x, y, 1.0, progress=True, rank=20)
    shown = capsys.readouterr().err
    assert "conjugate gradients:" in shown
    residuals = [float(words.split()[0].strip(",")) for words in shown.split("residual ")[1:]]
    assert residuals[0] > 1e-3 and residuals[-1] <= 1e-6
    seconds = iter([10.0, 12.0])  # two for the first 512 points
    monkeypatch.setattr("squareloss.ntk.solve.time.perf_counter", lambda: next(seconds))
    Spectral.of(x, y, progress=True)
    assert f"eigendecomposition: about {2 * (600 / 512) ** 3:.0f} s" in capsys.readouterr().err
    ridge(x, y, 1.0)
    Spectral.of(x, y)
    assert capsys.readouterr().err == ""
