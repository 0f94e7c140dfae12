"""What the paper says of image networks in words, and whether it shows here: one line each."""

from __future__ import annotations

from collections.abc import Sequence

from squareloss.lab.report.statistics import paired
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views.image_rows import Net, label, pairs, shown

LEVELS = (2, 4, 8)
NEAR = 0.005  # of the paper's mean accuracy
LEAST = 1.0  # percent that some attack must leave for the attacks to be compared
_PAPERS = ("softmax_probability", "log_probability", "angle", "residual")  # the attack losses that the paper tried
_COLUMNS = {
    "accuracy": "clean accuracy",
    "ece": "ECE",
    **{f"pgd_{level}": f"PGD at {level}/255" for level in LEVELS},
    **{f"autoattack_{level}": f"AutoAttack at {level}/255" for level in LEVELS},
    **{f"noise_{std}": f"noise {std}" for std in (0.1, 0.2, 0.3, 0.4)},
}
HOLDS, NOT, OPEN = "holds", "does not hold", "not told apart"
OURS = "not in the paper"  # marks lines that ask more than the paper does
Line = tuple[str, str, str, str]  # network, what is claimed, what came, whether it holds


def claims(found: Sequence[Net]) -> Table:
    """Every claim that there are results for."""
    lines = [line for net in found for line in (*_accuracy(net), *_losses(net))]
    lines += [line for ce, sl in pairs(found) for line in (*_calibration(ce, sl), *_orders(ce, sl), *_worst(ce, sl))]
    kinds = {HOLDS: "agrees", NOT: "differs"}
    rows = [
        [Entry(where), Entry(text), Entry(here), Entry(word, word, kinds.get(word, ""))] for where, text, here, word in lines
    ]
    caption = "Differences are paired by seed; in brackets a 95% interval, from two seeds on. Far: a fifth fewer left."
    return Table("What the paper says, and what came", ["network", "the paper", "here", "so it"], rows, caption)


def tally(found: Sequence[Net]) -> list[str]:
    """A sentence: how many claims of the paper hold; none without claims."""
    words = [row[-1].text for row in claims(found).rows if OURS not in row[1].text]
    if not words:
        return []
    hold, fail, rest = (words.count(word) for word in (HOLDS, NOT, OPEN))
    return [
        f"Claims of the paper that could be tried: {len(words)}. Hold here: {hold}; do not: {fail}; not told apart: {rest}."
    ]


def _where(net: Net) -> str:
    data, network, loss = label(net.line)
    return f"{network}, {data}, {loss}" + ("" if net.full else f" ({net.recipe}{'*' if net.stands_in else ''})")


def _both(sl: Net) -> str:
    data, network, _ = label(sl.line)
    adversary = next((f", {part}" for part in sl.line.split("-") if part.startswith("adv")), "")
    return f"{network}, {data}{adversary}" + ("" if sl.full else f" ({sl.recipe}{'*' if sl.stands_in else ''})")


def _accuracy(net: Net) -> list[Line]:
    paper, mine = net.paper.get("accuracy"), net.summary("accuracy")
    if paper is None or paper.mean is None or mine.mean is None or paper.mark:
        return []
    word = HOLDS if abs(mine.mean - paper.mean) <= NEAR else NOT
    return [(_where(net), f"accuracy {shown(paper.mean, paper.std)}, to within half a point", shown(mine.mean, mine.std), word)]


def _losses(net: Net) -> list[Line]:
    """Angle far better than square, L1 the best of the four."""
    lines = []
    for level in LEVELS:
        left = {name: net.summary(f"pgd_{name}_{level}").mean for name in _PAPERS}
        told = {name: 100 * (value or 0.0) for name, value in left.items()}
        if None in left.values() or max(told.values()) < LEAST:
            continue
        here = f"{told['angle']:.2f} left by the angle, {told['residual']:.2f} by square loss"
        far = told["angle"] < 0.8 * told["residual"]  # a fifth fewer, at the least
        lines.append((_where(net), f"attacks at {level}/255: angle far better than square loss", here, HOLDS if far else NOT))
        best = min(told, key=lambda name: told[name])
        first = told["softmax_probability"] <= told[best] + 1e-9
        here = ", ".join(f"{name} {value:.2f}" for name, value in told.items())
        lines.append(
            (_where(net), f"attacks at {level}/255: L1, softmax_probability, is the best", here, HOLDS if first else NOT)
        )
    return lines


def _calibration(ce: Net, sl: Net) -> list[Line]:
    lines = []
    for key, text in {"ece": "as trained", "ece+temperature": f"after a temperature for both ({OURS})"}.items():
        a, b = ce.summary(key).mean, sl.summary(key).mean
        if a is None or b is None:
            continue
        word = HOLDS if b < a / 2 else NOT
        lines.append((_both(sl), f"ECE of SL below half of CE's, {text}", f"{b:.4f} against {a:.4f}", word))
    return lines


def _orders(ce: Net, sl: Net) -> list[Line]:
    """The order of the two in every column, by the paper's means."""
    lines = []
    for key, text in _COLUMNS.items():
        theirs = [net.paper.get(key) for net in (ce, sl)]
        if any(value is None or value.mean is None for value in theirs) or theirs[0] == theirs[1]:
            continue
        d = paired(sl.by_seed(key), ce.by_seed(key))
        if d is None:
            continue
        up = (theirs[1].mean or 0) > (theirs[0].mean or 0)  # type: ignore[union-attr]
        word = OPEN if d.value == 0 or (d.low is not None and d.sign == 0) else HOLDS if (d.value > 0) == up else NOT
        lines.append((_both(sl), f"{text}: SL {'above' if up else 'below'} CE", _difference(d.value, d.low, d.high, key), word))
    return lines


def _worst(ce: Net, sl: Net) -> list[Line]:
    """Square loss is more robust: in the worst case too?"""
    lines = []
    for level in LEVELS:
        for key, text in {f"worst_{level}": "worst case", f"least_{level}": "least over all attacks"}.items():
            d = paired(sl.by_seed(key), ce.by_seed(key))
            if d is not None:
                word = OPEN if d.value == 0 or (d.low is not None and d.sign == 0) else HOLDS if d.value > 0 else NOT
                here = f"{sl.show(key)} against {ce.show(key)}: {_difference(d.value, d.low, d.high, key)}"
                lines.append((_both(sl), f"SL stands more at {level}/255, {text} ({OURS})", here, word))
    return lines


def _difference(value: float, low: float | None, high: float | None, key: str) -> str:
    unit, digits = (1, 4) if key.startswith("ece") else (100, 2)
    interval = "" if low is None or high is None else f" [{unit * low:+.{digits}f}, {unit * high:+.{digits}f}]"
    return f"{unit * value:+.{digits}f}{interval}"
