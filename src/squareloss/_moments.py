"""What a stream of samples leaves behind: sums that determine ridge on class codes, and a few samples to judge it by.

Codes are affine in the class indicator, so the only sums that ridge needs are the scatter of the features and, for each class,
its mass and the sum of its features. They add up over chunks, subtract when samples are forgotten, and take new classes as
rows of zeros; lambda, the scale of the features and the number of classes enter only when the sums are solved.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from squareloss.codings import Simplex

ROUNDING = 1e-9  # of the largest sums there were: less than that is no sign of anything
LEFT = 1e-13  # of the largest sums: so much may be left of what was added and taken away
RESERVOIR = 4096  # samples kept of a stream: two numbers are chosen by them


@dataclass
class Moments:
    """Weighted sums of z = x - origin in float64. The origin, a first mean, only guards against cancellation.

    Attributes:
        origin: (d,) fixed by the first samples.
        count: how many samples; mass: the sum of their weights.
        total: (d,) sum of s z; scatter: (d, d) sum of s z z', of which only the lower half is kept.
        class_mass, class_total: for each label set, (K,) and (K, d): the same sums over each class.
        most: the largest mass so far, and the largest diagonal (d,) of the scatter: rounding goes by them.
    """

    origin: Tensor
    count: int
    mass: float
    total: Tensor
    scatter: Tensor
    class_mass: list[Tensor]
    class_total: list[Tensor]
    most: tuple[float, Tensor]

    @classmethod
    def empty(cls, origin: Tensor, num_classes: Sequence[int]) -> Moments:
        """No samples yet."""
        d = len(origin)
        mass, total = [origin.new_zeros(k) for k in num_classes], [origin.new_zeros(k, d) for k in num_classes]
        return cls(origin, 0, 0.0, origin.new_zeros(d), origin.new_zeros(d, d), mass, total, (0.0, origin.new_zeros(d)))

    def add(self, x: Tensor, labels: Tensor, weight: Tensor, sign: int = 1) -> None:
        """Add (sign 1) or take away (sign -1) samples x (m, d), float64, with labels (m, S), one column per label set."""
        z = x - self.origin
        weighted = z if bool((weight == 1).all()) else z * weight.unsqueeze(1)  # most often ones: no copy then
        add_gram_(self.scatter, weighted, z, sign)
        self.total.add_(weighted.sum(0), alpha=sign)
        self.count += sign * len(x)
        self.mass += sign * float(weight.sum())
        for label, mass, total in zip(labels.T, self.class_mass, self.class_total, strict=True):
            mass.index_add_(0, label, weight, alpha=sign)
            total.index_add_(0, label, weighted, alpha=sign)
        self.most = max(self.most[0], self.mass), torch.maximum(self.most[1], self.scatter.diagonal())

    def possible(self) -> bool:
        """Whether there can be samples with these sums, up to rounding; if not, some were taken away that were not there.

        No class has a negative mass, one without mass has no features, and within the classes the scatter has no negative
        eigenvalue.
        """
        mass, diagonal = self.most
        return all(self._possible(m, t, mass, diagonal) for m, t in zip(self.class_mass, self.class_total, strict=True))

    def _possible(self, mass: Tensor, total: Tensor, most: float, diagonal: Tensor) -> bool:
        size = diagonal.sqrt().masked_fill(diagonal == 0, 1.0)
        there = mass > ROUNDING * most
        at_most = (ROUNDING * most) ** 0.5 * size  # |sum of s z|^2 <= sum of s  sum of s z^2
        if bool((mass < -ROUNDING * most).any()) or bool((total[~there].abs() > at_most).any()):
            return False
        means = total[there] / mass[there].sqrt().unsqueeze(1)
        within = (self.scatter - means.T @ means) / torch.outer(size, size)
        within.diagonal().add_(ROUNDING)
        return not bool(torch.linalg.cholesky_ex(within).info)

    def widen(self, label_set: int, positions: Sequence[int], num_classes: int) -> None:
        """Move the classes of a label set to new positions among `num_classes`; the others have no samples yet."""
        index = torch.as_tensor(positions, device=self.origin.device)
        mass, total = self.class_mass[label_set], self.class_total[label_set]
        self.class_mass[label_set] = mass.new_zeros(num_classes).index_copy_(0, index, mass)
        self.class_total[label_set] = total.new_zeros(num_classes, total.shape[1]).index_copy_(0, index, total)

    def mean(self) -> Tensor:
        """The weighted mean of the features, (d,)."""
        return self.origin + self.total / self.mass

    def deviation(self) -> Tensor:
        """The weighted standard deviation of each feature, (d,); one where the feature is constant."""
        shift = self.total / self.mass
        variance = self.scatter.diagonal() / self.mass - shift.square()
        rounding = LEFT * self.most[1] / self.mass  # what samples that were taken away may have left
        return deviation(variance.masked_fill(variance <= rounding, 0.0), self.mean())

    def about(self, centre: Tensor) -> tuple[Tensor, Tensor]:
        """sum of s (x - centre)(x - centre)' (d, d), lower half, and of s (x - centre) y' (d, W), y all codes side by side."""
        shift = centre - self.origin
        rest = self.total - self.mass * shift
        scatter = torch.addr(self.scatter, shift, self.total, alpha=-1).addr_(rest, shift, alpha=-1)
        rest = rest.unsqueeze(1)
        cross = []
        for mass, total in zip(self.class_mass, self.class_total, strict=True):
            code = Simplex().levels(len(mass))
            cross.append(code.off * rest + (code.on - code.off) * (total - torch.outer(mass, shift)).T)
        return scatter, torch.cat(cross, 1)

    def mean_code(self) -> Tensor:
        """The weighted mean of the codes of all label sets, (W,)."""
        codes = [Simplex().levels(len(mass)) for mass in self.class_mass]
        return torch.cat([c.off + (c.on - c.off) * m / self.mass for c, m in zip(codes, self.class_mass, strict=True)])


class Reservoir:
    """At most `RESERVOIR` samples of a stream, each as likely to be here as any other; all of a shorter stream.

    That stays so when samples are taken back, by random pairing (Gemulla, Lehner and Haas 2008): a sample that comes later
    makes up for one that left, and is kept with the odds that the other one had been kept. Until enough have come there are
    fewer samples here.
    """

    def __init__(self, random_state: int) -> None:
        self.generator = np.random.default_rng(random_state)
        self.seen = 0
        self.gone_kept, self.gone_other = 0, 0  # samples taken back, from here and not from here, and not made up for
        self.whole = True  # no sample of the stream is missing
        self.samples: tuple[Tensor, Tensor, Tensor] | None = None  # x, labels, weights

    def add(self, x: Tensor, labels: Tensor, weight: Tensor) -> None:
        """Offer samples x (m, d), labels (m, S), weights (m,)."""
        paired = min(self.gone_kept + self.gone_other, len(x))
        if paired:
            kept = int(self.generator.hypergeometric(self.gone_kept, self.gone_other, paired))
            rows = torch.from_numpy(np.sort(self.generator.choice(paired, kept, replace=False))).to(x.device)
            self._append(x[rows], labels[rows], weight[rows])
            self.gone_kept, self.gone_other = self.gone_kept - kept, self.gone_other - (paired - kept)
            self.seen += paired
            x, labels, weight = x[paired:], labels[paired:], weight[paired:]
        room = max(0, min(RESERVOIR - len(self), len(x)))
        self._append(x[:room], labels[:room], weight[:room])
        self.seen += room
        late = len(x) - room
        self.whole = self.whole and not late
        slots = self.generator.integers(0, self.seen + 1 + np.arange(late))  # of the i-th sample seen: uniform in [0, i)
        self.seen += late
        chosen = {int(slot): room + row for row, slot in enumerate(slots) if slot < RESERVOIR}  # the last one wins
        if chosen and self.samples is not None:
            where, which = (torch.tensor(list(index), device=x.device) for index in (chosen, chosen.values()))
            for here, offered in zip(self.samples, (x, labels, weight), strict=True):
                here[where] = offered[which]

    def discard(self, x: Tensor, labels: Tensor, weight: Tensor) -> None:
        """Drop one sample equal to each of these, where there is one."""
        if self.samples is None:
            return
        places: dict[bytes, list[int]] = {}
        for place, key in enumerate(keys(*self.samples)):
            places.setdefault(key, []).append(place)
        gone = [places[key].pop() for key in keys(x, labels, weight) if places.get(key)]
        self.whole = self.whole and len(gone) == len(x)
        self.gone_kept, self.gone_other = self.gone_kept + len(gone), self.gone_other + len(x) - len(gone)
        keep = torch.ones(len(self), dtype=torch.bool, device=x.device)
        keep[gone] = False
        self.samples = self.samples[0][keep], self.samples[1][keep], self.samples[2][keep]
        self.seen = max(self.seen - len(x), len(self))  # a sample that was never seen may have been taken back

    def widen(self, label_set: int, positions: Sequence[int]) -> None:
        """Rename the classes of a label set to their new positions."""
        if self.samples is not None:
            column = self.samples[1][:, label_set]
            column.copy_(torch.as_tensor(positions, device=column.device)[column])

    def __len__(self) -> int:
        return 0 if self.samples is None else len(self.samples[0])

    def blocks(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """The samples as one block (x, labels, weight)."""
        return [] if self.samples is None else [self.samples]

    def _append(self, x: Tensor, labels: Tensor, weight: Tensor) -> None:
        if self.samples is None:
            self.samples = x.clone(), labels.clone(), weight.clone()
        elif len(x):
            before = self.samples
            self.samples = torch.cat([before[0], x]), torch.cat([before[1], labels]), torch.cat([before[2], weight])


def add_gram_(out: Tensor, a: Tensor, b: Tensor, sign: int) -> None:
    """Add sign a' b to the lower half of a matrix (d, d), given that a' b is symmetric; the rest of it is left undefined."""
    step = max(256, len(out) // 4) if out.is_cpu else len(out)  # the blocks above the diagonal are not computed
    for j in range(0, len(out), step):
        out[j:, j : j + step].addmm_(a[:, j:].T, b[:, j : j + step], alpha=sign)


def deviation(variance: Tensor, mean: Tensor) -> Tensor:
    """The scale of each feature: its standard deviation, or one where it is constant up to rounding."""
    constant = variance <= (1e-12 * mean).square()
    return variance.clamp_min(0).sqrt().masked_fill(constant, 1.0)


def keys(x: Tensor, labels: Tensor, weight: Tensor) -> list[bytes]:
    """What tells samples x (m, d), labels (m, S), weights (m,) from others: 16 bytes each."""
    rows = (torch.cat([x.double(), weight.double().unsqueeze(1)], 1) + 0.0).cpu().numpy()  # + 0: -0 is 0
    marks = labels.cpu().numpy()
    return [blake2b(row.tobytes() + m.tobytes(), digest_size=16).digest() for row, m in zip(rows, marks, strict=True)]
