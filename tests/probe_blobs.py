"""Noisy classes for the tests of the probe, and what it means that two probes are the same."""

import numpy as np
import torch

from squareloss.codings import Simplex

TIGHT = {"rtol": 1e-8, "atol": 1e-8}


def blobs(n=120, d=6, classes=3, seed=0, spread=2.0):
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((classes, d))
    y = rng.integers(0, classes, n)
    return centres[y] + spread * rng.standard_normal((n, d)) + 10, y


def codes(y, classes):
    return Simplex().encode(torch.as_tensor(y), classes).double().numpy()


def same_model(a, b, **tolerance):
    tolerance = tolerance or TIGHT
    np.testing.assert_allclose(a.coef_, b.coef_, **tolerance)
    np.testing.assert_allclose(a.intercept_, b.intercept_, **tolerance)


def same_choice(a, b):
    np.testing.assert_allclose(a.path_["brier"], b.path_["brier"], rtol=1e-7)
    np.testing.assert_allclose([a.lambda_, a.temperature_, a.bend_], [b.lambda_, b.temperature_, b.bend_], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(a.shift_, b.shift_, atol=1e-6)
