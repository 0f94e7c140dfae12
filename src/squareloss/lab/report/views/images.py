"""The image studies as tables in the paper's shape, ours beside the paper's, with what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from squareloss.lab.report.figures import Figure, Panel, legend
from squareloss.lab.report.header import Column, Header
from squareloss.lab.report.svg import Plot
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views import View
from squareloss.lab.report.views.image_claims import claims, gaps, tally
from squareloss.lab.report.views.image_cost import cost
from squareloss.lab.report.views.image_rows import Net, label, nets, paper_shown, papers
from squareloss.lab.report.views.paper_images import ADVERSARIAL, BESIDE_CODINGS, CODINGS, LEVELS, STDS, TABLE_1, Value
from squareloss.lab.runs.store import Record

Make = Callable[[Sequence[Net]], Table]
_EPOCHS = "200 epochs"
PAPER = f"the paper, {_EPOCHS}"
_WHO = ["data", "network", "loss", "trained", "seeds"]
_CLIMBED = {
    "softmax_probability": "softmax_probability, the paper's L1",
    "log_probability": "log_probability, the paper's L2",
    "residual": "residual, square loss itself",
    **{name: name for name in ("angle", "ce", "margin", "dlr")},
    "least": "the least over these, image by image",
}
_ATTACKS = {"pgd": "PGD", "autoattack": "AutoAttack", "worst": "worst case", "least": "least over all"}


def view(records: Sequence[Record], header: Header) -> View:
    """The tables and figures of one of the image studies."""
    found = nets(records)
    tables = [table for make in VIEWS_OF.get(header.study, ()) for table in apart(make, found)]
    figures = [robustness(found)] if header.study in ("table1", "adversarial_training") else []
    return View(tables, figures, [*tally(found), *cautions(found)], plain=False)


def apart(make: Make, found: Sequence[Net]) -> list[Table]:
    """A table; of those with a line for every measure one for each network, its data and its adversary: less wide."""
    groups: dict[str, list[Net]] = {}
    for net in found:
        data, network, loss = label(net.line)
        name = f"{network}, {data}" + (f", {loss.split()[-1]}" if net.line in ADVERSARIAL else "")
        groups.setdefault(name if make in (table_1, calibration, beyond) else "", []).append(net)
    made = {name: table for name, nets in groups.items() if (table := make(nets)).rows}
    if len(made) <= 1:
        return list(made.values())
    last = list(made)[-1]  # which explains them all
    return [
        replace(table, heading=f"{table.heading}: {name}", caption=table.caption if name == last else "")
        for name, table in made.items()
    ]


def cautions(found: Sequence[Net]) -> list[str]:
    """What stands in at small scales, what diverged, what is missing, and measures of a seed that are of several networks."""
    notes = dict.fromkeys(net.stands_in for net in found if net.stands_in)
    lines = [f"* This is not the paper's experiment but a small one like it: {note}." for note in notes]
    for net in found:
        name = " ".join(label(net.line))
        lines += [
            f"{name}, seed {seed}: diverged at epoch {at.get('epoch', '?')}." for seed, at in sorted(net.diverged.items())
        ]
        twice = sorted(seed for seed, marks in net.weights.items() if len(marks) > 1)
        if twice:
            seeds = ", ".join(map(str, twice))
            lines.append(f"{name}: its measures at seed {seeds} are of networks trained more than once.")
        for kind, spent in net.seconds.items():
            if lacking := sorted(set(net.metrics) - set(spent)):
                lines.append(f"{name}: not yet measured by {kind} at seed {', '.join(map(str, lacking))}.")
    return lines


def _table(heading: str, found: Sequence[Net], columns: Sequence[Column], caption: str) -> Table:
    """A row per network that has something in the columns; below it, the paper's."""
    known = [column for column in columns if any(net.by_seed(column.key) for net in found)]
    columns = known or columns[:1]  # of networks that have all diverged
    rows = []
    for net in found:
        if not (net.diverged or any(net.by_seed(column.key) for column in columns)):
            continue
        who = (*label(net.line), net.trained, str(len(net.metrics) or len(net.diverged)))
        rows.append([*map(Entry, who), *(_ours(net, column) for column in columns)])
        paper = [papers(net, found).get(column.key) for column in columns]
        if any(paper):
            theirs = [Entry(paper_shown(value, column)) for value, column in zip(paper, columns, strict=True)]
            rows.append([*map(Entry, ("", "", "", PAPER, _runs(paper))), *theirs])
    caption += " Trained: epochs, (learning rate, batch size)."
    table = Table(heading, [*_WHO, *(column.label for column in columns)], rows, caption)
    return _turned(table) if len(columns) > len(rows) else table


def _runs(paper: Sequence[Value | None]) -> str:
    return next((str(value.runs) for value in paper if value and value.runs), "?")


def _turned(table: Table) -> Table:
    """The same with a row per measure: less wide where there are few networks. What all have in common is at the top left."""
    if not table.rows:
        return table
    owners = [tuple(entry.text for entry in row[:3]) for row in table.rows]
    same = len({owner[:2] for owner in owners if owner[0]}) == 1
    names = [(loss if same else f"{network}, {data}, {loss}") if data else "the paper" for data, network, loss in owners]
    corner = f"{table.rows[0][1].text}, {table.rows[0][0].text}" if same else "measure"
    rows = [[Entry(name), *(row[i] for row in table.rows)] for i, name in enumerate(table.columns) if i >= 3]
    rows[0] = [Entry(_EPOCHS if entry.text == PAPER else entry.text) for entry in rows[0]]  # how each was trained
    return Table(table.heading, [corner, *names], rows, table.caption)


def _percent(key: str, label: str) -> Column:
    return Column(key, label, percent=True)


def _ours(net: Net, column: Column) -> Entry:
    if net.diverged and not net.metrics:
        return Entry("diverged", None, "diverged")
    return Entry(net.show(column), net.summary(column.key).mean)


def table_1(found: Sequence[Net]) -> Table:
    """Clean accuracy and what the attacks leave."""
    columns = [_percent("accuracy", "clean")]
    columns += [_percent(f"{key}_{level}", f"{name} {level}/255") for key, name in _ATTACKS.items() for level in LEVELS]
    caption = (
        "Percent of the test images, mean (std) over seeds. PGD (100 steps at scale paper) as the paper attacks: by "
        "cross-entropy, of square loss by its L1. The worst case is over the adaptive suite of docs/attacks.md; least over "
        "all is per image over AutoAttack, on scores and on eta, and that suite. 0* is the paper's: above 0, below 0.1."
    )
    mine = _only(_compared(found, columns), lambda net: net.line not in ADVERSARIAL)
    return _table("Accuracy and robustness", mine, columns, caption)


def summary(found: Sequence[Net]) -> Table:
    """ResNet-18 on CIFAR-10 in a few columns."""
    columns = [
        _percent("accuracy", "accuracy, %"),
        Column("ece", "ECE, as trained"),
        Column("ece+renormalised", "ECE, eta clipped and renormalised"),
        Column("ece+temperature", "ECE, after a temperature"),
        Column("ece+asinh", "ECE, by Asinh"),
        _percent("pgd_2", "accuracy under PGD-100 at 2/255, %"),
        _percent("autoattack_2", "accuracy under AutoAttack at 2/255, %"),
    ]
    mine = _only(found, lambda net: net.line in ("resnet18-cifar10-CE", "resnet18-cifar10-SL"))
    caption = (
        "Mean (std) over seeds. ECE of softmax or of projected eta; the paper does not say how it reads eta. PGD as the paper "
        "attacks: by cross-entropy, of square loss by its L1."
    )
    return _table("ResNet-18 on CIFAR-10", _only(mine, lambda net: net.full) or mine, columns, caption)


def attack_losses(found: Sequence[Net]) -> Table:
    """PGD by each loss: a row per loss, those of a network together."""
    levels = [level for level in LEVELS if any(net.by_seed(f"pgd_least_{level}") for net in found)]
    rows = []
    for net in found:
        names = [name for name in _CLIMBED if any(net.by_seed(f"pgd_{name}_{level}") for level in levels)]
        who = [", ".join(label(net.line)), net.trained, str(len(net.metrics))]
        for place, name in enumerate(names):
            words = [*(who if place == 0 else ["", "", ""]), _CLIMBED[name]]
            left = [_ours(net, _percent(f"pgd_{name}_{level}", "")) for level in levels]
            rows.append([*(Entry.words(word) for word in words), *left])
    caption = "Percent of the test images left by PGD (100 steps at scale paper) on each loss alone, mean (std) over seeds."
    names = ["network", "trained", "seeds", "it climbs", *(f"{level}/255" for level in levels)]
    return Table("PGD by attack loss", names, rows, caption)


def noise(found: Sequence[Net]) -> Table:
    """Accuracy under Gaussian noise."""
    columns = [_percent("accuracy", "clean"), *(_percent(f"noise_{std}", f"noise {std}") for std in STDS)]
    caption = "Percent; noise of that standard deviation in standardised space."
    return _table("Gaussian noise", _compared(found, columns), columns, caption)


def calibration(found: Sequence[Net]) -> Table:
    """ECE, smooth ECE, Brier score and NLL, as trained, by two readings of eta, and calibrated on held-out images."""
    four = {"ece": "ECE", "smooth_ece": "smooth ECE", "brier": "Brier", "nll": "NLL"}
    columns = [
        _percent("accuracy", "accuracy, %"),
        Column("ece", "ECE"),
        Column("ece_clipped", "ECE, clipped eta"),
        Column("smooth_ece", "smooth ECE"),
        Column("brier", "Brier"),
        Column("nll", "NLL"),
        *(Column(f"{key}+renormalised", f"{name}, eta clipped and renormalised") for key, name in four.items()),
        Column("temperature", "temperature"),
        *(Column(f"{key}+temperature", f"{name} after it") for key, name in four.items()),
        *(Column(f"{key}+asinh", f"{name}, by Asinh") for key, name in four.items()),
        *(Column(f"{key}+isotonic", f"{name}, isotonic regression") for key, name in four.items()),
    ]
    caption = (
        "ECE with 15 bins, of softmax or of projected eta; the paper does not say how it reads eta. After a temperature, by "
        "calibrators.Asinh and by isotonic regression: each half of the test set by what was fitted on the other half. "
        "Where a reading has zeros (all but softmax and Asinh), probabilities in the NLL are floored at 1e-12."
    )
    return _table("Calibration", _only(_compared(found, columns), lambda net: bool(net.metrics)), columns, caption)


def adversarial(found: Sequence[Net]) -> Table:
    """Adversarial training."""
    columns = [_percent("accuracy", "clean"), *(_percent(f"{key}_8", f"{name} 8/255") for key, name in _ATTACKS.items())]
    mine = _only(found, lambda net: net.line in ADVERSARIAL)
    return _table("Adversarial training", mine, columns, "Percent. The paper does not say how many runs.")


def codings(found: Sequence[Net]) -> Table:
    """One-hot against simplex."""
    columns = [_percent("accuracy", "accuracy"), _percent("train_accuracy", "on training batches"), Column("ece", "ECE")]
    caption = "Percent, but for ECE. An asterisk: the paper's training accuracy shows no fit."
    order = [*CODINGS, *BESIDE_CODINGS]
    mine = sorted(_only(found, lambda net: net.line in order), key=lambda net: order.index(net.line))
    one_hot = any(net.loss.startswith("OH") for net in mine)  # simplex alone compares nothing
    return _table("Codings", mine if one_hot else [], columns, caption)


def beyond(found: Sequence[Net]) -> Table:
    """Neural collapse, other images, transferred examples."""
    columns = [
        Column("nc1", "NC1"),
        Column("nc2_norms", "NC2 norms"),
        Column("nc2_angles", "NC2 angles"),
        Column("nc3", "NC3"),
        _percent("nc4", "NC4, %"),
        Column("auroc_probability", "AUROC by probability"),
        Column("auroc_score", "AUROC by score"),
        *(_percent(f"transfer_{x}_{s}", f"stand examples of {s}, {x}/255, %") for s in ("CE", "SL") for x in LEVELS),
    ]
    caption = (
        "Neural collapse on the training images; AUROC of telling CIFAR-100's test images from CIFAR-10's; percent right on "
        "examples made on the other network, of the images that both have right."
    )
    return _table("Beyond the paper", _only(found, lambda net: bool(net.metrics)), columns, caption)


def robustness(found: Sequence[Net]) -> Figure:
    """What each attack leaves by radius, a panel per network."""
    caption = (
        "Share of the test images that stand, by radius in 255ths: under PGD by the paper's loss, under AutoAttack, in the "
        "worst case, and under the least over all (heavy). The gap between the lines is what a weak attack hides."
    )
    return Figure("Robustness", caption, [panel for net in found if (panel := _panel(net)) is not None])


def _panel(net: Net) -> Panel | None:
    curves = {}
    for key, name in _ATTACKS.items():
        points = [(0.0, net.summary("accuracy").mean), *((float(x), net.summary(f"{key}_{x}").mean) for x in LEVELS)]
        curves[name] = [(x, y) for x, y in points if y is not None]
    curves = {name: known for name, known in curves.items() if len(known) > 1}
    if not curves:
        return None
    heading = " ".join(label(net.line))
    plot, last = Plot("radius in 255ths", "robust accuracy", (0, max(LEVELS)), (0, 1), heading, percent=True), _ATTACKS["least"]
    for colour, (name, known) in enumerate(curves.items()):
        plot.line(known, colour, name, heavy=name == last)
    return Panel(heading, plot.svg(), legend(curves, heavy=last), net.trained)


def _compared(found: Sequence[Net], columns: Sequence[Column]) -> list[Net]:
    """All but such as are of the table of codings alone, and but those whose measures one trained as in the paper has all.

    Under `fast`, with batches of one size, the network of Table 1 that the paper trains at batch 128 is named without "-b128".
    """

    def measured(net: Net) -> set[str]:
        return {column.key for column in columns if net.by_seed(column.key)}

    full = {net.line: measured(net) for net in found if net.full and net.metrics}  # one that diverged takes no other's place

    def is_compared(net: Net) -> bool:
        fast = f"{net.line}-b128" in TABLE_1 and not net.recipe.endswith(", 32)")
        replaced = not net.full and net.line in full and measured(net) <= full[net.line]
        return (net.line in TABLE_1 or net.line not in (*CODINGS, *BESIDE_CODINGS) or fast) and not replaced

    return _only(found, is_compared)


def _only(found: Sequence[Net], test: Callable[[Net], bool]) -> list[Net]:
    return [net for net in found if test(net)]


VIEWS_OF: dict[str, tuple[Make, ...]] = {
    "table1": (table_1, gaps, claims, attack_losses, calibration, cost),
    "gaussian_noise": (noise, claims),
    "reliability": (calibration, claims),
    "adversarial_training": (adversarial, gaps, claims, attack_losses, calibration, noise, cost),
    "codings": (codings, claims),
    "beyond_paper": (beyond, table_1, attack_losses, calibration, cost),
}
