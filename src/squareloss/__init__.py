"""squareloss: train classifiers with square loss instead of cross-entropy, and read class probabilities from their outputs.

criterion = SquareLoss()                    # where nn.CrossEntropyLoss() stood; keep the learning rate
loss = criterion(network(x), labels)
p = squareloss.probabilities(network(x))    # class probabilities (N, K)
"""

from typing import TYPE_CHECKING, Any

from squareloss import functional
from squareloss.codings import OneHot, Simplex, Softmax, probabilities
from squareloss.losses import CrossEntropy, Focal, SoftmaxBrier, SquareLoss, Squentropy

if TYPE_CHECKING:
    from squareloss.classifier import Classifier, Standardize
    from squareloss.estimators import SquareLossClassifier
    from squareloss.linear import SquareLinear
    from squareloss.ntk.classifier import NTKClassifier
    from squareloss.probe import RidgeProbe

__version__ = "0.1.0"

# what needs more than torch loads when it is first asked for
_LAZY = {
    "Classifier": "squareloss.classifier",
    "Standardize": "squareloss.classifier",
    "SquareLossClassifier": "squareloss.estimators",
    "SquareLinear": "squareloss.linear",
    "RidgeProbe": "squareloss.probe",
    "NTKClassifier": "squareloss.ntk.classifier",
}
_MODULES = {  # these too
    "attacks", "calibrators", "classifier", "estimators", "integrations", "linear", "metrics", "models", "ntk", "probe",
}  # fmt: skip

__all__ = [
    "Classifier",
    "CrossEntropy",
    "Focal",
    "NTKClassifier",
    "OneHot",
    "RidgeProbe",
    "Simplex",
    "SoftmaxBrier",
    "Softmax",
    "SquareLinear",
    "SquareLoss",
    "SquareLossClassifier",
    "Squentropy",
    "Standardize",
    "functional",
    "probabilities",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"squareloss.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'squareloss' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})
