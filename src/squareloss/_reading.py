"""How the estimator reads class probabilities from scores, fitted on held-out samples.

Square loss shrinks where a network is unsure, so on data it cannot fit well its linear estimate eta is underconfident, although
its classes are right; `benchmarks/estimator.py` shows by how much. Three readings, each with one parameter more:

    the loss's own          eta projected onto the simplex, or the softmax of cross-entropy
    a slope                 p = softmax(a scores), which is temperature scaling
    a slope and a floor     p = (1 - e) softmax(a scores) + e / K, for labels that are wrong at random

Slope and floor minimise the negative log likelihood of the held-out labels. The floor stays if it gains more than log(n), twice
Schwarz's price of a parameter; and all that stays if it lowers the Brier score below that of the loss's own reading. The labels
are smoothed a little first, as by Platt (1999): n labels that were all right still leave room for a wrong one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit, softmax

ENOUGH = 50  # held-out samples; fewer say too little
DOUBT = 0.25  # of one label is spread over all classes; on digits, a tenth to a half of one did equally well, one did worse

Array = np.ndarray


@dataclass(frozen=True)
class Reading:
    """p = (1 - floor) softmax(slope scores - log weight) + floor / K: class weights w_k (K,) are undone on the way."""

    slope: float
    floor: float
    class_weight: Array

    def probabilities(self, scores: Array) -> Array:
        """Class probabilities (n, K) of scores (n, K)."""
        p: Array = softmax(self.slope * scores - np.log(self.class_weight), axis=1)
        mixed: Array = (1 - self.floor) * p + self.floor / scores.shape[1]
        return mixed


def fit(scores: Array, labels: Array, weight: Array, class_weight: Array, own: Array) -> Reading | None:
    """The best reading of held-out scores (n, K) with class indices (n,) and sample weights (n,).

    `own` (n, K) are the probabilities in the loss's own reading; None says that they are the best, or that n is too small.
    """
    n, classes = scores.shape
    spread = float(scores.std(axis=1).mean())
    if n < ENOUGH or spread == 0:
        return None
    weight = weight / weight.mean()
    targets = np.full((n, classes), DOUBT / n / classes)
    targets[np.arange(n), labels] += 1 - DOUBT / n
    problem = _Problem(scores / spread, targets, weight, np.log(class_weight))
    slope, floor = problem.solve()
    reading = Reading(slope / spread, floor, class_weight)
    return reading if _brier(reading.probabilities(scores), labels, weight) < _brier(own, labels, weight) else None


@dataclass(frozen=True)
class _Problem:
    scores: Array  # (n, K)
    targets: Array  # (n, K)
    weight: Array  # (n,)
    offset: Array  # (K,)

    def solve(self) -> tuple[float, float]:
        """The slope and the floor."""
        bounds = [(math.log(1e-3), math.log(1e3)), (logit(1e-6), logit(0.9))]
        one = minimize(lambda x: self.loss(x, 0.0), [1.0], jac=True, bounds=bounds[:1])
        start = [one.x[0] + 0.3, logit(0.05)]  # with a floor the slope is steeper
        two = minimize(lambda x: self.loss(x, expit(x[1])), start, jac=True, bounds=bounds)
        if one.fun - two.fun > math.log(len(self.scores)):
            return math.exp(two.x[0]), float(expit(two.x[1]))
        return math.exp(one.x[0]), 0.0

    def loss(self, point: Array, floor: float) -> tuple[float, Array]:
        """The negative log likelihood, summed, and its gradient in a point log(slope), or log(slope) and logit(floor)."""
        slope = math.exp(point[0])
        p = softmax(slope * self.scores - self.offset, axis=1)
        q = np.maximum((1 - floor) * p + floor / p.shape[1], 1e-300)
        ratio = self.weight[:, None] * self.targets / q
        centred = self.scores - (p * self.scores).sum(axis=1, keepdims=True)
        by_slope = -slope * (1 - floor) * (ratio * p * centred).sum()
        by_floor = -floor * (1 - floor) * (ratio * (1 / p.shape[1] - p)).sum()
        gradient = np.array([by_slope, by_floor])[: len(point)]
        return float(-(self.weight[:, None] * self.targets * np.log(q)).sum()), gradient


def _brier(p: Array, labels: Array, weight: Array) -> float:
    at_label = p[np.arange(len(p)), labels]
    return float(np.mean(weight * ((p**2).sum(axis=1) - 2 * at_label + 1)))
