"""The geometry of the simplex: vertices, coordinates, projection, and what undoes weights and smoothing."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch.autograd import gradcheck, gradgradcheck
from torch.testing import assert_close

from squareloss import simplex

CLASSES = st.integers(2, 40)
RADIUS = st.floats(0.01, 100)
SEEDS = st.integers(0, 2**31)
VALUES = st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=30).map(lambda v: torch.tensor(v, dtype=torch.float64))


def normal(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@given(CLASSES, RADIUS, st.booleans())
def test_codes_are_a_regular_simplex(num_classes, radius, reduced):
    codes = simplex.vertices(num_classes, radius, reduced=reduced)
    assert codes.shape == (num_classes, num_classes - reduced)
    expected = torch.full((num_classes, num_classes), -(radius**2) / (num_classes - 1), dtype=torch.float64)
    expected.fill_diagonal_(radius**2)
    assert_close(codes @ codes.T, expected, rtol=1e-9, atol=1e-9 * radius**2)
    assert_close(codes.sum(0), torch.zeros(codes.shape[1], dtype=torch.float64), rtol=0, atol=1e-12 * radius * num_classes)


@given(CLASSES, RADIUS)
def test_reduced_vertices_are_those_of_the_paper(num_classes, radius):
    """v_0 = 1/sqrt(2K) (1, ..., 1); v_i = e_i/sqrt(2) - (1 + 1/sqrt(K)) / ((K-1) sqrt(2)) (1, ..., 1), scaled to the radius."""
    ones = np.ones(num_classes - 1)
    first = ones / math.sqrt(2 * num_classes)
    shift = (1 + 1 / math.sqrt(num_classes)) / ((num_classes - 1) * math.sqrt(2))
    paper = np.stack([first, *(np.eye(num_classes - 1) / math.sqrt(2) - shift * ones)])
    paper *= radius / math.sqrt((num_classes - 1) / (2 * num_classes))  # the paper's have this norm
    sign = -1 if num_classes == 2 else 1  # with one output, class 1 is the positive one
    assert_close(simplex.vertices(num_classes, radius, reduced=True), torch.from_numpy(sign * paper))


def test_one_output_is_positive_for_class_one():
    assert simplex.vertices(2, 3.0, reduced=True).flatten().tolist() == pytest.approx([-3.0, 3.0])
    assert simplex.vertices(2, reduced=True).flatten().tolist() == pytest.approx([-1.0, 1.0])


@given(CLASSES, SEEDS)
def test_coordinates_are_isometric(num_classes, seed):
    a, f = normal(5, num_classes - 1, seed=seed), normal(5, num_classes, seed=seed + 1)
    assert_close(simplex.embed(a) @ simplex.embed(a).T, a @ a.T)
    assert_close(simplex.embed(a).sum(1), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-12)
    assert_close(simplex.reduce(simplex.embed(a)), a)
    assert_close(simplex.embed(simplex.reduce(f)), f - f.mean(1, keepdim=True))


def test_the_class_axis_is_one_or_zero():
    f = normal(2, 6, 3, 4)
    for function in (simplex.embed, simplex.reduce, simplex.project, simplex.clip):
        whole = function(f)
        assert_close(whole[1, :, 2, 3], function(f[1, :, 2, 3]))
        assert_close(whole[:, :, 1, 2], function(f[:, :, 1, 2]))
    with pytest.raises(ValueError, match="got a scalar"):
        simplex.class_dim(torch.tensor(1.0))


def bisect(eta):
    """max(eta - tau, 0) with tau by bisection: knows nothing of sorting."""
    low, high = eta.min() - 1, eta.max()
    for _ in range(200):
        tau = (low + high) / 2
        low, high = (tau, high) if np.maximum(eta - tau, 0).sum() > 1 else (low, tau)
    return np.maximum(eta - low, 0)


@given(VALUES)
def test_projection_agrees_with_bisection(eta):
    assert_close(simplex.project(eta), torch.from_numpy(bisect(eta.numpy())), rtol=0, atol=1e-10)


@pytest.mark.parametrize("num_classes", [2, 3, 10, 100, 1000])
@pytest.mark.parametrize("spread", [1e-3, 0.1, 1.0, 30.0])
def test_projection_agrees_with_bisection_at_any_size(num_classes, spread):
    eta = normal(4, num_classes, seed=num_classes) * spread
    expected = torch.from_numpy(np.stack([bisect(row) for row in eta.numpy()]))
    assert_close(simplex.project(eta), expected, rtol=0, atol=1e-10)
    assert_close(simplex.project(eta.float()), expected.float(), rtol=0, atol=2e-5 * max(spread, 1))


@pytest.mark.parametrize("seed", range(3))
def test_projection_agrees_with_a_general_solver(seed):
    eta = normal(5, seed=seed).numpy()
    found = minimize(
        lambda p: ((p - eta) ** 2).sum(),
        np.full(5, 0.2),
        jac=lambda p: 2 * (p - eta),
        method="SLSQP",
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        options={"ftol": 1e-14, "maxiter": 500},
    )
    assert_close(simplex.project(torch.from_numpy(eta)), torch.from_numpy(found.x), rtol=0, atol=1e-6)


@given(VALUES)
def test_projection_keeps_the_order_and_stays(eta):
    p = simplex.project(eta)
    assert (p >= 0).all()
    assert p.sum().item() == pytest.approx(1, abs=1e-12)
    order = eta.argsort()
    assert (p[order].diff() >= 0).all()
    assert p[eta.argmax()] == p.max()
    assert_close(simplex.project(p), p, rtol=0, atol=1e-14)


@given(VALUES, SEEDS)
def test_projection_never_worsens_the_brier_score(eta, seed):
    """Not only for every class but for every probability vector, which lies in the simplex too."""
    p = simplex.project(eta)
    truths = torch.cat([torch.eye(len(eta), dtype=torch.float64), torch.softmax(normal(5, len(eta), seed=seed), 1)])
    assert ((p - truths).square().sum(1) <= (eta - truths).square().sum(1) + 1e-12).all()


def test_projection_shares_ties():
    assert simplex.project(torch.tensor([0.7, 0.7, 0.1])).tolist() == pytest.approx([0.5, 0.5, 0.0])
    assert simplex.project(torch.full((7,), -3.0)).tolist() == pytest.approx([1 / 7] * 7)
    assert simplex.project(torch.tensor([1.0, 0.0, 0.0])).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("num_classes", [2, 10, 1000])
def test_projection_stands_offsets_and_half_precision(dtype, num_classes):
    eta = (torch.arange(num_classes) % 4 / 8).to(dtype)  # exact in every dtype
    exact = torch.from_numpy(bisect(eta.double().numpy()))
    p = simplex.project(eta)
    assert p.dtype == dtype
    assert_close(p.double(), exact, rtol=2 * torch.finfo(dtype).eps, atol=1e-6)
    offset = torch.tensor(2.0**20)  # 1 / torch.finfo(float32).eps is 2^23, so eighths survive
    if dtype in (torch.float32, torch.float64):
        assert_close(simplex.project(eta + offset.to(dtype)), p, rtol=0, atol=1e-6)
        assert_close(simplex.project(eta - offset.to(dtype)), p, rtol=0, atol=1e-6)


def test_nan_stays_nan_in_its_row_only():
    eta = torch.tensor([[0.2, math.nan, 0.1], [0.5, 0.2, 0.1]])
    for function in (simplex.project, simplex.clip):
        p = function(eta)
        assert p[0].isnan().any()
        assert not p[1].isnan().any()
    assert simplex.project(eta)[0].isnan().all()
    assert simplex.project(torch.tensor([0.0, 0.5, -math.inf])).tolist() == pytest.approx([0.25, 0.75, 0.0])


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # from within torch's forward mode
@pytest.mark.parametrize("shape", [(6,), (3, 5), (2, 4, 3)])
def test_projection_is_differentiable(shape):
    eta = normal(*shape, seed=3).requires_grad_()
    assert gradcheck(simplex.project, eta, check_forward_ad=True)
    assert gradgradcheck(simplex.project, eta)


def test_the_jacobian_centres_the_classes_kept():
    eta = torch.tensor([0.6, 0.5, 0.3, -0.7, 0.1], dtype=torch.float64)
    kept = (simplex.project(eta) > 0).double()
    expected = torch.diag(kept) - torch.outer(kept, kept) / kept.sum()
    assert_close(torch.func.jacrev(simplex.project)(eta), expected)
    vertex = torch.eye(5, dtype=torch.float64)[1]  # at a corner the classes cut off get no gradient
    assert_close(torch.func.jacrev(simplex.project)(vertex).sum(0), torch.zeros(5, dtype=torch.float64))


def test_projection_in_vmap_and_compiled():
    eta, weight = normal(7, 5), torch.tensor([1.0, 2.0, 3.0, 0.5, 1.0])
    assert_close(torch.func.vmap(simplex.project)(eta), simplex.project(eta))

    def read(eta):
        return simplex.undo_smoothing(simplex.undo_weight(simplex.project(eta), weight), 0.1)

    assert_close(torch.compile(read, fullgraph=True, backend="aot_eager")(eta), read(eta))


def test_clip_renormalises():
    assert simplex.clip(torch.tensor([0.5, 1.5, -1.0])).tolist() == pytest.approx([1 / 3, 2 / 3, 0])
    assert simplex.clip(torch.tensor([-0.5, -1.0])).tolist() == [0.5, 0.5]
    eta = torch.tensor([[0.5, 0.3, -0.1], [-1.0, -2.0, -3.0]], dtype=torch.float64, requires_grad=True)
    simplex.clip(eta).square().sum().backward()
    assert eta.grad.isfinite().all()


@given(CLASSES, SEEDS, st.floats(0, 0.9))
def test_weights_and_smoothing_are_undone(num_classes, seed, smoothing):
    eta = torch.softmax(normal(4, num_classes, seed=seed), 1)
    weight = torch.exp(normal(num_classes, seed=seed + 1))
    smoothed = (1 - smoothing) * eta + smoothing / num_classes
    seen = weight * smoothed / (weight * smoothed).sum(1, keepdim=True)
    assert_close(simplex.undo_smoothing(simplex.undo_weight(seen, weight), smoothing), eta)


def test_bad_input_says_what_was_expected():
    p = torch.full((2, 3), 1 / 3)
    with pytest.raises(ValueError, match=r"expected num_classes >= 2, got 1"):
        simplex.vertices(1)
    with pytest.raises(TypeError, match="expected floating-point outputs, got torch.int64"):
        simplex.project(torch.tensor([1, 2]))
    with pytest.raises(TypeError, match="expected floating-point"):
        simplex.clip(torch.tensor([1, 2]))
    with pytest.raises(ValueError, match=r"expected weight of shape \(3,\), one per class, got \(2,\)"):
        simplex.undo_weight(p, torch.ones(2))
    with pytest.raises(ValueError, match="expected positive class weights"):
        simplex.undo_weight(p, torch.tensor([1.0, 0.0, 1.0]))
    with pytest.raises(ValueError, match=r"label_smoothing in \[0, 1\), got 1"):
        simplex.undo_smoothing(p, 1.0)
