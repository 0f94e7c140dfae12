"""Wide networks in closed form: kernels, exact and iterative ridge.

kernel = NTK()                               # h(u) = u (pi - arccos u) / (2 pi) on the unit sphere
H = kernel.matrix(to_sphere(x))              # (n, n), float64, tile by tile
H = finite_width(network, x)                 # of a network as it stands
"""

from __future__ import annotations

from squareloss.ntk.kernels import NTK, Kernel, Laplace, TwoLayerNTK, finite_width, to_sphere

__all__ = ["Kernel", "Laplace", "NTK", "TwoLayerNTK", "finite_width", "to_sphere"]
