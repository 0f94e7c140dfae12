"""Wide networks in closed form: kernels, exact and iterative ridge, a classifier.

kernel = NTK()                                    # h(u) = u (pi - arccos u) / (2 pi) on the unit sphere
H = kernel.matrix(to_sphere(x))                   # (n, n), float64, tile by tile
H = finite_width(network, x)                      # of a network as it stands
f = ridge(to_sphere(x), y, mu=0.1)                # f(to_sphere(z)): predictions
fs = ridge_path(to_sphere(x), y, mus)             # one for every mu
f = conjugate_gradients(to_sphere(x), y, mu=0.1)  # beyond memory
f = Spectral.of(to_sphere(x), y).flow(2.0)        # gradient flow at a time
model = NTKClassifier().fit(X, y)                 # in scikit-learn's interface
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from squareloss.ntk.iterative import Nystrom, conjugate_gradients
from squareloss.ntk.kernels import NTK, Kernel, Laplace, TwoLayerNTK, finite_width, to_sphere
from squareloss.ntk.solve import Solution, Spectral, ridge, ridge_path

if TYPE_CHECKING:
    from squareloss.ntk.classifier import NTKClassifier

__all__ = [
    "Kernel",
    "Laplace",
    "NTK",
    "NTKClassifier",
    "Nystrom",
    "Solution",
    "Spectral",
    "TwoLayerNTK",
    "conjugate_gradients",
    "finite_width",
    "ridge",
    "ridge_path",
    "to_sphere",
]


def __getattr__(name: str) -> Any:
    if name == "NTKClassifier":  # scikit-learn loads when it is asked for
        from squareloss.ntk.classifier import NTKClassifier

        return NTKClassifier
    raise AttributeError(f"module 'squareloss.ntk' has no attribute {name!r}")
