"""Closed-form ridge against scikit-learn's, against refits without one sample, and against itself in the other form."""

import pytest
import torch
from sklearn.kernel_ridge import KernelRidge
from sklearn.linear_model import Ridge

from squareloss.codings import Simplex
from squareloss.ridge import FeaturePath, KernelPath, left_out

LAMBDAS = [1e-3, 0.1, 3.0, 200.0]


def data(n: int, d: int, classes: int = 4, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64) * torch.linspace(0.3, 3, d) + 5
    labels = torch.randint(classes, (n,), generator=generator)
    weight = torch.rand(n, generator=generator, dtype=torch.float64) + 0.2
    return x, Simplex().encode(labels, classes).double(), weight


def rbf(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(-torch.cdist(x, x).square() / x.shape[1])


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-8) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def leave_one_out(path, x, y, lam, weight=None):
    """What the fit without sample i predicts for it, of all samples of the fit: as a probe takes it, tall or wide."""
    s = torch.ones_like(x[:, 0]) if weight is None else weight
    projected = path.project(x)
    fitted = path.fitted(projected, [lam])[0]
    if path.dual is None:
        return left_out(y, fitted, path.slack(projected, s, [lam])[0])
    return fitted.masked_scatter((s > 0).unsqueeze(1), path.dual.leave_one_out(lam))


@pytest.mark.parametrize(("n", "d"), [(60, 7), (25, 40), (30, 30)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_every_lambda_is_ridge_of_scikit_learn_on_the_codes(n, d, weighted, intercept):
    x, y, weight = data(n, d)
    weight = weight if weighted else None
    path = FeaturePath.from_data(x, y, weight, intercept=intercept)
    for lam in LAMBDAS:
        reference = Ridge(alpha=lam, fit_intercept=intercept, solver="svd").fit(x, y, sample_weight=weight)
        coefficients, b = path.solve(lam)
        close(coefficients, torch.from_numpy(reference.coef_.T))
        close(b, torch.as_tensor(reference.intercept_).expand(4).double())


@pytest.mark.parametrize(("n", "d"), [(40, 6), (20, 33)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_leave_one_out_is_n_refits(n, d, weighted, intercept):
    x, y, weight = data(n, d, seed=1)
    weight = weight if weighted else torch.ones(n, dtype=torch.float64)
    path = FeaturePath.from_data(x, y, weight, intercept=intercept)
    for lam in LAMBDAS:
        refits = torch.zeros_like(y)
        for i in range(n):
            rest = torch.arange(n) != i
            coefficients, b = FeaturePath.from_data(x[rest], y[rest], weight[rest], intercept=intercept).solve(lam)
            refits[i] = x[i] @ coefficients + b
        close(leave_one_out(path, x, y, lam, weight), refits)


def test_the_two_shapes_of_the_problem_agree():
    # as many zero features as make n < d: the same ridge by the n x n matrix
    x, y, weight = data(30, 6)
    tall = FeaturePath.from_data(x, y, weight)
    wide = FeaturePath.from_data(torch.cat([x, torch.zeros(30, 40)], 1), y, weight)
    for lam in LAMBDAS:
        close(wide.solve(lam)[0][:6], tall.solve(lam)[0])
        close(wide.solve(lam)[1], tall.solve(lam)[1])
    assert [46 * lam for lam in wide.grid()] == pytest.approx([6 * lam for lam in tall.grid()])


def test_the_default_path_goes_from_a_millionth_to_a_thousand_times_the_mean_eigenvalue():
    path = FeaturePath.from_data(*data(30, 6))
    steps = [lam / (float(path.values.sum()) / 6) for lam in path.grid()]
    assert steps == pytest.approx([10 ** (k / 3) for k in range(-18, 10)])


def test_from_sums_is_from_data():
    x, y, weight = data(50, 8)
    mean, mean_y = weight @ x / weight.sum(), weight @ y / weight.sum()
    centred = (x - mean) * weight.unsqueeze(1)
    path = FeaturePath.from_scatter(centred.T @ (x - mean), centred.T @ (y - mean_y), mean, mean_y, float(weight.sum()))
    whole = FeaturePath.from_data(x, y, weight)
    close(path.solve(0.7)[0], whole.solve(0.7)[0])
    close(leave_one_out(path, x, y, 0.7, weight), leave_one_out(whole, x, y, 0.7, weight))


@pytest.mark.parametrize("weighted", [False, True])
def test_kernel_path_is_kernel_ridge_of_scikit_learn(weighted):
    x, y, weight = data(30, 5)
    weight = weight if weighted else None
    path = KernelPath.from_kernel(rbf(x), y, weight)
    for lam in LAMBDAS:
        reference = KernelRidge(alpha=lam, kernel="precomputed").fit(rbf(x).numpy(), y.numpy(), sample_weight=weight)
        dual, intercept = path.solve(lam)
        close(dual, torch.from_numpy(reference.dual_coef_))
        assert not intercept.any()


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize(("n", "d"), [(30, 5), (12, 20)])
def test_linear_kernel_is_ridge_on_features(n, d, weighted, intercept):
    x, y, weight = data(n, d)
    weight = weight if weighted else None
    by_kernel = KernelPath.from_kernel(x @ x.T, y, weight, intercept=intercept)
    by_features = FeaturePath.from_data(x, y, weight, intercept=intercept)
    for lam in LAMBDAS:
        dual, b = by_kernel.solve(lam)
        close(x.T @ dual, by_features.solve(lam)[0], 1e-7)
        close(b, by_features.solve(lam)[1], 1e-7)
        close(by_kernel.leave_one_out(lam), leave_one_out(by_features, x, y, lam, weight), 1e-7)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("lam", [0.0, 1e-12, 1e-3, 1.0])
def test_kernel_leave_one_out_is_n_refits(weighted, intercept, lam):
    x, y, weight = data(20, 3, seed=2)
    kernel, weight = rbf(x), weight if weighted else torch.ones(20, dtype=torch.float64)
    refits = torch.zeros_like(y)
    for i in range(20):
        rest = torch.arange(20) != i
        part = KernelPath.from_kernel(kernel[rest][:, rest], y[rest], weight[rest], intercept=intercept)
        dual, b = part.solve(lam)
        refits[i] = kernel[i, rest] @ dual + b
    close(KernelPath.from_kernel(kernel, y, weight, intercept=intercept).leave_one_out(lam), refits, 1e-6)


@pytest.mark.parametrize("intercept", [False, True])
def test_one_sample(intercept, monkeypatch):
    """Its mean with an intercept, and never by d x d products, also if others have no weight."""
    x, y, _ = data(3, 7)
    monkeypatch.setattr("squareloss.ridge.scatter_eigen", None)
    by_features = FeaturePath.from_data(x, y, torch.tensor([0.0, 2.0, 0.0]), intercept=intercept)
    by_kernel = KernelPath.from_kernel(x[1:2] @ x[1:2].T, y[1:2], torch.tensor([2.0]), intercept=intercept)
    assert by_kernel.grid()
    share = 1.0 if intercept else float(x[1] @ x[1] / (x[1] @ x[1] + 0.5))
    for coefficients, b in (by_features.solve(1.0), (x[1:2].T @ by_kernel.solve(1.0)[0], by_kernel.solve(1.0)[1])):
        close(x[1] @ coefficients + b, share * y[1])
    loo = by_kernel.leave_one_out(1.0)
    close(leave_one_out(by_features, x[1:2], y[1:2], 1.0, torch.tensor([2.0])).nan_to_num(9.0), loo.nan_to_num(9.0))
    assert bool(loo.isnan().all()) if intercept else float(loo.abs().max()) < 1e-12  # nothing is left to fit


def test_singular_problems_at_lambda_zero_are_refused():
    x, y, _ = data(30, 5)
    with pytest.raises(ValueError, match="singular features \\(rank 5 of 6"):
        FeaturePath.from_data(torch.cat([x, x[:, :1]], 1), y).solve(0.0)
    with pytest.raises(ValueError, match="singular features"):
        FeaturePath.from_data(*data(10, 12)[:2]).solve(0.0)
    with pytest.raises(ValueError, match="singular kernel"):
        KernelPath.from_kernel(x @ x.T, y).solve(0.0)
    close(
        FeaturePath.from_data(x, y).solve(0.0)[0],
        torch.linalg.lstsq(x - x.mean(0), y - y.mean(0)).solution,
    )


def test_bad_input_is_refused():
    x, y, weight = data(10, 3)
    with pytest.raises(ValueError, match="finite x, got NaN"):
        FeaturePath.from_data(x.where(x < x.max(), torch.nan), y)
    for wrong in ((x, y[:-1]), (x[:, 0], y), (x, y[:, 0])):
        with pytest.raises(ValueError, match="same n"):
            FeaturePath.from_data(*wrong)
    with pytest.raises(ValueError, match="weights of shape"):
        FeaturePath.from_data(x, y, weight[:-1])
    with pytest.raises(ValueError, match="negative"):
        FeaturePath.from_data(x, y, -weight)
    with pytest.raises(ValueError, match="square kernel"):
        KernelPath.from_kernel(x, y)
    with pytest.raises(ValueError, match="positive weights"):
        KernelPath.from_kernel(x @ x.T, y, 0 * weight)
    with pytest.raises(ValueError, match="lambda >= 0, got -1"):
        FeaturePath.from_data(x, y).solve(-1)


def refits(x, y, lam, weight, intercept):
    """What fits without each sample predict for it, by an SVD of the features: none of their products is rounded."""
    predictions = torch.zeros_like(y)
    for i in range(len(x)):
        s = weight.clone()
        s[i] = 0
        mean, mean_y = (s @ x / s.sum(), s @ y / s.sum()) if intercept else (torch.zeros_like(x[0]), torch.zeros_like(y[0]))
        root = s.sqrt().unsqueeze(1)
        u, values, v = torch.linalg.svd((x - mean) * root, full_matrices=False)
        keep = values > 1e-13 * values[0]
        factor = (values / (values.square() + lam)).where(keep, 0.0).unsqueeze(1)
        predictions[i] = (x[i] - mean) @ (v.T @ (factor * (u.T @ ((y - mean_y) * root)))) + mean_y
    return predictions


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("lam", [1e-3, 1e-6, 1e-10])
@pytest.mark.parametrize(("n", "d", "repeated"), [(20, 300, 0), (20, 300, 4), (20, 20, 0), (21, 20, 0)])
def test_leave_one_out_of_fits_that_interpolate(n, d, repeated, lam, weighted, intercept):
    """1 - h goes to 0 with lambda; repeated samples beside others keep theirs."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, d, generator=generator, dtype=torch.float64), data(n, 3)[1]
    x[n - repeated :] = x[:repeated]
    weight = data(n, 3)[2] if weighted else torch.ones(n, dtype=torch.float64)
    if weighted:
        weight[5] = 0
    loo = leave_one_out(FeaturePath.from_data(x, y, weight, intercept=intercept), x, y, lam, weight)
    if repeated and lam < 1e-9:
        assert bool(loo[weight > 0].isnan().all())  # too near to the rounding of a null eigenvalue to tell
    else:
        close(loo, refits(x, y, lam, weight, intercept), 1e-7)


@pytest.mark.parametrize(("kind", "intercept"), [("nearly repeated", True), ("outlier", True), ("smooth", False)])
def test_leave_one_out_of_a_spectrum_without_a_gap(kind, intercept):
    """Beside null eigenvalues there are tiny ones, whose eigenvectors are rightly mixed with theirs."""
    _, y, weight = data(14, 3)
    for seed in range(30):
        x = torch.randn(14, 60, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        if kind == "smooth":
            x = torch.exp(-torch.cdist(0.05 * x[:, :3], x.T[:, :3]).square() / 3)
        x[4] = x[5]
        if kind == "nearly repeated":
            x[9] = x[0] + 1e-5 * x[1]
        if kind == "outlier":
            x[7], x[0] = x[3], 1e4 * x[0]
        path = FeaturePath.from_data(x, y, weight, intercept=intercept)
        lam = 1e-2 * float(path.values.max())
        close(leave_one_out(path, x, y, lam, weight), refits(x, y, lam, weight, intercept), 2e-10)


def test_leave_one_out_lost_in_rounding_is_nan():
    x, y, weight = data(60, 6)
    x[:, 5] = 0
    x[7, 5] = 1  # one sample has this feature to itself
    path = FeaturePath.from_data(x, y, weight)
    for lam, lost in ((1e-3, 0), (1e-8, 0), (1e-11, 1), (0.0, 1)):
        loo = leave_one_out(path, x, y, lam, weight)
        assert int(loo[:, 0].isnan().sum()) == lost == int(loo[7].isnan().all())


def test_features_that_are_constant_leave_the_mean_of_the_others():
    x, y, _ = data(6, 20)
    path = FeaturePath.from_data(0 * x + 1, y)
    close(leave_one_out(path, 0 * x + 1, y, 0.1), y.mean(0) + (y.mean(0) - y) / 5)
