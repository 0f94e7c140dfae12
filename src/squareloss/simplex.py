"""Geometry of the simplex: vertices, coordinates, and the two ways back onto it.

A vector of K numbers has its class axis at dimension 1, as `nn.CrossEntropyLoss` has it, or at
dimension 0 when there is no batch. Nothing here builds a K x K matrix except `vertices`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from squareloss import _checks


def class_dim(outputs: Tensor) -> int:
    """The class axis: 1 for (N, K) and (N, K, d1, ...), 0 for (K,)."""
    if not isinstance(outputs, Tensor):
        raise TypeError(
            f"expected the network's outputs as a tensor, got {type(outputs).__name__}; "
            "use outputs.logits of a Hugging Face model, torch.as_tensor(...) of an array"
        )
    if outputs.ndim == 0:
        raise ValueError("expected outputs of shape (K,), (N, K) or (N, K, d1, ...), got a scalar; add a class axis")
    _checks.floating(outputs)
    return 0 if outputs.ndim == 1 else 1


def wide(values: Tensor) -> Tensor:
    """Half precisions as float32; float32 and float64 as they are."""
    if values.dtype in (torch.float32, torch.float64):
        return values
    _checks.floating(values)
    return values.float()


def vertices(num_classes: int, radius: float = 1.0, *, reduced: bool = False) -> Tensor:
    """The K vertices of the regular simplex centred at 0, one per row, each of norm `radius`, in float64.

    Their inner products are -radius^2 / (K - 1). In K coordinates (K, K), the rows are
    radius sqrt(K / (K-1)) (e_y - 1/K); `reduced` gives the K - 1 coordinates of the paper's appendix (K, K-1),
    scaled to the radius, with class 1 at +radius when K = 2.
    """
    if num_classes < 2:
        raise ValueError(f"expected num_classes >= 2, got {num_classes}; a simplex code needs two classes or more")
    eye = torch.eye(num_classes, dtype=torch.float64)
    codes = radius * math.sqrt(num_classes / (num_classes - 1)) * (eye - 1.0 / num_classes)  # (K, K)
    return reduce(codes) if reduced else codes


def embed(coordinates: Tensor) -> Tensor:
    """From K - 1 simplex coordinates to K zero-sum ones: an isometry, in O(NK).

    Row k of its matrix is the k-th vertex of the paper's appendix, times sqrt(2): (1, ..., 1) / sqrt(K) for k = 0 and
    e_k - (1 + 1/sqrt(K)) / (K - 1) (1, ..., 1) after it. At K = 2 the sign is turned, so that class 1 is positive.
    """
    dim = class_dim(coordinates)
    num_classes = coordinates.shape[dim] + 1
    total = coordinates.sum(dim, keepdim=True)
    first = total / math.sqrt(num_classes)
    rest = coordinates - total * _shift(num_classes)
    return torch.cat([first, rest], dim) * _sign(num_classes)


def reduce(outputs: Tensor) -> Tensor:
    """From K outputs to K - 1 simplex coordinates: the transpose of `embed`, and its inverse on zero-sum outputs."""
    dim = class_dim(outputs)
    num_classes = outputs.shape[dim]
    first = outputs.narrow(dim, 0, 1)
    rest = outputs.narrow(dim, 1, num_classes - 1)
    coordinates = rest + first / math.sqrt(num_classes) - rest.sum(dim, keepdim=True) * _shift(num_classes)
    return coordinates * _sign(num_classes)


def _shift(num_classes: int) -> float:
    return (1 + 1 / math.sqrt(num_classes)) / (num_classes - 1)


def _sign(num_classes: int) -> float:
    return -1.0 if num_classes == 2 else 1.0


def project(eta: Tensor) -> Tensor:
    """Euclidean projection onto the probability simplex along the class axis.

    argmin_p |p - eta|^2 over p >= 0, sum p = 1: p = max(eta - tau, 0), with tau found from the sorted values (Held,
    Wolfe and Crowder 1974). It keeps the order of the classes, never worsens the Brier score, and leaves a
    probability vector as it is. Differentiable: the Jacobian is the centring matrix of the classes kept. Half precisions are
    computed in float32 and returned in their own dtype. A NaN makes its whole row NaN.
    """
    dim = class_dim(eta)
    lowered = wide(eta)
    lowered = lowered - lowered.detach().amax(dim, keepdim=True)  # measured from the largest, no offset costs accuracy
    with torch.no_grad():
        fall = lowered.sort(dim, descending=True).values
        rank = torch.arange(1, eta.shape[dim] + 1, device=eta.device, dtype=fall.dtype).view(_along(dim, eta.ndim))
        kept = (rank * fall > fall.cumsum(dim) - 1).sum(dim, keepdim=True).clamp_min(1)  # how many stay positive
        support = ~(lowered < fall.gather(dim, kept - 1))  # so written, NaN stays
    # the threshold once more, from the values themselves, for plain autograd
    inside = lowered.where(support, 0.0)
    excess = (inside.sum(dim, keepdim=True) - 1) / support.sum(dim, keepdim=True)
    return (inside - excess).where(support, 0.0).clamp_min(0).to(eta.dtype)


def clip(eta: Tensor) -> Tensor:
    """Clip eta (N, K, ...) to [0, 1] and renormalise it along the class axis: the other way to make it probabilities.

    Rows with nothing left become uniform, NaN stays NaN.
    """
    dim = class_dim(eta)
    clipped = eta.clamp(0, 1)
    total = clipped.sum(dim, keepdim=True)
    empty = total == 0
    return (clipped / total.masked_fill(empty, 1.0)).masked_fill(empty, 1 / eta.shape[dim])


def undo_weight(probabilities: Tensor, weight: Tensor) -> Tensor:
    """Take class weights (K,) back: training with weights w estimates w_k eta_k / sum_j w_j eta_j; this returns eta.

    Probabilities are (N, K, ...), as what is returned; weights must be positive.
    """
    dim = class_dim(probabilities)
    if weight.shape != (probabilities.shape[dim],):
        raise ValueError(f"expected weight of shape ({probabilities.shape[dim]},), one per class, got {tuple(weight.shape)}")
    if _checks.readable(weight) and not bool((weight > 0).all()):
        raise ValueError("expected positive class weights to undo, got one <= 0: a class with weight 0 leaves no trace")
    unweighted = probabilities / weight.to(probabilities).view(_along(dim, probabilities.ndim))
    return unweighted / unweighted.sum(dim, keepdim=True)


def undo_smoothing(eta: Tensor, label_smoothing: float) -> Tensor:
    """Take label smoothing back: smoothed training estimates (1 - s) eta + s / K; this returns eta (maybe outside [0, 1])."""
    _checks.smoothing(label_smoothing)
    return (eta - label_smoothing / eta.shape[class_dim(eta)]) / (1 - label_smoothing)


def _along(dim: int, ndim: int) -> list[int]:
    """The shape in which a vector lies along one axis."""
    return [-1 if axis == dim else 1 for axis in range(ndim)]
