"""`NTKClassifier`: an infinitely wide network trained with square loss, in closed form, in scikit-learn's interface."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.metrics import accuracy_score
from torch import Tensor

from squareloss import _checks
from squareloss import _estimator_inputs as inputs
from squareloss._all_or_nothing import all_or_nothing
from squareloss._probability_map import fit_curve
from squareloss._selection import CRITERIA, encode
from squareloss.ntk.cholesky import Factor
from squareloss.ntk.iterative import Nystrom, conjugate_gradients, default_rank
from squareloss.ntk.kernels import Kernel, check_memory, on_sphere, to_sphere
from squareloss.ntk.solve import Solution, Spectral, check_kernel, kernel_matrix

SOLVERS = ("auto", "exact", "iterative")
EXACT, CHOICE = 10_000, 4000  # samples up to which "auto" is exact: at one mu, and to choose mu
LARGEST = 1e30  # mean of the weights, and 1 over the least: the iterative solver computes in float32
HELD_OUT = 4096  # samples at most, to choose by where leave-one-out has no closed form
LeftOut = tuple[Tensor, Tensor, Tensor]  # scores (m, K) of samples left out, at the mu chosen; their labels and weights (m,)


class NTKClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Kernel ridge on simplex codes with the kernel of a wide network: what its training by square loss tends to.

    It minimises sum_i |f(x_i) - v_{y_i}|^2 + mu |f|^2 with the codes v_y = K e_y - 1 and the norm of the kernel's space; mu
    stands beside a sum, as in the paper. The K scores f sum to zero. mu is chosen, and the map from scores to probabilities
    fitted, as in `RidgeProbe`: on exact leave-one-out scores, so that no data are held out. The iterative solver has none:
    there a fifth of the samples, 4,096 at most, are held out for both, and the final fit is of all of them.

    Numpy arrays and tensors are both taken, and answers come back in kind.

    Example: `model = NTKClassifier().fit(X, y)`, then `model.predict_proba(new)`; `model.mu_` is the penalty chosen.

    Arguments:
        mu: the penalty > 0, or several to choose from; 0 interpolates (exact solver, distinct points). None, the default,
            chooses from 28 values from 1e-6 to 1e3 times the kernel's diagonal and the mean weight of a sample, or from 5 of
            them with the iterative solver.
        kernel: a kernel on the sphere; None is `NTK()`.
        bias: whether inputs are put on the sphere: features are centred and scaled so that |x|^2 is 1 on average, and
            (x, 1) / |(x, 1)| is taken. If False they must lie on the unit sphere, and others are refused.
        scale_features: divide each feature by its own standard deviation; if False, all by one number, which is right for
            pixels and others that share a unit.
        solver: "exact" takes 8 n^2 bytes, four times that and an eigendecomposition to choose mu; "iterative" none of that;
            "auto" is exact up to 10,000 samples at one mu, and up to 4,000 to choose.
        criterion: what mu is chosen by: "brier", the squared error of eta = (1 + f)/K, or "accuracy".
        tolerance: relative residual of the iterative solver.
        memory_gb: refuse to take more; if None, more than the device has free.
        device: where to compute, as for `SquareLossClassifier`; None is where the tensor lies, or the CPU.
        random_state: seed of the iterative solver's samples, or a `RandomState` or None to draw one.
        verbose: show progress.

    Attributes after fitting:
        classes_: (K,). mu_: the mu chosen. dual_coef_: (n, K), of the samples of positive weight.
        path_: {"mu", "brier", "accuracy"} of every candidate. solution_: f itself, a `Solution`.
        temperature_, bend_, shift_ (K,): of the probabilities, as in `RidgeProbe`.
    """

    def __init__(
        self,
        mu: float | Sequence[float] | None = None,
        *,
        kernel: Kernel | None = None,
        bias: bool = True,
        scale_features: bool = True,
        solver: str = "auto",
        criterion: str = "brier",
        tolerance: float = 1e-6,
        memory_gb: float | None = None,
        device: str | torch.device | None = None,
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.mu = mu
        self.kernel = kernel
        self.bias = bias
        self.scale_features = scale_features
        self.solver = solver
        self.criterion = criterion
        self.tolerance = tolerance
        self.memory_gb = memory_gb
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> NTKClassifier:
        """Fit features X (n, d) and labels y (n,), with squares weighted by sample_weight (n,), which are not negative.

        Samples of weight 0 count for nothing, but their classes are known; leaving a sample out removes it whatever its weight.
        The mean weight is from 1e-30 to 1e30. A fit that is refused or interrupted changes nothing.
        """
        with all_or_nothing(self):
            X = inputs.features(self, X, reset=True)
            columns, many = inputs.labels(y, len(X))
            if many:
                raise ValueError(f"expected one label a sample, y of shape ({len(X)},), got shape {np.shape(y)}")
            mus = self._check_options()
            self._device, self._seed = inputs.device_for(X, self.device), inputs.seed(self.random_state)
            weight = inputs.weights(sample_weight, X, self._device)
            present = weight > 0
            if (count := int(present.sum())) < 2:
                raise ValueError(
                    f"expected at least 2 samples{'' if count == len(X) else ' of positive weight'}, got n_samples = {count}; "
                    "leave-one-out needs one to be left, and weights of zero leave none"
                )
            if not 1 / LARGEST <= (mean := float(weight.mean())) <= LARGEST:
                raise ValueError(
                    f"expected weights of {1 / LARGEST:.0e} to {LARGEST:.0e} on average, got {mean:.0e}; "
                    "multiply all of them by one number, and mu too"
                )
            self.classes_ = np.unique(columns[:, 0])
            if len(self.classes_) < 2:
                raise ValueError(f"expected two classes or more, got one class: {self.classes_.tolist()}")
            labels = torch.from_numpy(inputs.indices(self.classes_, columns[:, 0])).to(self._device)
            if count < len(X):
                X = X[present.to(X.device) if isinstance(X, Tensor) else present.cpu().numpy()]
                labels, weight = labels[present], weight[present]
            points = self._place(X, weight)
            limit = EXACT if mus is not None and len(mus) == 1 else CHOICE
            exact = self.solver == "exact" or (self.solver == "auto" and len(points) <= limit)
            left = (self._fit_exact if exact else self._fit_iterative)(points, labels, weight, mus)
            frequency = torch.bincount(labels, weight, minlength=len(self.classes_)) / weight.sum()
            self._curve = fit_curve(*left, frequency, progress=self.verbose)
            return self

    def decision_function(self, X: Any) -> Any:
        """The scores f + shift_ (n, K), zero-sum; for two classes those of the second, (n,)."""
        scores = self._shifted(X)
        return inputs.in_kind(scores[:, 1] if scores.shape[1] == 2 else scores, X)

    def predict_proba(self, X: Any) -> Any:
        """Class probabilities (n, K)."""
        scores = self._scores(X)
        return inputs.in_kind(self._curve.probabilities(scores), X)

    def predict(self, X: Any) -> Any:
        """The class of the largest score, (n,)."""
        positions = self._shifted(X).argmax(1).cpu().numpy()
        return inputs.labels_in_kind(self.classes_[positions], X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy of `predict`; tensors may lie on a GPU."""
        y, predicted, weight = (inputs.array(given) for given in (y, self.predict(X), sample_weight))
        return float(accuracy_score(y, predicted, sample_weight=weight))

    @property
    def mu_(self) -> float:
        """The mu chosen."""
        return self._fitted().mu

    @property
    def dual_coef_(self) -> Any:
        """The coefficients (n, K) of the kernel at every sample."""
        return self._fitted().dual.cpu().numpy()

    @property
    def temperature_(self) -> float:
        """The temperature t of the probabilities."""
        return len(self.classes_) / self._curve.slope

    @property
    def bend_(self) -> float:
        """The bend c of the probabilities."""
        return self._curve.bend / self._curve.slope

    @property
    def shift_(self) -> Any:
        """What is added to the scores, (K,)."""
        return (len(self.classes_) * self._curve.shift).cpu().numpy()

    def _check_options(self) -> list[float] | None:
        """The candidates for mu, or None for the default ones, if all options can be."""
        _checks.choose("solver", self.solver, SOLVERS)
        _checks.choose("criterion", self.criterion, CRITERIA)
        mus = None if self.mu is None else inputs.candidates(self.mu, "mu")
        for mu in mus or []:
            _checks.not_negative("mu", mu)
        check_kernel(self.kernel)
        return mus

    def _place(self, X: Any, weight: Tensor | None = None) -> Tensor:
        """Points of the sphere (n, d + 1), or the inputs themselves (n, d) if they are there, to within their precision.

        Those of a fit come with their weights, and say where the centre is, and what the scale.
        """
        if not self.bias:
            x = inputs.tensor(X)
            return on_sphere(x if x.is_floating_point() else x.double(), "X").to(self._device)
        x = inputs.tensor(X).to(self._device).double()
        if weight is not None:
            inputs.check_size(x)
            share = weight / weight.sum()
            self._mean = share @ x
            variance = (share @ (x - self._mean).square()).where(x.amax(0) > x.amin(0), 0.0)  # not the rounding of a constant
            variance = variance if self.scale_features else variance.mean().expand_as(variance)
            self._scale = (torch.where(variance > 0, variance, 1.0) * x.shape[1]).sqrt()
        return to_sphere((x - self._mean) / self._scale)

    def _fit_exact(self, points: Tensor, labels: Tensor, weight: Tensor, mus: list[float] | None) -> LeftOut:
        """mu by exact leave-one-out; its scores of all samples."""
        kernel = check_kernel(self.kernel)
        codes = encode(labels.unsqueeze(1), [len(self.classes_)])
        if mus is not None and len(mus) == 1:
            mu, root = mus[0], weight.sqrt().unsqueeze(1)
            matrix = kernel_matrix(kernel, points, self.memory_gb).mul_(root).mul_(root.T)
            factor = Factor.of(matrix, mu, points, progress=self.verbose)
            self.solution_ = Solution(kernel, points, root * factor.solve(root * codes), mu)
            left_out = codes - self.solution_.dual / (weight * factor.inverse_diagonal()).unsqueeze(1)
            self._choose([mu], [left_out], codes, labels, weight)
        else:
            spectral = Spectral.of(points, codes, kernel, weight=weight, memory_gb=self.memory_gb, progress=self.verbose)
            mus = mus or spectral.eigen.grid()
            left_out, mu = self._choose(mus, spectral.leave_one_out_path(mus), codes, labels, weight)
            self.solution_ = spectral.ridge(mu)
        return left_out, labels, weight

    def _fit_iterative(self, points: Tensor, labels: Tensor, weight: Tensor, mus: list[float] | None) -> LeftOut:
        """mu by samples held out, from the largest mu down, and their scores; then all samples."""
        if mus is not None and 0 in mus:
            raise ValueError("expected mu > 0 for the iterative solver, got mu = 0; raise it, or use solver='exact'")
        kernel, needed = check_kernel(self.kernel), 4.0 * len(points) * default_rank(len(points))
        check_memory(needed, points.device, self.memory_gb, "RidgeProbe on RandomFeatures")
        order = torch.randperm(len(points), generator=torch.Generator().manual_seed(self._seed)).to(points.device)
        held = min(HELD_OUT, max(1, len(points) // 5))
        out, rest = order[:held], order[held:]
        codes = encode(labels.unsqueeze(1), [len(self.classes_)])
        level = kernel.diagonal * float(weight.mean())
        mus = sorted(mus or [level * 10.0**k for k in range(-2, 3)], reverse=True)
        solve = partial(
            conjugate_gradients, kernel=kernel, dtype=torch.float32, seed=self._seed, memory_gb=self.memory_gb,
            progress=self.verbose,
        )  # fmt: skip
        x, y, s = points[rest], codes[rest], weight[rest]
        nystrom = Nystrom.of(
            kernel, x, default_rank(len(rest)), weight=s, seed=self._seed, dtype=torch.float32, progress=self.verbose,
        )  # fmt: skip
        start, scores, duals = None, [], []
        for mu in mus:
            solution = solve(x, y, mu, weight=s, tolerance=max(self.tolerance, 1e-3), start=start, preconditioner=nystrom)
            start = solution.dual
            scores.append(solution(points[out]))
            duals.append(start)
        chosen, mu = self._choose(mus, scores, codes[out], labels[out], weight[out])
        start = torch.zeros_like(codes)
        start[rest] = duals[mus.index(mu)]
        self.solution_ = solve(points, codes, mu, weight=weight, tolerance=self.tolerance, start=start)
        return chosen, labels[out], weight[out]

    def _choose(
        self, mus: list[float], scores: list[Tensor], codes: Tensor, labels: Tensor, weight: Tensor
    ) -> tuple[Tensor, float]:
        """The scores and the mu that are best on samples that were left out."""
        k, total = codes.shape[1], float(weight.sum())  # divided by last: so many hits are as many, whichever they are
        brier = [float(weight @ (f - codes).square().sum(1)) / (k**2 * total) for f in scores]
        accuracy = [float(weight @ (f.argmax(1) == labels).double()) / total for f in scores]
        self.path_ = {"mu": mus, "brier": brier, "accuracy": accuracy}
        best = int(np.argmin(brier) if self.criterion == "brier" else np.argmax(accuracy))
        return scores[best], mus[best]

    def _fitted(self) -> Solution:
        if not hasattr(self, "solution_"):
            raise NotFittedError("this NTKClassifier is not fitted yet; call fit first")
        return self.solution_

    def _scores(self, X: Any) -> Tensor:
        solution = self._fitted()
        return solution(self._place(inputs.features(self, X, reset=False)))

    def _shifted(self, X: Any) -> Tensor:
        return self._scores(X) + len(self.classes_) * self._curve.shift
