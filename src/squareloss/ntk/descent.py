"""Gradient descent as in the theory: wide one-hidden-layer ReLU networks, first layer trained, with a penalty.

    f_W(x) = m^(-1/2) sum_r a_r relu(w_r.x),     w_r(0) ~ N(0, xi^2 I_d),  a_r = +-1,
    w_r(k+1) = w_r(k) - 2 zeta (m^(-1/2) a_r sum_i (f(x_i) - y_i) 1{w_r.x_i >= 0} x_i + mu (w_r(k) - c_r)),

full-batch descent on sum_i (f(x_i) - y_i)^2 + mu |W - C|^2. The paper's penalty has C = 0 (`toward="zero"`); with C = W(0)
(`toward="start"`) the network stays near its linearisation for all times. Many networks are trained at once, each on data of
its own. Nothing of size width x samples is kept: the width is cut into tiles, so memory is a choice, at 10^5 units too.

In the limit of infinite width the network is linear in W: `Linear` follows that limit exactly, in as many numbers as there are
samples, for h itself or for the kernel of a finite network at its start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from squareloss._checks import choose

TOWARD = ("zero", "start")
CPU_TILE, CUDA_TILE = 1 << 19, 1 << 26  # numbers: what stays in a cache, and what keeps a GPU busy
# half the derivative of a sample's loss by the output: of (f - y)^2, and of log(1 + exp(-y f)) for labels y = +-1
LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "square": lambda f, y: f - y,
    "logistic": lambda f, y: -0.5 * y * torch.sigmoid(-y * f),
}


@dataclass
class Networks:
    """R networks of m hidden units on R^d.

    Attributes:
        weights: (R, m, d), the first layer as it is now.
        start: (R, m, d), as it was drawn.
        signs: (R, m), +1 or -1, the fixed second layer times sqrt(m).
        tile: how many numbers of size units x samples to hold at once; what `draw` sets suits the device.
    """

    weights: Tensor
    start: Tensor
    signs: Tensor
    tile: int = CPU_TILE

    def outputs(self, x: Tensor, *, at_start: bool = False) -> Tensor:
        """f(x) of each network: (R, N) for points x (R, N, d), or (N, d) that all networks share."""
        x = _points(x, self.weights)
        weights = self.start if at_start else self.weights
        total = x.new_zeros(x.shape[:2])
        for units in self.tiles(x.shape[1]):
            hidden = weights[:, units] @ x.mT  # (R, tile, N)
            total += torch.einsum("rm,rmn->rn", self.signs[:, units], hidden.relu_())
        return total / math.sqrt(self.width)

    def step(self, x: Tensor, y: Tensor, mu: float, rate: float, toward: str, loss: str = "square") -> None:
        """One step of descent in place, on points x (R, n, d) and targets y (R, n)."""
        residual = LOSSES[loss](self.outputs(x), y)
        scale = 2 * rate / math.sqrt(self.width)
        for units in self.tiles(x.shape[1]):
            weights = self.weights[:, units]
            active = ((weights @ x.mT) >= 0).to(x.dtype)  # (R, tile, n)
            gradient = self.signs[:, units, None] * (active @ (residual.unsqueeze(2) * x))  # (R, tile, d)
            centre = weights if toward == "zero" else weights - self.start[:, units]
            # written back whole: `weights` is a view of what is replaced
            self.weights[:, units] = weights - scale * gradient - (2 * rate * mu) * centre

    def kernel(self, x: Tensor, z: Tensor | None = None, *, at_start: bool = False) -> Tensor:
        """H(k), or with z the cross kernel: (R, N, M), x.z times the share of units that are active at both.

        Its mean over the start is h, and Z(k)'Z(k) in the notation of the theory.
        """
        x = _points(x, self.weights)
        z = x if z is None else _points(z, self.weights)
        weights = self.start if at_start else self.weights
        total = x.new_zeros(x.shape[0], x.shape[1], z.shape[1])
        for units in self.tiles(x.shape[1] + z.shape[1]):
            left, right = (((weights[:, units] @ points.mT) >= 0).to(x.dtype) for points in (x, z))
            total += left.mT @ right
        return total / self.width * (x @ z.mT)

    def moved(self) -> Tensor:
        """(R,) the largest distance that a unit has gone from its start, max_r |w_r(k) - w_r(0)|."""
        return (self.weights - self.start).square().sum(2).amax(1).sqrt()

    def changed(self, x: Tensor) -> Tensor:
        """(R,) the share of pairs of a unit and a point of x whose activation is not what it was at the start."""
        x = _points(x, self.weights)
        count = x.new_zeros(len(x))
        for units in self.tiles(2 * x.shape[1]):
            now, then = (weights[:, units] @ x.mT >= 0 for weights in (self.weights, self.start))
            count += (now != then).sum(dim=(1, 2)).to(x.dtype)
        return count / (self.width * x.shape[1])

    @property
    def width(self) -> int:
        """m, the number of hidden units."""
        return self.weights.shape[1]

    def tiles(self, points: int) -> Iterator[slice]:
        """Slices of the units, so small that all networks at once hold at most `tile` numbers of size units x points."""
        size = max(1, self.tile // max(1, len(self.weights) * points))
        for first in range(0, self.width, size):
            yield slice(first, min(first + size, self.width))


def draw(
    seeds: Sequence[int],
    width: int,
    dimension: int,
    *,
    xi: float = 1.0,
    antisymmetric: bool = False,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device = "cpu",
) -> Networks:
    """Networks at their start, one per seed: w_r ~ N(0, xi^2 I_d), a_r = +-1 with equal odds.

    A network depends on its seed alone, not on the others, nor on the device.

    Arguments:
        seeds: one per network.
        width: m, the number of hidden units.
        dimension: d, of the inputs.
        xi: the standard deviation of the weights.
        antisymmetric: the second half of the units repeats the first with opposite sign, so that f is zero at the start and
            its kernel is that of the first half; needs an even width.
        dtype, device: of the weights.
    """
    if width < 1 or dimension < 1:
        raise ValueError(f"expected a width and a dimension of 1 or more, got {width} and {dimension}")
    if antisymmetric and width % 2:
        raise ValueError(f"expected an even width for an antisymmetric start, got {width}")
    drawn = width // 2 if antisymmetric else width
    weights, signs = [], []
    for seed in seeds:
        generator = torch.Generator().manual_seed(seed)
        weights.append(torch.randn(drawn, dimension, generator=generator, dtype=torch.float64) * xi)
        signs.append(torch.randint(0, 2, (drawn,), generator=generator, dtype=torch.float64) * 2 - 1)
    w, a = torch.stack(weights), torch.stack(signs)
    if antisymmetric:
        w, a = torch.cat([w, w], 1), torch.cat([a, -a], 1)
    w, a = w.to(device, dtype), a.to(device, dtype)
    return Networks(w.clone(), w, a, CPU_TILE if w.device.type == "cpu" else CUDA_TILE)


def descend(
    networks: Networks,
    x: Tensor,
    y: Tensor,
    *,
    mu: float,
    rate: float,
    at: Sequence[int],
    toward: str = "zero",
    loss: str = "square",
) -> Iterator[int]:
    """Train networks in place by full-batch gradient descent, and pause after the numbers of steps in `at`, which are yielded.

        for k in descend(networks, x, y, mu=0.5, rate=0.05, at=[0, 10, 100]):
            print(k, networks.outputs(test))

    Arguments:
        networks: as drawn, or as left by an earlier call (then steps count from there).
        x: (R, n, d) points of each network, or (n, d) for all.
        y: (R, n) targets, or (n,) for all.
        mu: the penalty's weight, beside a sum over samples.
        rate: zeta, the step size; beyond 1 / (lambda_max(H) + mu) the descent diverges. See `safe_rate`.
        at: numbers of steps, ascending.
        toward: what the penalty pulls to: "zero", as in the paper, or "start".
        loss: "square", or "logistic" (cross-entropy of two classes, y = +-1), whose curvature is at most an eighth of the
            square's: it stands eight times the rate.
    """
    choose("loss", loss, LOSSES)
    choose("point of the penalty", toward, TOWARD)
    if mu < 0 or not rate > 0:
        raise ValueError(f"expected mu >= 0 and rate > 0, got mu = {mu}, rate = {rate}")
    if list(at) != sorted(set(at)) or (at and at[0] < 0):
        raise ValueError(f"expected numbers of steps that ascend from 0, got {list(at)}")
    x, y = _points(x, networks.weights), y.expand(len(networks.weights), -1)
    done = 0
    for stop in at:
        for _ in range(stop - done):
            networks.step(x, y, mu, rate, toward, loss)
        done = stop
        if not bool(networks.weights.isfinite().all()):
            raise ArithmeticError(f"the descent diverged within {stop} steps; lower the rate, {rate} now (see safe_rate)")
        yield stop


def safe_rate(kernel: Tensor, mu: float, share: float = 0.5) -> float:
    """share / (lambda_max(H) + mu) over all kernel matrices (..., n, n): a step size that converges where share < 1."""
    return share / (float(torch.linalg.eigvalsh(kernel)[..., -1].max()) + mu)


@dataclass(frozen=True)
class Linear:
    """The same descent on a network that is linear in W, in function space; exact, by one eigendecomposition.

    W(k) = W(0)-part + Z c_k, where the part of the start is kept (`toward="start"`) or shrinks as s_k = (1 - 2 zeta mu)^k
    (`toward="zero"`), so that f_k(x) = s_k f_0(x) + h(x, X) c_k. As k grows, f tends to ridge at the same mu (plus f_0, fitted
    to y - f_0, for "start"); at mu = 0 both are f_0 + h H^-1 (y - f_0).

    Attributes:
        values, vectors: (R, n), (R, n, n) eigenvalues and eigenvectors of H.
        goal, first: (R, n) y and f_0(X) in the eigenvectors' basis.
        mu, rate, toward: see `descend`.
    """

    values: Tensor
    vectors: Tensor
    goal: Tensor
    first: Tensor
    mu: float
    rate: float
    toward: str

    @classmethod
    def fit(cls, kernel: Tensor, y: Tensor, start: Tensor, *, mu: float, rate: float, toward: str = "zero") -> Linear:
        """From kernel matrices (R, n, n), targets (R, n), and the outputs (R, n) of the networks at their start."""
        choose("point of the penalty", toward, TOWARD)
        values, vectors = torch.linalg.eigh(kernel)
        goal, first = ((vectors.mT @ t.unsqueeze(2)).squeeze(2) for t in (y, start))
        return cls(values, vectors, goal, first, mu, rate, toward)

    def outputs(self, cross: Tensor, start: Tensor, steps: int) -> Tensor:
        """f_k at other points: (R, N), from their kernel with the samples (R, N, n) and the start's outputs there (R, N)."""
        kept = self.kept(steps)
        return kept * start + (cross @ self.coefficients(steps).unsqueeze(2)).squeeze(2)

    def kept(self, steps: int) -> float:
        """s_k, how much of f_0 is left."""
        return float((1 - 2 * self.rate * self.mu) ** steps) if self.toward == "zero" else 1.0

    def coefficients(self, steps: int) -> Tensor:
        """c_k (R, n).

        In each eigendirection c' = q c + 2 zeta (y - s_k f_0), q = 1 - 2 zeta (lambda + mu), from c = 0: a geometric sum, and
        for "zero" one of two rates, sum_j q^(k-1-j) p^j with p = 1 - 2 zeta mu, which is (p^k - q^k) / (2 zeta lambda).
        """
        zeta, mu, k = self.rate, self.mu, steps
        q = 1 - 2 * zeta * (self.values + mu)
        pull = _quotient(1 - q**k, 1 - q, float(k))
        if self.toward == "start":
            inner = 2 * zeta * (self.goal - self.first) * pull
        else:
            p = 1 - 2 * zeta * mu
            inner = 2 * zeta * (self.goal * pull - self.first * _quotient(p**k - q**k, p - q, k * p ** max(k - 1, 0)))
        return (self.vectors @ inner.unsqueeze(2)).squeeze(2)


def _quotient(above: Tensor, below: Tensor, limit: float) -> Tensor:
    """above / below, and its limit where both vanish."""
    small = below.abs() < 1e-13
    return torch.where(small, limit, above / torch.where(small, 1.0, below))


def _points(x: Tensor, weights: Tensor) -> Tensor:
    if x.ndim not in (2, 3) or x.shape[-1] != weights.shape[2] or (x.ndim == 3 and len(x) != len(weights)):
        raise ValueError(
            f"expected points (N, {weights.shape[2]}) or ({len(weights)}, N, {weights.shape[2]}), got {tuple(x.shape)}"
        )
    return x.expand(len(weights), -1, -1) if x.ndim == 2 else x
