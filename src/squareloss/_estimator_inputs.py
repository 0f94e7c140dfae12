"""What goes into the estimators, checked: features, labels and weights, as numpy arrays or tensors; and answers in kind."""

from __future__ import annotations

import numbers
import sys
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, column_or_1d, validate_data
from torch import Tensor

from squareloss._progress import duration, every, put
from squareloss._selection import COLUMNS

Array = NDArray[Any]
LARGEST = 1e100


def features(estimator: Any, x: Any, *, reset: bool) -> Array | Tensor:
    """Features (n, d), finite, as wide as those seen before unless `reset`: a tensor as it is, anything else as an array."""
    if not isinstance(x, Tensor):
        checked: Array = validate_data(estimator, x, reset=reset, dtype=[np.float64, np.float32, np.float16])
        return checked
    if x.ndim != 2 or len(x) == 0:
        raise ValueError(f"expected features of shape (n, d) with n >= 1, got a tensor of shape {tuple(x.shape)}")
    if not bool(x.isfinite().all()):
        raise ValueError("expected finite features, got NaN or infinity; drop or fill those samples first")
    if reset:
        estimator.n_features_in_ = x.shape[1]
        vars(estimator).pop("feature_names_in_", None)  # of a table that was fitted before
    elif x.shape[1] != estimator.n_features_in_:
        name = type(estimator).__name__
        raise ValueError(f"X has {x.shape[1]} features, but {name} is expecting {estimator.n_features_in_} features as input")
    return x.detach()


def check_size(x: Array | Tensor) -> None:
    """Raise if features (n, d) are too large for sums of their squares."""
    largest = max(-float(x.min()), float(x.max()))
    if not largest < LARGEST:
        raise ValueError(
            f"expected features below {LARGEST:.0e}, so that their squares can be summed, got {largest:.0e}; divide them"
        )


def labels(y: Any, count: int) -> tuple[Array, bool]:
    """Labels as an array (n, S), one column per label set; and whether there are several."""
    if y is None:
        raise ValueError("expected labels y: this classifier requires y to be passed, but the target y is None")
    y = np.asarray(array(y))
    if y.ndim not in (1, 2) or len(y) != count:
        raise ValueError(
            f"expected labels of shape ({count},), or ({count}, S) for S label sets, got shape {y.shape}: "
            f"inconsistent numbers of samples, {count} in X"
        )
    check_present(y)
    columns: Array = y.reshape(count, -1)
    _check_one_kind(columns)
    for column in columns.T:
        check_classification_targets(column)
    if columns.dtype.kind == "f" and not np.isfinite(columns).all():
        raise ValueError("expected labels without NaN or infinity; drop those samples first")
    if y.ndim == 2 and y.shape[1] == 1:
        column_or_1d(y, warn=True)
    return columns, columns.shape[1] > 1


def _check_one_kind(columns: Array) -> None:
    """Raise if label sets (n, S) are of several kinds, as a table may have them: they, and their predictions, are one array."""
    firsts = columns[0] if columns.dtype == object else []
    kinds = dict.fromkeys("text" if isinstance(first, str) else type(first).__name__ for first in firsts)
    if len(kinds) > 1:
        raise ValueError(
            f"expected label sets of one kind, got columns of {' and '.join(kinds)}; "
            "convert them, such as by y.astype(str), or fit a model to each"
        )


def check_present(y: Any) -> None:
    """Raise if labels that are objects, as pandas has them, lack some; scikit-learn would call them a regression."""
    y = np.asarray(y)
    if y.ndim and y.dtype == object and any(_is_missing(v) for v in y.ravel()):
        raise ValueError("expected a label for every sample, got None or NaN for some; drop those samples first")


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value)


def check_kind(classes: Array, labels: Array) -> None:
    """Raise if the classes are numbers and the labels text, or the other way: together, NumPy would make all of them text."""
    if not len(labels) or not len(classes):
        return
    (one,), (first,) = classes[:1].tolist(), labels[:1].tolist()
    known, got = ("text" if isinstance(label, (str, bytes)) else "numbers" for label in (one, first))
    if known != got:
        raise ValueError(
            f"expected labels that are {known}, as the classes {classes.tolist()} are, got {got} such as {first!r}; "
            "convert them, or fit anew"
        )


def check_known(labels: Array, classes: Array) -> None:
    """Raise if some labels are not among the classes."""
    check_kind(classes, labels)
    unknown = np.setdiff1d(labels, classes)
    if len(unknown):
        raise ValueError(f"expected labels among the classes {classes}, got {unknown}; give all classes to the first call")


def weights(weight: Any, x: Array | Tensor, device: torch.device) -> Tensor:
    """Weights (n,) >= 0 in float64 on the device; ones for None."""
    if weight is None:
        return torch.ones((), dtype=torch.float64, device=device).expand(len(x))
    weight = array(weight)
    given = np.asarray(weight)
    if given.shape == (len(x),) and given.dtype.kind in "biuf" and not given.any():  # of a chunk; scikit-learn refuses them
        return torch.zeros(len(x), dtype=torch.float64, device=device)
    shape = np.broadcast_to(np.float64(0), tuple(x.shape))  # only its length is read
    checked = _check_sample_weight(weight, shape, dtype=np.float64, ensure_non_negative=True)
    return torch.from_numpy(np.array(checked)).to(device)


def class_weights(given: Any, classes: Array, y: Array, weight: Array) -> Array:
    """One weight per class (K,). "balanced" counts samples by their weight, so that a weight of 2 is a sample twice."""
    if not isinstance(given, str) or given != "balanced":
        weights: Array = compute_class_weight(given, classes=classes, y=y)
        return weights
    counts = np.bincount(np.searchsorted(classes, y), weights=weight, minlength=len(classes))
    return np.where(counts > 0, weight.sum() / (len(classes) * np.maximum(counts, np.finfo(float).tiny)), 1.0)


def device(requested: Any) -> torch.device:
    """The device that is asked for by a name, a number or a `torch.device`; for "auto" a GPU if there is one."""
    name = ("cuda" if torch.cuda.is_available() else "cpu") if requested == "auto" else requested
    try:
        return torch.empty(0, device=torch.device(name)).device
    except (AssertionError, RuntimeError, TypeError) as error:  # torch without CUDA asserts
        raise ValueError(
            f"expected device 'auto', 'cpu', 'cuda' or another that torch can use here, got {requested!r}"
        ) from error


def device_for(x: Array | Tensor, requested: Any) -> torch.device:
    """Where to compute: where asked, else where the tensor lies, else on the CPU."""
    if requested is not None:
        return device(requested)
    return x.device if isinstance(x, Tensor) else torch.device("cpu")


def candidates(value: Any, name: str) -> list[float]:
    """One number or several, as a list of floats."""
    try:
        values = np.atleast_1d(np.asarray(value, dtype=np.float64))
    except (TypeError, ValueError):
        values = np.zeros((0, 0))
    if values.ndim != 1:
        raise ValueError(f"expected {name}: a number >= 0, a list of them, or None for the default, got {value!r}")
    if not len(values):
        raise ValueError(f"expected one {name} or more, got none")
    return [float(number) for number in values]


def seed(random_state: Any) -> int:
    """An integer as it is; one drawn from a `RandomState`, or from the global one if None, as scikit-learn does."""
    given = isinstance(random_state, numbers.Integral)
    return int(random_state if given else check_random_state(random_state).randint(2**31 - 1))


def array(values: Any) -> Any:
    """A tensor as an array, of half precision, on a GPU or with a gradient too; anything else as it is."""
    if not isinstance(values, Tensor):
        return values
    return (values.float() if values.dtype == torch.bfloat16 else values).detach().cpu().numpy()


def tensor(x: Array | Tensor) -> Tensor:
    """A tensor as it is; arrays are copied, so that read-only ones will do."""
    return x if isinstance(x, Tensor) else torch.from_numpy(np.array(x))


def in_kind(answer: Tensor, x: Any) -> Any:
    """An answer to x: a tensor where x lies if that is one, else an array."""
    return answer.to(x.device) if isinstance(x, Tensor) else answer.cpu().numpy()


def labels_in_kind(answer: Array, x: Any) -> Any:
    """Labels as a tensor where x lies if that is one and they are numbers, else as they are."""
    return torch.from_numpy(answer).to(x.device) if isinstance(x, Tensor) and answer.dtype.kind in "biuf" else answer


def rows(d: int, where: torch.device) -> int:
    """How many samples to take at a time: at most 32 MB of features or outputs on the CPU, 512 MB elsewhere."""
    return max(256, 2 ** (22 if where.type == "cpu" else 26) // max(d, COLUMNS))


def indices(classes: Array, column: Array) -> NDArray[np.int64]:
    """Positions (n,) of labels in the sorted classes; a clear error for one that is not there."""
    check_kind(classes, column)
    position = np.searchsorted(classes, column).clip(0, len(classes) - 1)
    unknown = classes[position] != column
    if unknown.any():
        raise ValueError(
            f"expected labels among the classes {classes.tolist()}, got {column[unknown].tolist()[0]!r}; "
            "to add classes call partial_fit(X, y, classes=...) with the new ones"
        )
    return position.astype(np.int64)


def watch(blocks: Iterable[Any], total: int | None, what: str, *, verbose: bool) -> Iterator[Any]:
    """Pass blocks (x, ...) through, with a line on stderr that says how far and how long still."""
    begin, done, shown, width = time.perf_counter(), 0, 0.0, 0
    for block in blocks:
        yield block
        done += len(block[0])
        passed = time.perf_counter() - begin
        if verbose and passed - shown > every():
            shown = passed
            rest = "" if total is None else f" of {total:,}, {duration(passed * max(total - done, 0) / done)} left"
            width = put(f"{what}: {done:,} samples{rest}", width)
    if width:
        print(file=sys.stderr)
