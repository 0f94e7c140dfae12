"""The results of image studies by network: what the cells of a network measured, put together again, over its seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from squareloss.lab.report.header import Column
from squareloss.lab.report.statistics import Summary, mean_std, summarise
from squareloss.lab.report.views.paper_images import LEVELS, TABLE_1, Value, values
from squareloss.lab.runs.store import Record

_CELL = re.compile(r"(?P<line>.+)-(?P<kind>clean|readings|beyond|worst|pgd|autoattack|from-[^-]+)")
_EPOCHS = 200  # of the paper's recipes


@dataclass
class Net:
    """A line of a table under one recipe.

    Arguments:
        line: such as "resnet18-cifar10-SL".
        recipe: how it was trained, in words; full is whether that is as the paper trains.
        stands_in: what stands in for the network and its data, if something does.
        metrics: by seed, of all its cells.
        seconds: by kind of measure, one entry per seed.
        diverged: by seed, where the loss was no longer finite.
        weights: by seed, the marks of the networks measured; more than one if it was trained again in between.
    """

    line: str
    recipe: str
    full: bool
    stands_in: str = ""
    metrics: dict[int, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, dict[int, float]] = field(default_factory=dict)
    diverged: dict[int, Mapping[str, Any]] = field(default_factory=dict)
    weights: dict[int, set[str]] = field(default_factory=dict)

    @property
    def loss(self) -> str:
        """The name of its loss."""
        return self.line.split("-")[2]

    @property
    def epochs(self) -> str:
        """How long it was trained, and how attacked meanwhile, in words."""
        return self.recipe.split(", (")[0]

    @property
    def usual(self) -> bool:
        """Whether it was trained as the paper trains, with nothing to add."""
        return self.full and "," not in self.epochs

    @property
    def trained(self) -> str:
        """How it was trained, in words; an asterisk if something stands in for it."""
        return self.recipe + ("*" if self.stands_in else "")

    @property
    def paper(self) -> Mapping[str, Value]:
        """What the paper reports of it; nothing under another recipe."""
        return values().get(self.line, {}) if self.full else {}

    def by_seed(self, key: str) -> dict[int, float]:
        """A measure by seed, "ece+temperature" by that reading of probabilities; rounded, since 1 - 0.9 is not quite 0.1."""
        name, plus, reading = key.partition("+")
        found = {}
        for seed, metrics in self.metrics.items():
            read = metrics.get("readings", {}).get(plus + reading, {})
            own = read if plus else {**metrics, **read}
            if isinstance(own.get(name), (int, float)):
                found[seed] = round(float(own[name]), 9)
        return found

    def summary(self, key: str) -> Summary:
        """Mean and standard deviation over seeds."""
        return summarise(list(self.by_seed(key).values()))

    def show(self, column: Column) -> str:
        """Mean (std) as text, with the number of seeds if some lack it; a dash where there is nothing."""
        found = self.summary(column.key)
        missing = 0 < found.n < len(self.metrics)
        return mean_std(found.mean, found.std, column.show) + (f", {found.n} seed{'s' * (found.n > 1)}" if missing else "")


def papers(net: Net, found: Sequence[Net]) -> Mapping[str, Value]:
    """The paper's values for a network as the paper trains it or, while there is none, for one trained otherwise."""
    same = any(other.full and other.line == net.line for other in found)
    return net.paper if same or net.stands_in else values().get(net.line, {})


def paper_shown(value: Value | None, column: Column) -> str:
    """The paper's value as text."""
    if value is None:
        return "–"
    return value.mark if value.mean is None else mean_std(value.mean, value.std, column.show) + value.mark


def nets(records: Iterable[Record]) -> list[Net]:
    """The networks of some records; equal results of two studies count once."""
    found: dict[tuple[str, ...], Net] = {}
    for record in {(r.hash, r.seed): r for r in records}.values():
        parts = _CELL.fullmatch(record.cell)
        if parts is None:
            continue
        recipe, stands_in, kind = trained(record.spec["recipe"]), substitute(record), parts["kind"]
        full = record.spec["recipe"]["epochs"] == _EPOCHS and not stands_in
        net = found.setdefault((parts["line"], recipe, stands_in), Net(parts["line"], recipe, full, stands_in))
        net.weights.setdefault(record.seed, set()).add(record.metrics.get("weights", ""))
        if record.status == "diverged":
            net.diverged[record.seed] = record.metrics.get("diverged", {})
            continue
        source = kind.removeprefix("from-")  # of transferred examples: its "transfer_2" is kept as "transfer_2_CE"
        metrics = {f"{k}_{source}" if kind != source and "_" in k else k: v for k, v in record.metrics.items()}
        known = net.metrics.setdefault(record.seed, {})
        timings = known.get("timings", {}) | {kind: metrics.pop("timings", {})}
        readings = known.get("readings", {}) | metrics.pop("readings", {})
        known.update({**metrics, "timings": timings, "readings": readings})
        net.seconds.setdefault(kind, {})[record.seed] = record.seconds
    for net in found.values():
        for metrics in net.metrics.values():
            metrics |= _lowered(metrics)
    return sorted(found.values(), key=lambda net: (not net.full, net.epochs, _place(net.line)))


def _lowered(metrics: Mapping[str, Any]) -> dict[str, float]:
    """The least over all attacks, no more than the worst case: that may have been measured later, by a better suite."""
    return {
        f"least_{level}": min(metrics[f"least_{level}"], metrics[f"worst_{level}"])
        for level in LEVELS
        if {f"least_{level}", f"worst_{level}"} <= metrics.keys()
    }


def is_whole(record: Record) -> bool:
    """Whether a result is of a data set in whole, not of a part or a stand-in."""
    return record.spec["data"].get("name") in ("cifar10", "cifar100") and "train" not in record.spec["data"]


def trained(recipe: Mapping[str, Any]) -> str:
    """How a network was trained, in words."""
    mode = (recipe["adversary"] or {}).get("mode", "train")
    attack = "" if mode == "train" else f", PGD in {mode} mode"
    return f"{recipe['epochs']} epochs{attack}, ({recipe['lr']:g}, {recipe['batch_size']})"


def substitute(record: Record) -> str:
    """What stands in for the network and its data at smaller scales; nothing at the paper's."""
    data, network = record.spec["data"], record.spec["network"]["name"]
    return "" if is_whole(record) else f"{network} on {data.get('train', 'all')} training images of {data['name']}"


def label(line: str) -> tuple[str, str, str]:
    """Data, network and loss as people write them."""
    network, data, *rest = line.split("-")
    networks = {"resnet18": "ResNet-18", "resnet50": "ResNet-50", "wrn16_10": "WRN-16-10"}
    ends = {"b128": "(.1, 128)", "adv3": "PGD-3", "adv7": "PGD-7"}
    loss = " ".join([_LOSSES.get(rest[0], rest[0]), *(ends.get(part, part) for part in rest[1:])])
    return data.upper().replace("CIFAR", "CIFAR-"), networks.get(network, network), loss


_LOSSES = {
    "SLr1": "SL, radius 1",
    "OH1": "one-hot (1, 1)",
    "OH5": "one-hot (5, 15)",
    "OHK": "one-hot (K/5, 5)",
    "CEsmooth": "CE, smoothed .1",
}


def pairs(found: Sequence[Net]) -> list[tuple[Net, Net]]:
    """Each network by square loss with its counterparts by cross-entropy under the same length of training.

    The paper's table has cross-entropy at its better learning rate beside square loss at its own; at the same one it is a
    counterpart too.
    """
    by_name = {(net.line, net.epochs): net for net in found}
    both = []
    for net in (net for net in found if net.loss == "SL"):
        same = net.line.replace("-SL", "-CE")
        names = dict.fromkeys([same.removesuffix("-b128"), same] if net.line in TABLE_1 else [same])
        both += [(by_name[name, net.epochs], net) for name in names if (name, net.epochs) in by_name]
    return both


def _place(line: str) -> tuple[int, str]:
    known = list(values())
    return (known.index(line) if line in known else len(known), line)
