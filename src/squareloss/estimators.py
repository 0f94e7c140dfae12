"""The scikit-learn front: a multilayer perceptron trained with square loss, with calibrated probabilities.

It follows scikit-learn's conventions (options by keyword, fitted attributes ending in `_`) and works wherever a classifier of
scikit-learn's does: `Pipeline`, `GridSearchCV`, `CalibratedClassifierCV`, `cross_val_predict`.
"""

from __future__ import annotations

import copy
import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor
from torch.func import functional_call
from typing_extensions import Self

from squareloss import _checks
from squareloss import _estimator_inputs as inputs
from squareloss import _estimator_options as options
from squareloss._all_or_nothing import all_or_nothing
from squareloss._mlp_training import Moments, Samples, Trainer, enough_threads, objective
from squareloss._progress import duration
from squareloss._warnings import warn
from squareloss.calibrators import Asinh
from squareloss.codings import outputs_for
from squareloss.losses import Loss
from squareloss.models import MLP

MANY = 1000  # samples from which early_stopping="auto" holds some back
ENOUGH = 20  # held-out samples to calibrate on; with fewer, a softmax is best left as it is
STEPS, SMALLEST, LARGEST = 20, 8, 200  # batch_size="auto": steps of an epoch, and samples per step at least and at most
EXPLODED = 5  # times the loss of outputs of zero: a training loss that no network begins with on standardised features
CHUNK = 8192  # rows per forward pass in prediction


class SquareLossClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A multilayer perceptron trained with square loss (or another of our losses) by Adam.

    The loss's own reading of probabilities is, for square loss, the linear estimate eta, projected onto the simplex. It is
    right in the limit, and mostly underconfident in networks of this size on the data we tried, so from 1000 samples on a tenth
    of them is held back by default, to stop in time and to calibrate. It trains in float32, on the CPU or on a GPU.

    Example: `model = SquareLossClassifier(random_state=0).fit(X, y)`, then `model.predict_proba(new)`.

    Arguments:
        hidden: width of each hidden layer; () for a linear model.
        loss: "simplex" (`SquareLoss()`); "one_hot_15" (`SquareLoss(OneHot(k=K/20, M=15), scale=1.0)`, or k = 1 and M = 3K/4
            below twenty classes), for one or two hundred classes; "scaled_one_hot" (`SquareLoss(OneHot(k=K/5, M=5))`, or k = 1
            and M = K below five classes), for more (docs/many_classes.md); "cross_entropy"; "squentropy"; or an instance of a
            class in `squareloss.losses`, such as `SquareLoss(OneHot(k=5, M=15))`.
        learning_rate: of Adam, constant.
        batch_size: samples per step. "auto" is a twentieth of those that `fit` trains on, 8 at least and 200 at most, so that
            the steps are not few where the samples are; in `partial_fit`, which does not know how many will come, it is 200.
        max_epochs: passes over the training data, fewer if it stops early.
        weight_decay: decoupled, as in AdamW.
        early_stopping: hold `validation_fraction` of the data back, stop when the loss on it has not improved for `patience`
            epochs, and keep the weights of the best epoch. "auto" does so from 1000 samples on.
        validation_fraction: the share held back, stratified by class where that is possible.
        patience: epochs without improvement before it stops.
        calibrate: read probabilities by `calibrators.Asinh`, with a floor for labels that are wrong at random, fitted on the
            samples held back, if they are 20 or more and their Brier score gets lower. Else the loss's own reading stands.
        class_weight: a dict from class to weight, or "balanced" (n / (K n_k)). It moves `predict` and `decision_function`
            towards the heavy classes; `predict_proba` undoes it, and remains an estimate for the data as they came.
        standardize: bring each feature to mean 0 and variance 1 on the training data (in `partial_fit`, the first batch). On,
            because Adam's default learning rate presumes inputs of order one, and doing it twice changes nothing.
        random_state: an int or `numpy.random.RandomState` for repeatable results; None draws from the system's entropy. No
            global generator is read or advanced.
        device: "cpu", "cuda", ..., a `torch.device`, or "auto": a GPU if there is one.
        verbose: report epochs, losses and the time left on stderr.

    Attributes after `fit`:
        classes_: the class labels (K,), sorted.
        network_: the trained `squareloss.models.MLP`, on the CPU; its inputs are standardised features.
        loss_: the loss it was trained with, class weights included; `loss_.link` reads the network's outputs.
        mean_, scale_: (d,) what standardising subtracts and divides by.
        reading_: the fitted `calibrators.Asinh`, which also undoes the class weights, or None for the loss's own reading.
        class_weight_: (K,) the weights of the classes.
        loss_curve_: the mean training loss of each epoch.
        validation_curve_: the loss on the held-out part after each epoch; empty without early stopping.
        batch_size_: samples per step.
        n_epochs_: epochs run; best_epoch_: the one, counted from 1, whose weights were kept.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
    """

    network_: MLP
    loss_curve_: list[float]
    validation_curve_: list[float]
    n_epochs_: int
    _moments: Moments | None

    def __init__(
        self,
        hidden: Sequence[int] = (500, 500),
        loss: str | Loss = "simplex",
        *,
        learning_rate: float = 1e-3,
        batch_size: int | str = "auto",
        max_epochs: int = 50,
        weight_decay: float = 0.0,
        early_stopping: bool | str = "auto",
        validation_fraction: float = 0.1,
        patience: int = 10,
        calibrate: bool = True,
        class_weight: Mapping[Any, float] | str | None = None,
        standardize: bool = True,
        random_state: int | np.random.RandomState | None = None,
        device: str | torch.device = "auto",
        verbose: bool = False,
    ) -> None:
        self.hidden = hidden
        self.loss = loss
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.max_epochs = max_epochs
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.calibrate = calibrate
        self.class_weight = class_weight
        self.standardize = standardize
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train from new weights. A training loss that has exploded ends with a `ConvergenceWarning`.

        A fit that is refused or interrupted changes nothing: the model from before stays, or none; `partial_fit` likewise.

        Arguments:
            X: features (n, d), finite; sparse matrices are refused.
            y: class labels (n,), numbers or strings, of two classes or more.
            sample_weight: (n,), non-negative; only their ratios matter, and a sample of weight 0 is as good as absent.
        """
        with all_or_nothing(self):
            options.check(self)
            X, y, weight = self._validated(X, y, sample_weight, reset=True)
            self._set_classes(np.unique(y), y, weight)
            present = weight > 0
            X, y, weight = X[present], np.searchsorted(self.classes_, y[present]), weight[present]
            self._set_statistics(X, weight)
            self._set_network(X.shape[1])
            # so that the loss is a mean: the weights of classes and samples together average to one
            weight = weight / np.mean(weight * self.class_weight_[y])
            train, held_out = self._split(y)
            samples = self._samples(X[train], y[train], weight[train])
            validation = None if held_out is None else self._samples(X[held_out], y[held_out], weight[held_out])
            self._train(samples, validation, self.max_epochs, self._batch(len(train)))
            self._check_loss(samples)
            if held_out is not None and self.calibrate:
                self._set_reading(X[held_out], y[held_out], weight[held_out])
            self._moments = None  # partial_fit may go on from here, with Adam anew
            return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """One pass over these samples, from the weights there are; from new ones at the first call.

        n calls on the same samples do what `fit` with `max_epochs=n`, a number for `batch_size` ("auto" is 200 here) and no
        early stopping does. Features are standardised by the statistics of the first call, of its samples of positive weight,
        and Adam's state is kept between calls. The reading that `fit` has found stays.

        Arguments:
            X, y: as in `fit`; y may lack classes.
            classes: all classes there will be; needed at the first call, and optional after it.
            sample_weight: (n,), non-negative; taken as it is, so that weights of different calls compare.
        """
        with all_or_nothing(self):
            options.check(self)
            first = not hasattr(self, "network_")
            if first and classes is None:
                raise ValueError("expected classes at the first call of partial_fit, got None; pass every label there will be")
            if isinstance(self.class_weight, str):
                raise ValueError(
                    "expected class_weight to be a dict or None in partial_fit, got 'balanced', which needs all data"
                )
            X, y, weight = self._validated(X, y, sample_weight, reset=first)
            known = np.unique(classes) if first else self.classes_
            for labels in (y,) if classes is None else (y, np.unique(classes)):
                inputs.check_known(labels, known)
            if first:
                self._set_classes(known, y, weight)
                present = weight > 0  # a feature that varies among the others alone has no scale
                self._set_statistics(X[present], weight[present])
                self._set_network(X.shape[1])
            self._train(self._samples(X, np.searchsorted(self.classes_, y), weight), None, 1, self._batch())
            return self

    def decision_function(self, X: Any) -> np.ndarray:
        """Scores (n, K), whose argmax is the class; for two classes (n,), positive for `classes_[1]`."""
        outputs = self._outputs(X)
        scores: np.ndarray = self.loss_.link.scores(outputs).numpy()
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> np.ndarray:
        """The class of each row (n,): the one with the largest score."""
        outputs = self._outputs(X)
        labels: np.ndarray = self.classes_[self.loss_.link.predict(outputs).numpy()]
        return labels

    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities (n, K) in the order of `classes_`; class weights and label smoothing are undone."""
        outputs = self._outputs(X)
        if self.reading_ is None:
            probabilities = self.loss_.probabilities(outputs)
        else:
            probabilities = self.reading_.transform(self.loss_.link.scores(outputs))
        array: np.ndarray = probabilities.numpy()
        return array

    def _train(self, samples: Samples, held_out: Samples | None, epochs: int, batch_size: int) -> None:
        """Train `network_` for so many epochs, or until the loss on the held-out samples has stopped falling."""
        self.batch_size_ = batch_size
        # what there was before is copied, not changed: it comes back if this is refused
        network = copy.deepcopy(self.network_).to(samples.x.device)
        self.loss_curve_, self.validation_curve_ = [*self.loss_curve_], [*self.validation_curve_]
        loss = copy.deepcopy(self.loss_).to(samples.x.device)
        adam = {"learning_rate": self.learning_rate, "weight_decay": self.weight_decay}
        trainer = Trainer(network, loss, **adam, moments=_to(copy.deepcopy(self._moments), samples.x.device))
        best, best_loss, started = trainer.flat, math.inf, time.monotonic()
        with enough_threads(network, batch_size):
            for epoch in range(epochs):
                self.loss_curve_.append(self._epoch(trainer, samples))
                if held_out is not None:
                    self.validation_curve_.append(trainer.mean_loss(held_out))
                    if self.validation_curve_[-1] < best_loss:
                        best, best_loss, self.best_epoch_ = trainer.flat.clone(), self.validation_curve_[-1], self.n_epochs_
                    elif self.n_epochs_ - self.best_epoch_ >= self.patience:
                        break
                if self.verbose:
                    self._report(epoch + 1, epochs, time.monotonic() - started)
        if held_out is None:
            self.best_epoch_ = self.n_epochs_
        trainer.flat.copy_(best)
        trainer.write_back()
        self.network_ = network.cpu()
        self._moments = _to(trainer.moments, torch.device("cpu"))

    def _epoch(self, trainer: Trainer, samples: Samples) -> float:
        # each epoch its own generator, so that partial_fit goes through the orders that fit does
        generator = torch.Generator().manual_seed(self._seed + 1 + self.n_epochs_)
        order = torch.randperm(len(samples.y), generator=generator).to(samples.y.device)
        loss = trainer.epoch(samples, order, self.batch_size_)
        self.n_epochs_ += 1
        if not math.isfinite(loss):
            raise ValueError(
                f"expected a finite training loss, got {loss} in epoch {self.n_epochs_}; "
                "lower learning_rate, or rescale the features if standardize=False"
            )
        return loss

    def _batch(self, samples: int | None = None) -> int:
        """Samples per step, out of so many; out of who knows how many if None."""
        if not isinstance(self.batch_size, str):
            return self.batch_size
        return LARGEST if samples is None else min(LARGEST, max(SMALLEST, samples // STEPS))

    def _check_loss(self, samples: Samples) -> None:
        """Warn if the training loss is far above that of outputs of zero, on some of the samples."""
        _, y, weight = (part[:CHUNK].cpu() for part in samples)
        width = outputs_for(self.loss_.link, len(self.classes_))
        by_outputs = objective(self.loss_, width)
        nothing = float(by_outputs.value(torch.zeros(len(y), width), *by_outputs.prepare(y, weight))) / len(y)
        if (loss := self.loss_curve_[self.best_epoch_ - 1]) > EXPLODED * nothing:
            warn(
                f"expected a training loss below {nothing:.2g}, which outputs of zero have, got {loss:.2g}; "
                "lower learning_rate, or rescale the features if standardize=False",
                ConvergenceWarning,
            )

    def _report(self, epoch: int, epochs: int, seconds: float) -> None:
        held_out = f", held out {self.validation_curve_[-1]:.4f}" if self.validation_curve_ else ""
        left = "" if epoch == epochs else f", at most {duration(seconds / epoch * (epochs - epoch))} left"
        line = f"epoch {self.n_epochs_}: loss {self.loss_curve_[-1]:.4f}{held_out}, {seconds:.1f} s{left}"
        print(line, file=sys.stderr, flush=True)

    def _outputs(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return self._forward(validate_data(self, inputs.array(X), dtype=[np.float64, np.float32], reset=False))

    def _forward(self, X: np.ndarray) -> Tensor:
        """The network's outputs (n, width), float64 on the CPU.

        The CPU computes them in float64, so that a row's result does not depend on its neighbours.
        """
        device = inputs.device(self.device)
        dtype = torch.float64 if device.type == "cpu" else torch.float32
        weights = {name: p.detach().to(device, dtype) for name, p in self.network_.named_parameters()}
        outputs = []
        with torch.no_grad():
            for start in range(0, len(X), CHUNK):
                x = torch.from_numpy((X[start : start + CHUNK] - self.mean_) / self.scale_).to(device, dtype)
                outputs.append(functional_call(self.network_, weights, (x,)).cpu().double())
        return torch.cat(outputs)

    def _validated(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        inputs.check_present(inputs.array(y))
        X, y = validate_data(self, inputs.array(X), inputs.array(y), dtype=[np.float64, np.float32], reset=reset)
        check_classification_targets(y)
        weight = _check_sample_weight(inputs.array(sample_weight), X, dtype=np.float64, ensure_non_negative=True)
        if not (weight > 0).any():  # newer versions of scikit-learn say so themselves
            raise ValueError("expected a sample weight > 0 at least once, got none; leave these samples out")
        return X, y, weight

    def _set_classes(self, classes: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        if len(classes) < 2:
            raise ValueError(f"expected two classes or more, got one class: {classes[0]}")
        self.classes_ = classes
        self.loss_ = options.make_loss(self.loss, len(classes))
        weights = inputs.class_weights(self.class_weight, classes, y, weight)
        if self.class_weight is not None:
            if self.loss_.weight is not None:
                raise ValueError("expected class weights in one place, got class_weight and a loss with weight; leave one out")
            self.loss_.weight = torch.tensor(weights, dtype=torch.float32)
        elif self.loss_.weight is not None:
            _checks.weight(self.loss_.weight, len(classes))
            weights = self.loss_.weight.double().numpy()
        if not (weights > 0).all():
            raise ValueError(f"expected positive class weights, got {weights.min()}; leave the samples of that class out")
        self.class_weight_ = weights

    def _set_statistics(self, X: np.ndarray, weight: np.ndarray) -> None:
        self.mean_, self.scale_ = np.zeros(X.shape[1]), np.ones(X.shape[1])
        if self.standardize:
            inputs.check_size(X)
            self.mean_ = np.average(X, axis=0, weights=weight)
            scale = np.sqrt(np.average((X - self.mean_) ** 2, axis=0, weights=weight))
            self.scale_ = np.where(X.max(axis=0) > X.min(axis=0), scale, 1.0)  # rounding alone is no scale

    def _set_network(self, inputs: int) -> None:
        generator = np.random.RandomState() if self.random_state is None else check_random_state(self.random_state)
        self._seed = int(generator.randint(2**31 - 1))
        width = outputs_for(self.loss_.link, len(self.classes_))
        self.network_ = MLP(inputs, self.hidden, width, generator=torch.Generator().manual_seed(self._seed))
        self.loss_curve_ = []
        self.validation_curve_ = []
        self.n_epochs_ = 0
        self.best_epoch_ = 0
        self.reading_: Asinh | None = None
        self._moments = None

    def _set_reading(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> None:
        """Fit `Asinh` to held-out samples, and keep it if their Brier score is lower than in the loss's own reading."""
        outputs, labels, weights = self._forward(X), torch.from_numpy(y), torch.from_numpy(weight)
        scores = self.loss_.link.scores(outputs)
        if len(y) < ENOUGH or not bool((scores != scores[:, :1]).any()):
            return
        reading = Asinh(class_weight=torch.from_numpy(self.class_weight_)).fit(scores, labels, weight=weights, floor=True)
        own, fitted = (_brier(p, labels, weights) for p in (self.loss_.probabilities(outputs), reading.transform(scores)))
        if fitted < own:
            self.reading_ = reading

    def _split(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """The rows to train on, and those held back for early stopping."""
        rows = np.arange(len(y))
        if not (len(y) >= MANY if self.early_stopping == "auto" else self.early_stopping):
            return rows, None
        held_out = math.ceil(self.validation_fraction * len(y))
        counts = np.bincount(y)
        if held_out >= len(y):
            raise ValueError(
                f"expected validation_fraction to leave samples to train on, got {self.validation_fraction} of {len(y)} samples"
            )
        single = counts[y] == 1  # held back, its class would not be trained
        if (~single).sum() <= held_out:
            single[:] = False
        rest = rows[~single]
        both = min(held_out, len(rest) - held_out) >= len(np.unique(y[rest]))  # parts can have every class
        stratify = y[rest] if both and not (counts[y[rest]] == 1).any() else None
        train, test = train_test_split(rest, test_size=held_out, stratify=stratify, random_state=self._seed)
        return np.concatenate([train, rows[single]]), test

    def _samples(self, X: np.ndarray, y: np.ndarray, weight: np.ndarray) -> Samples:
        device = inputs.device(self.device)
        x = torch.from_numpy((X - self.mean_) / self.scale_).to(device, torch.float32)
        return Samples(x, torch.from_numpy(y).to(device), torch.tensor(weight, dtype=torch.float32, device=device))


def _brier(p: Tensor, labels: Tensor, weight: Tensor) -> float:
    """The Brier score of probabilities (n, K), samples weighted, up to a factor."""
    at_label = p.gather(1, labels[:, None])[:, 0]
    return float((weight * (p.square().sum(1) - 2 * at_label + 1)).sum())


def _to(moments: Moments | None, device: torch.device) -> Moments | None:
    return None if moments is None else Moments(*(t.to(device) for t in moments))
