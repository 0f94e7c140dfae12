"""The tables of docs/results.md, for fill.py: from results/images, in the shape that the studies' reports have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from markdown_tables import of_report  # beside this file
from markdown_tables import table as markdown

from squareloss.lab.report.views import image_claims, image_cost, images
from squareloss.lab.report.views.image_rows import Net, is_whole, label, nets
from squareloss.lab.runs import Record, Store

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "results" / "images"


def records() -> list[Record]:
    """The results on whole data sets, not on parts or stand-ins."""
    return [r for r in Store(RESULTS, create=False).records() if is_whole(r)]


@cache
def found() -> list[Net]:
    """The networks they are of."""
    return nets(records())


def table(make: images.Make) -> str:
    """A table of the reports, as Markdown, with its caption; in parts if it is in parts there."""
    return "\n\n".join(map(of_report, images.apart(make, found())))


def tally() -> str:
    """How many claims of the paper hold."""
    return "\n\n".join(image_claims.tally(found()))


def front() -> str:
    """The README's part."""
    lead = "The paper's image networks, its numbers beside ours ([docs/results.md](docs/results.md) has all):"
    return f"{lead}\n\n{table(images.summary)}"


def runs() -> str:
    """Where and by which commands they were run, and what must be said with them."""
    chips = sorted({f"{r.hardware.get('gpu') or r.hardware.get('cpu')}, torch {r.versions.get('torch')}" for r in records()})
    commands = list(dict.fromkeys(r.command for r in sorted(records(), key=lambda r: r.date)))
    cautions = [f"- {line}" for line in images.cautions(found())]
    return "\n".join([f"Run on {'; '.join(chips)}, by:", "", "```", *commands, "```", "", *cautions]).rstrip()


def who(net: Net) -> tuple[str, str, str]:
    """Data, network and loss; with the number of epochs, and how it was attacked in them, if it is not the paper's."""
    data, network, loss = label(net.line)
    return data, network + ("" if net.usual else f", {net.epochs}"), loss


def suites() -> str:
    """What `worst_case` and AutoAttack leave of each network at 2/255, and spend, beside PGD on its own loss."""
    percent = lambda metrics, key: f"{100 * metrics[key]:.2f}" if key in metrics else "–"
    rows = []
    for net in found():
        for seed, metrics in sorted(net.metrics.items()):
            own = "pgd_residual_2" if "SL" in net.loss else "pgd_ce_2"
            if {"worst_2", "worst_passes_2", "autoattack_2"} <= metrics.keys():
                spent = [metrics.get(f"{suite}_passes_2") for suite in ("worst", "autoattack")]
                an_image = ["–" if passes is None else f"{passes / metrics['points']:.0f}" for passes in spent]
                left = [percent(metrics, key) for key in (own, "worst_2", "autoattack_2")]
                ratio = f"{spent[0] / spent[1]:.3f}" if spent[1] else "–"
                rows.append([*who(net), str(seed), *left, *an_image, ratio])
    columns = ["data", "network", "loss", "seed", "PGD on its own loss leaves, %", "worst_case leaves, %",
               "autoattack leaves, %", "passes an image, worst_case", "autoattack", "ratio"]  # fmt: skip
    return markdown(columns, rows)


def readings(first: str, second: str) -> list[tuple[Net, list[int], list[str]]]:
    """Networks whose probabilities were read both ways, their seeds, and pairs of mean ECE, Brier score and NLL."""
    both = []
    for net in found():
        seeds = sorted(net.by_seed(f"ece{first}").keys() & net.by_seed(f"ece{second}").keys())
        if seeds:
            pairs = [", ".join(mean(net, key + way, seeds) for way in (first, second)) for key in ("ece", "brier", "nll")]
            both.append((net, seeds, pairs))
    return both


def mean(net: Net, key: str, seeds: list[int]) -> str:
    """The mean of a measure over some seeds."""
    return f"{sum(net.by_seed(key)[seed] for seed in seeds) / len(seeds):.4f}"


def asinh() -> str:
    """What a temperature and `Asinh` make of each network's probabilities."""
    rows = [[*who(net), str(len(s)), mean(net, "ece", s), *pairs] for net, s, pairs in readings("+temperature", "+asinh")]
    columns = ["data", "network", "loss", "seeds", "ECE as trained"]
    columns += [f"{name}: `Temperature`, `Asinh`" for name in ("ECE", "Brier", "NLL")]
    return markdown(columns, rows)


def clipping() -> str:
    """Eta of each network made probabilities by projection, and by clipping."""
    rows = [[*who(net), str(len(s)), *pairs[:2]] for net, s, pairs in readings("", "+renormalised")]
    return markdown(["data", "network", "loss", "seeds", "ECE: projected, clipped", "Brier: projected, clipped"], rows)


def figures() -> str:
    """The figures that docs/figures/images.py has drawn."""
    drawn = {"robustness": "What attacks leave, by radius and by attack", "reliability": "Reliability diagrams"}
    lines = []
    for name, text in drawn.items():
        for path in sorted((DOCS / "figures").glob(f"images-{name}-*.svg")):
            data, network, _ = label(path.stem.removeprefix(f"images-{name}-") + "-CE")
            lines.append(f"![{text}: {network}, {data}](figures/{path.name})")
    return "\n\n".join(lines)


TABLES: dict[str, Callable[[], str]] = {
    "images": front,
    "images-table1": partial(table, images.table_1),
    "images-gaps": partial(table, image_claims.gaps),
    "images-losses": partial(table, images.attack_losses),
    "images-noise": partial(table, images.noise),
    "images-calibration": partial(table, images.calibration),
    "images-adversarial": partial(table, images.adversarial),
    "images-codings": partial(table, images.codings),
    "images-beyond": partial(table, images.beyond),
    "images-cost": partial(table, image_cost.cost),
    "images-tally": tally,
    "images-claims": partial(table, image_claims.claims),
    "images-runs": runs,
    "images-figures": figures,
    "worst-case-networks": suites,
    "asinh": asinh,
    "clipping": clipping,
}
