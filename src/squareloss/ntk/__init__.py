"""Wide networks in closed form: kernels, exact and iterative ridge, a classifier, the spectrum, gradient descent.

kernel = NTK()                                    # h(u) = u (pi - arccos u) / (2 pi) on the unit sphere
H = kernel.matrix(to_sphere(x))                   # (n, n), float64, tile by tile
H = finite_width(network, x)                      # of a network as it stands
f = ridge(to_sphere(x), y, mu=0.1)                # f(to_sphere(z)): predictions
fs = ridge_path(to_sphere(x), y, mus)             # one for every mu
f = conjugate_gradients(to_sphere(x), y, mu=0.1)  # beyond memory
f = Spectral.of(to_sphere(x), y).flow(2.0)        # gradient flow at a time
model = NTKClassifier().fit(X, y)                 # in scikit-learn's interface
spectrum = ntk_spectrum(3, degree=400)            # exact eigenvalues of h on the sphere of R^3
nets = draw(range(8), width=4096, dimension=3)    # networks to train by `descend`, as the theory does
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from squareloss.ntk.descent import Linear, Networks, descend, draw, safe_rate
from squareloss.ntk.iterative import Nystrom, conjugate_gradients
from squareloss.ntk.kernels import NTK, Kernel, Laplace, TwoLayerNTK, finite_width, to_sphere
from squareloss.ntk.solve import Solution, Spectral, ridge, ridge_path
from squareloss.ntk.spectrum import Spectrum, ntk_spectrum, zonal_norm, zonal_spectrum

if TYPE_CHECKING:
    from squareloss.ntk.classifier import NTKClassifier

__all__ = [
    "Kernel",
    "Laplace",
    "Linear",
    "NTK",
    "NTKClassifier",
    "Networks",
    "Nystrom",
    "Solution",
    "Spectral",
    "Spectrum",
    "TwoLayerNTK",
    "conjugate_gradients",
    "descend",
    "draw",
    "finite_width",
    "ntk_spectrum",
    "ridge",
    "ridge_path",
    "safe_rate",
    "to_sphere",
    "zonal_norm",
    "zonal_spectrum",
]


def __getattr__(name: str) -> Any:
    if name == "NTKClassifier":  # scikit-learn loads when it is asked for
        from squareloss.ntk.classifier import NTKClassifier

        return NTKClassifier
    raise AttributeError(f"module 'squareloss.ntk' has no attribute {name!r}")
