"""What metrics return: a `Metric` is a float that carries its interval; an `Evaluation` is all of them for one classifier."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


class Metric(float):
    """A number with what must be said beside it. It is a float: compare it, format it, write it to JSON.

    Attributes:
        name: the metric.
        outside: the share of the outputs outside [0, 1], 0 for probabilities.
        low, high: a 95% interval; None where none was asked for.
        details: what else the metric tells, such as the bandwidth of `smooth_ece` or the floor of `nll`.
    """

    name: str
    outside: float
    low: float | None
    high: float | None
    details: dict[str, float]

    def __new__(
        cls,
        value: float,
        *,
        name: str = "",
        outside: float = 0.0,
        interval: tuple[float, float] | None = None,
        details: Mapping[str, float] | None = None,
    ) -> Metric:
        metric = super().__new__(cls, value)
        metric.name = name
        metric.outside = outside
        metric.low, metric.high = interval or (None, None)
        metric.details = dict(details or {})
        return metric

    def to_dict(self) -> dict[str, float | None]:
        """Plain numbers for JSON: value, low, high, outside and the details."""
        return {"value": float(self), "low": self.low, "high": self.high, "outside": self.outside, **self.details}

    def __repr__(self) -> str:
        interval = "" if self.low is None else f" [{self.low:.4g}, {self.high:.4g}]"
        outside = f", {self.outside:.2%} of the outputs outside [0, 1]" if self.outside else ""
        return f"{self.name} {float(self):.4g}{interval}{outside}"

    __str__ = __repr__


@dataclass(frozen=True)
class Evaluation(Mapping[str, Metric]):
    """Every metric of one classifier on one set of samples, by name: `evaluation["ece"]` is a `Metric`.

    Attributes:
        metrics: the metrics, by name.
        samples, classes: N and K.
        outside: the share of the N K outputs outside [0, 1].
        outside_mass: how far they lie outside, summed over the classes of a sample, averaged over samples.
        bootstrap, seed: the number of replicates behind the intervals, and where they came from.
        replicates: the bootstrap values of each metric, (R,). Two evaluations of the same samples with the same seed drew the
            same samples, so the difference of their replicates is a paired comparison.
    """

    metrics: dict[str, Metric]
    samples: int
    classes: int
    outside: float
    outside_mass: float
    bootstrap: int
    seed: int
    replicates: dict[str, Tensor] = field(default_factory=dict, repr=False, compare=False)

    def __getitem__(self, name: str) -> Metric:
        if name not in self.metrics:
            raise KeyError(f"Unknown metric {name!r}. Available: {', '.join(self.metrics)}")
        return self.metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON, without the replicates."""
        head = ("samples", "classes", "outside", "outside_mass", "bootstrap", "seed")
        return {name: getattr(self, name) for name in head} | {name: metric.to_dict() for name, metric in self.metrics.items()}

    def __str__(self) -> str:
        samples = f"{self.samples} sample{'s' * (self.samples > 1)}"
        lines = [f"{samples}, {self.classes} classes, {self.outside:.2%} of the outputs outside [0, 1]"]
        for name, metric in self.metrics.items():
            interval = "" if metric.low is None else f"  [{metric.low:.4f}, {metric.high:.4f}]"
            lines.append(f"  {name:<22} {float(metric):.4f}{interval}")
        return "\n".join(lines)
