"""Kernels and solvers on a GPU give what they give on the CPU."""

import pytest
import torch

from squareloss.ntk import NTK, Laplace, NTKClassifier, Spectral, TwoLayerNTK, conjugate_gradients, ridge, ridge_path, to_sphere
from squareloss.ntk.cholesky import Factor
from squareloss.ntk.kernels import _gpu

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
KERNELS = [NTK(), TwoLayerNTK(), Laplace(0.7)]


def problem(n, d=5, outputs=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = to_sphere(torch.randn(n, d, generator=generator, dtype=torch.float64))
    return x, torch.randn(n, outputs, generator=generator, dtype=torch.float64)


def relative(found, expected):
    return float((found.cpu() - expected).norm() / expected.norm())


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
def test_matrices_and_products(kernel):
    x, v = problem(700)
    z, _ = problem(300, seed=1)
    z[:5] = x[:5]
    for a, b, thin in ((x, None, v), (z, x, v), (z, x, v[:, 0])):
        there = None if b is None else b.cuda()
        assert relative(kernel.matrix(a.cuda(), there, tile=256), kernel.matrix(a, b)) < 1e-8
        assert relative(kernel.product(a.cuda(), there, thin.cuda(), tile=256), kernel.product(a, b, thin)) < 1e-8


@pytest.mark.parametrize("kernel", KERNELS, ids=repr)
@pytest.mark.parametrize(("d", "outputs"), [(2, 1), (10, 1), (10, 3), (40, 16), (100, 2), (5, 20)])
def test_products_in_float32(kernel, d, outputs):
    """In registers up to 64 coordinates and 16 outputs, by tiles beyond; with more than one chunk of columns."""
    x, v = problem(5000, d, outputs)
    z, _ = problem(150, d, seed=1)
    assert _gpu() is not None, "no Triton beside this torch"
    for a, b in ((x, None), (z, x)):
        found = kernel.product(a.cuda(), None if b is None else b.cuda(), v.cuda(), dtype=torch.float32)
        assert found.dtype == torch.float64 and relative(found, kernel.product(a, b, v)) < 3e-5


def test_float32_stays_float32_beside_tf32():
    x, v = problem(500, 100)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        found = NTK().product(x.cuda(), None, v.cuda(), dtype=torch.float32)
        assert torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False
    assert relative(found, NTK().product(x, None, v)) < 3e-5


@pytest.mark.parametrize("block", [64, 4096])
def test_factorisation(block):
    x, y = problem(700)
    matrix = NTK().matrix(x)
    factor = Factor.of(matrix.cuda(), 0.1, block=block)
    here = Factor.of(matrix.clone(), 0.1)
    assert relative(factor.solve(y.cuda()), here.solve(y)) < 1e-9
    assert relative(factor.inverse_diagonal(), here.inverse_diagonal()) < 1e-9


def test_solvers():
    x, y = problem(700)
    cuda = x.cuda(), y.cuda()
    expected = ridge(x, y, 0.1).dual
    assert relative(ridge(*cuda, 0.1).dual, expected) < 1e-7
    assert relative(ridge_path(*cuda, [10.0, 0.1, 0.15])[1].dual, expected) < 1e-7
    assert relative(Spectral.of(*cuda).ridge(0.1).dual, expected) < 1e-7
    for dtype in (torch.float64, torch.float32):
        found = conjugate_gradients(*cuda, 0.1, tolerance=1e-9, rank=100, dtype=dtype)
        assert found.residual <= 1e-9 and relative(found.dual, expected) < 1e-6


def test_classifier():
    x, _ = problem(400)
    labels = (x[:, 0] * x[:, 1] > 0).long()
    here, there = NTKClassifier(0.1).fit(x, labels), NTKClassifier(0.1, device="cuda").fit(x, labels)
    torch.testing.assert_close(there.predict_proba(x), here.predict_proba(x), atol=1e-6, rtol=0)
    assert there.score(x.cuda(), labels.cuda()) == here.score(x, labels)
