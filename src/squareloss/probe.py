"""`RidgeProbe`: a calibrated classifier on fixed features, in closed form; `RandomFeatures` to widen them.

Multiclass square loss with simplex codes is ridge regression, so a probe on frozen embeddings needs no optimiser: one
eigendecomposition gives every lambda, exact leave-one-out picks one and fits the probabilities, and the sums over samples
behind it can be updated, widened by classes, and taken back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from torch import Tensor

from squareloss import _estimator_inputs as inputs
from squareloss._all_or_nothing import all_or_nothing
from squareloss._checks import choose
from squareloss._estimator_inputs import Array
from squareloss._probe_engine import Engine, Options
from squareloss._random_features import RandomFeatures
from squareloss._selection import CRITERIA, Block

__all__ = ["RandomFeatures", "RidgeProbe"]

CALIBRATIONS = ("full", "temperature")
CPU = torch.device("cpu")


class RidgeProbe(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A multiclass linear classifier by square loss in closed form, with calibrated probabilities and exact updates.

    It minimises sum_i s_i |f(x_i) - v_{y_i}|^2 + lambda |W|^2 over f(x) = W (x / scale) + b, with the simplex codes
    v_y = K e_y - 1 and b free of penalty. The K scores f sum to zero. lambda stands beside a sum, as `alpha` in scikit-learn's
    ridge. It is chosen, and the map from scores to probabilities fitted, on exact leave-one-out scores: no data are held out.
    Leave-one-out means that sample i is removed and W and b are solved again; the scale of the features stays that of all.

    With calibration="full", scores are shifted along the logarithms of the class frequencies, f <- f + shift, which moves the
    thresholds between frequent and rare classes, and probabilities are softmax((f - c f^2 / K) / t); with "temperature" they
    are softmax(f / t). Shift, bend c and temperature t have maximum likelihood on the leave-one-out scores. From nine tenths of
    the way to the vertex of this parabola the map goes on as a straight line, so that a larger score is never less probable.

    Numpy arrays and tensors are both taken, and answers come back in kind. Everything is computed in float64.

    Example: `probe = RidgeProbe().fit(embeddings, labels)`, then `probe.predict_proba(new)` and `probe.lambda_`.

    Arguments:
        lambdas: a number >= 0, or several to choose from. None, the default, is 28 values from 1e-6 to 1e3 times the mean
            eigenvalue of the scatter.
        criterion: what the leave-one-out scores are judged by: "brier", the squared error of eta = (1 + f)/K, or "accuracy".
        fit_intercept: whether there is a b.
        scale_features: divide each feature by its standard deviation.
        class_weight: None, {class: weight}, or "balanced" (`fit` only, and `forget` refuses it), which is n / (K n_k), samples
            counted by their weights. `predict_proba` undoes it, so that its probabilities are those of the data as they come;
            `predict` keeps it: it is the argmax of the weighted scores.
        calibration: "full" or "temperature", as above.
        device: where to compute, as for `SquareLossClassifier`; None is where the tensor lies, or the CPU.
        random_state: seed of the choice of samples that a stream is judged by.
        verbose: show progress, with an estimate of the time left.

    Attributes after fitting (lists of them, if y has several columns):
        classes_: (K,). coef_: (K, d) and intercept_: (K,), for features as they come.
        lambda_, temperature_, bend_ and shift_, (K,): what was chosen.
        path_: {"lambda", "brier", "accuracy"}: the leave-one-out results of every candidate.
    """

    def __init__(
        self,
        lambdas: float | Sequence[float] | None = None,
        *,
        criterion: str = "brier",
        fit_intercept: bool = True,
        scale_features: bool = True,
        class_weight: dict[Any, float] | str | None = None,
        calibration: str = "full",
        device: str | torch.device | None = None,
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.lambdas = lambdas
        self.criterion = criterion
        self.fit_intercept = fit_intercept
        self.scale_features = scale_features
        self.class_weight = class_weight
        self.calibration = calibration
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> RidgeProbe:
        """Fit features X (n, d) and labels y (n,), or (n, S) for S label sets that share one decomposition.

        X may be a numpy memmap: with n > d + 1 it is read in slices, in three passes. With fewer samples the n x n matrix of
        products is decomposed instead, which keeps leave-one-out exact where the fit interpolates.

        Samples of weight 0 count for nothing; leaving a sample out removes it whatever its weight. A lambda so small that
        leave-one-out is lost in rounding is never chosen: its results in `path_` are NaN, and a warning says so.
        If it is the only one, there may be coefficients and predictions but no probabilities.
        """
        with all_or_nothing(self):
            X = inputs.features(self, X, reset=True)
            columns, many = inputs.labels(y, len(X))
            if len(X) < 2:
                raise ValueError(f"expected at least 2 samples, got n_samples = {len(X)}; leave-one-out needs one to be left")
            self._begin(X, many, _two_or_more([np.unique(column) for column in columns.T]))
            self._engine.class_weight = self._class_weight(self._classes, columns[:, 0], inputs.weights(sample_weight, X, CPU))
            if len(X) <= X.shape[1] + self.fit_intercept:
                inputs.check_size(X)
                self._engine.fit_wide(next(self._blocks(X, columns, sample_weight, size=len(X))))
                return self
            for block in self._blocks(X, columns, sample_weight, "sums"):
                inputs.check_size(block[0])
                self._engine.add(block)
            self._engine.solve(lambda: self._blocks(X, columns, sample_weight, "leave-one-out"))
            return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> RidgeProbe:
        """Add samples: the same W and b as one `fit` of all of them, at the same lambda.

        The sums over samples are kept, d x d numbers, and up to 4096 samples drawn uniformly from the stream (fewer for a
        while, if some of them are forgotten). The choice among several lambdas and the probability map rest on the exact
        leave-one-out scores of those samples; as long as no more came, that is what `fit` does. Solving waits until a
        prediction or a fitted attribute is asked for.

        Arguments:
            X, y, sample_weight: as in `fit`.
            classes: classes to know from now on, beside those known; a list of them for several label sets. On the first
                call the default is those of y; later, a label that is not known is an error unless it is named here. Numbers
                beside text are refused.
        """
        with all_or_nothing(self):
            first = not hasattr(self, "classes_")
            X = inputs.features(self, X, reset=first)
            columns, many = inputs.labels(y, len(X))
            named = None if classes is None else _as_sets(classes, columns.shape[1])
            if first:
                named = _two_or_more([np.unique(column) for column in columns.T] if named is None else named)
            return self._add(X, columns, many, named, sample_weight)

    def fit_chunks(self, chunks: Iterable[Any] | Callable[[], Iterable[Any]]) -> RidgeProbe:
        """Fit data that come in chunks (X, y) or (X, y, sample_weight), and need not fit in memory together.

        A list, anything else that can be iterated again, or a function that returns an iterator is read three times, and
        the result is that of `fit`. A plain iterator can be read only once, and the result is that of `partial_fit` on every
        chunk. Classes are added as they turn up.
        """
        again = chunks if callable(chunks) else functools.partial(iter, chunks)
        with all_or_nothing(self):
            self.__dict__.pop("classes_", None)
            for X, y, *weight in inputs.watch(again(), None, "sums", verbose=self.verbose):
                checked = inputs.features(self, X, reset=not hasattr(self, "classes_"))
                columns, many = inputs.labels(y, len(X))
                self._add(checked, columns, many, [np.unique(column) for column in columns.T], weight[0] if weight else None)
            if not hasattr(self, "classes_"):
                raise ValueError("expected chunks (X, y), got none; an iterator that was used up cannot be read again")
            _two_or_more(self._classes)
            if callable(chunks) or again() is not chunks:
                count = self._engine.count
                self._engine.solve(lambda: inputs.watch(self._rechunk(again()), count, "leave-one-out", verbose=self.verbose))
            return self

    def forget(self, X: Any, y: Any, sample_weight: Any = None) -> RidgeProbe:
        """Take samples back: the same W and b as if they had never been fitted, at the same lambda.

        They must have been fitted, with these labels and weights. That is checked only as far as the sums can tell: more of a
        class than there were, or samples further out than any can have been, are refused; others that were never fitted are
        not noticed, and leave a fit that no data have. If a long stream forgets all samples that were kept of it, there are no
        probabilities until more come, and lambda can't be chosen.
        """
        self._require_fitted()
        self._refuse_balanced("are forgotten")
        X = inputs.features(self, X, reset=False)
        inputs.check_size(X)
        self._engine.forget(list(self._blocks(X, inputs.labels(y, len(X))[0], sample_weight)))
        return self

    def decision_function(self, X: Any) -> Any:
        """The scores X coef_' + intercept_ + shift_ (n, K), zero-sum; for two classes those of the second, (n,)."""
        return self._answer([f[:, 1] if f.shape[1] == 2 else f for f in self._shifted(self._scores(X))], X)

    def predict_proba(self, X: Any) -> Any:
        """Class probabilities (n, K), calibrated on the leave-one-out scores, with class weights undone."""
        scores = self._scores(X)
        return self._answer([s.curve.probabilities(f) for s, f in zip(self._engine.solution(), scores, strict=True)], X)

    def predict(self, X: Any) -> Any:
        """The class of the largest score, (n,), or (n, S)."""
        positions = [scores.argmax(1).cpu().numpy() for scores in self._shifted(self._scores(X))]
        names = [classes[position] for classes, position in zip(self._classes, positions, strict=True)]
        answer = np.stack(names, 1) if self._many else names[0]
        return inputs.labels_in_kind(answer, X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy of `predict`; with several label sets the mean of their accuracies (a sample may be right in some)."""
        predicted = inputs.array(self.predict(X))
        columns, _ = inputs.labels(y, len(predicted))
        if columns.shape[1] != len(self._classes):
            raise ValueError(f"expected {len(self._classes)} label sets, got {columns.shape[1]} columns of y")
        for known, column in zip(self._classes, columns.T, strict=True):
            inputs.check_kind(known, column)
        weight = inputs.weights(sample_weight, predicted, CPU)
        return float(np.average((predicted.reshape(columns.shape) == columns).mean(1), weights=weight))

    def leave_one_out(self, X: Any, y: Any, sample_weight: Any = None) -> Any:
        """The scores (m, K) that the fit without sample i gives to it, for samples fitted with these labels and weights.

        They must be bit for bit the samples of the fit where n <= d + 1, and are not compared with them where there are more.
        NaN where rounding hides the scores: a sample that alone fixes its own fit, at a tiny lambda.
        """
        self._require_fitted()
        checked = inputs.features(self, X, reset=False)
        parts = [self._engine.leave_one_out(b) for b in self._blocks(checked, inputs.labels(y, len(checked))[0], sample_weight)]
        return self._answer(self._shifted([torch.cat(column) for column in zip(*parts, strict=True)]), X)

    @property
    def coef_(self) -> Any:
        """The coefficients (K, d) of features as they come."""
        return self._fitted(lambda s: s.coefficients.T.cpu().numpy())

    @property
    def intercept_(self) -> Any:
        """The intercepts (K,)."""
        return self._fitted(lambda s: s.intercept.cpu().numpy())

    @property
    def lambda_(self) -> Any:
        """The lambda chosen."""
        return self._fitted(lambda s: s.lam)

    @property
    def temperature_(self) -> Any:
        """The temperature t of the probabilities."""
        return self._fitted(lambda s: len(s.intercept) / s.curve.slope)

    @property
    def bend_(self) -> Any:
        """The bend c of the probabilities."""
        return self._fitted(lambda s: s.curve.bend / s.curve.slope)

    @property
    def shift_(self) -> Any:
        """What is added to the scores, (K,)."""
        return self._fitted(lambda s: (len(s.intercept) * s.curve.shift).cpu().numpy())

    @property
    def path_(self) -> Any:
        """Leave-one-out Brier score and accuracy of every candidate lambda."""
        return self._fitted(lambda s: {"lambda": s.lambdas, "brier": s.brier, "accuracy": s.accuracy})

    def _begin(self, X: Any, many: bool, classes: list[Array]) -> None:
        """A new model: its classes, its device, and no samples."""
        choose("criterion", self.criterion, CRITERIA)
        choose("calibration", self.calibration, CALIBRATIONS)
        lambdas = None if self.lambdas is None else inputs.candidates(self.lambdas, "lambda")
        self._device, self._many = inputs.device_for(X, self.device), many
        full = self.calibration == "full"
        options = Options(
            lambdas, self.criterion, self.fit_intercept, self.scale_features, full, self.random_state, self.verbose
        )
        self._set_classes(classes)
        self._engine = Engine([len(c) for c in classes], options)

    def _add(self, X: Any, columns: Array, many: bool, named: list[Array] | None, weight: Any) -> RidgeProbe:
        """Begin if this is the first part, know the classes named, and add the samples to the sums; all is checked first."""
        self._refuse_balanced("come in parts")
        if not hasattr(self, "classes_"):
            assert named is not None
            self._begin(X, many, named)
        classes = self._classes
        if named is not None and len(named) == len(classes):
            for known, new in zip(classes, named, strict=True):
                inputs.check_kind(known, new)
            classes = [np.union1d(known, new) for known, new in zip(classes, named, strict=True)]
        blocks = self._blocks(X, columns, weight, "sums", classes=classes)
        class_weight = self._class_weight(classes)
        inputs.check_size(X)
        self._widen(classes)
        self._engine.class_weight = class_weight
        for block in blocks:
            self._engine.add(block)
        return self

    def _refuse_balanced(self, samples: str) -> None:
        if self.class_weight == "balanced":
            raise ValueError(
                f"expected class_weight None or {{class: weight}} for samples that {samples}, got 'balanced', which needs all "
                "of them at once; give the weights n / (K n_k) yourself"
            )

    def _set_classes(self, classes: list[Array]) -> None:
        self._classes = classes
        self.classes_ = classes if self._many else classes[0]

    def _widen(self, classes: list[Array]) -> None:
        for i, (known, now) in enumerate(zip(self._classes, classes, strict=True)):
            if len(now) > len(known):
                self._engine.widen(i, np.searchsorted(now, known).tolist(), len(now))
        self._set_classes(classes)

    def _class_weight(self, classes: list[Array], labels: Array | None = None, weight: Tensor | None = None) -> Tensor | None:
        """One weight per class (K,), for samples with these labels and weights, or for samples that come in parts."""
        if self.class_weight is None:
            return None
        if len(classes) > 1:
            raise ValueError("expected class_weight=None for several label sets, which share their weights; use sample_weight")
        known, given = classes[0], self.class_weight
        if labels is None and isinstance(given, dict):  # of samples in parts: a class that is named may still come
            given = {label: factor for label, factor in given.items() if label in known.tolist()}
        labels = known if labels is None else labels
        weight = torch.ones(len(labels)) if weight is None else weight
        factors = inputs.class_weights(given, known, labels, weight.numpy())
        if not (factors > 0).all():
            raise ValueError(f"expected class weights > 0, got {factors.min()}; drop the samples of that class instead")
        return torch.from_numpy(factors).double().to(self._device)

    def _blocks(
        self,
        X: Any,
        columns: Array,
        weight: Any,
        what: str = "",
        *,
        size: int | None = None,
        classes: list[Array] | None = None,
    ) -> Iterator[Block]:
        """Slices of the samples on the device: features in float64, positions of the labels, weights; checked at once."""
        classes = self._classes if classes is None else classes
        if columns.shape[1] != len(classes):
            raise ValueError(f"expected {len(classes)} label sets, got {columns.shape[1]} columns of y")
        positions = [inputs.indices(known, column) for known, column in zip(classes, columns.T, strict=True)]
        labels = torch.from_numpy(np.stack(positions, 1)).to(self._device)
        weight = inputs.weights(weight, X, self._device)
        size = inputs.rows(X.shape[1], self._device) if size is None else size

        def slices() -> Iterator[Block]:
            for i in range(0, len(X), size):
                part = slice(i, i + size)
                yield inputs.tensor(X[part]).to(self._device).double(), labels[part], weight[part]

        return inputs.watch(slices(), len(X), what, verbose=self.verbose and bool(what))

    def _rechunk(self, chunks: Iterable[Any]) -> Iterator[Block]:
        for X, y, *weight in chunks:
            checked = inputs.features(self, X, reset=False)
            yield from self._blocks(checked, inputs.labels(y, len(checked))[0], weight[0] if weight else None)

    def _scores(self, X: Any) -> list[Tensor]:
        self._require_fitted()
        X = inputs.features(self, X, reset=False)
        size = inputs.rows(X.shape[1], self._device)
        blocks = (inputs.tensor(X[i : i + size]).to(self._device).double() for i in range(0, len(X), size))
        return [torch.cat(column) for column in zip(*map(self._engine.scores, blocks), strict=True)]

    def _shifted(self, scores: list[Tensor]) -> list[Tensor]:
        return [f + f.shape[1] * s.curve.shift for f, s in zip(scores, self._engine.solution(), strict=True)]

    def _answer(self, tensors: list[Tensor], X: Any) -> Any:
        """In kind: tensors for a tensor, arrays for anything else; a list of them for several label sets."""
        answers = [inputs.in_kind(t, X) for t in tensors]
        return answers if self._many else answers[0]

    def _fitted(self, read: Callable[[Any], Any]) -> Any:
        self._require_fitted()
        answers = [read(chosen) for chosen in self._engine.solution()]
        return answers if self._many else answers[0]

    def _require_fitted(self) -> None:
        if not hasattr(self, "classes_"):
            raise NotFittedError("this RidgeProbe is not fitted yet; call fit, partial_fit or fit_chunks first")


def _two_or_more(classes: list[Array]) -> list[Array]:
    """The classes of each label set, if there are enough of them."""
    for found in classes:
        if len(found) < 2:
            raise ValueError(
                f"expected two classes or more, got one class: {found.tolist()}; "
                "name all of them by partial_fit(X, y, classes=...) if the others are still to come"
            )
    return classes


def _as_sets(classes: Any, sets: int) -> list[Array]:
    """Classes as the user names them, one array for each label set."""
    listed = [np.unique(np.asarray(c)) for c in classes] if sets > 1 else [np.unique(np.asarray(classes))]
    if len(listed) != sets:
        raise ValueError(f"expected classes for {sets} label sets, a list of that many, got {len(listed)}")
    return listed
