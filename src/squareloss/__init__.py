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
    from squareloss.ntk.classifier import NTKClassifier
    from squareloss.probe import RidgeProbe

__version__ = "0.1.0"

# what needs more than torch loads when it is first asked for
_LAZY = {
    "Classifier": "squareloss.classifier",
    "Standardize": "squareloss.classifier",
    "SquareLossClassifier": "squareloss.estimators",
    "RidgeProbe": "squareloss.probe",
    "NTKClassifier": "squareloss.ntk.classifier",
}

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
    "SquareLoss",
    "SquareLossClassifier",
    "Squentropy",
    "Standardize",
    "functional",
    "probabilities",
]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'squareloss' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
