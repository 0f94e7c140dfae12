"""squareloss: train classifiers with square loss instead of cross-entropy, and read class probabilities from their outputs.

criterion = SquareLoss()                    # where nn.CrossEntropyLoss() stood; keep the learning rate
loss = criterion(network(x), labels)
p = squareloss.probabilities(network(x))    # class probabilities (N, K)
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from squareloss import functional
    from squareloss.classifier import Classifier, Standardize
    from squareloss.codings import OneHot, Simplex, Softmax, probabilities
    from squareloss.estimators import SquareLossClassifier
    from squareloss.linear import SquareLinear
    from squareloss.losses import CrossEntropy, Focal, SoftmaxBrier, SquareLoss, Squentropy
    from squareloss.ntk.classifier import NTKClassifier
    from squareloss.probe import RidgeProbe

__version__ = "0.1.0"

# everything loads when it is first asked for, so that the command line answers before torch has loaded
_LAZY = {
    **dict.fromkeys(("OneHot", "Simplex", "Softmax", "probabilities"), "squareloss.codings"),
    **dict.fromkeys(("CrossEntropy", "Focal", "SoftmaxBrier", "SquareLoss", "Squentropy"), "squareloss.losses"),
    **dict.fromkeys(("Classifier", "Standardize"), "squareloss.classifier"),
    "SquareLossClassifier": "squareloss.estimators",
    "SquareLinear": "squareloss.linear",
    "RidgeProbe": "squareloss.probe",
    "NTKClassifier": "squareloss.ntk.classifier",
}
_MODULES = {
    "attacks", "calibrators", "classifier", "codings", "estimators", "functional", "integrations", "linear", "losses",
    "metrics", "models", "ntk", "probe", "simplex",
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
        value = globals()[name] = getattr(importlib.import_module(_LAZY[name]), name)  # the next time without this function
        return value
    raise AttributeError(f"module 'squareloss' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})
