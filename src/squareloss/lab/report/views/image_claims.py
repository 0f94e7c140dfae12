"""What the paper says of image networks in words, and whether it shows here, line by line; what stays of its robustness."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from squareloss.lab.report.statistics import Difference, mean_std, paired
from squareloss.lab.report.tables import Entry, Table
from squareloss.lab.report.views.image_rows import Net, label, pairs
from squareloss.lab.report.views.paper_images import LEVELS, STDS, TABLE_1, values

NEAR = 0.005  # of the paper's mean accuracy
FIT = 0.99  # right on training batches at the end
FAR = 0.8  # of what another attack leaves: a fifth fewer, at the least
LEAST = 1.0  # percent that some attack must leave for the attacks to be compared
L1 = "softmax_probability"
_PAPERS = (L1, "log_probability", "angle", "residual")  # the attack losses that the paper tried
_EXCEPTION = ("wrn16_10-cifar100-SL-b128", LEVELS[0])  # where, it says, L1 does not beat the angle
_COLUMNS = {
    "accuracy": "clean accuracy",
    "ece": "ECE",
    **{f"pgd_{level}": f"PGD at {level}/255" for level in LEVELS},
    **{f"autoattack_{level}": f"AutoAttack at {level}/255" for level in LEVELS},
    **{f"noise_{std}": f"noise {std}" for std in STDS},
}
HOLDS, NOT, OPEN = "holds", "does not hold", "can't be told from chance"
BY_MEANS, NOT_BY_MEANS = f"{HOLDS} by the means, {OPEN}", f"{NOT} by the means, {OPEN}"
OURS = "not in the paper"  # marks lines that ask more than the paper does
Line = tuple[str, str, str, str]  # network, what is claimed, what came, whether it holds


def claims(found: Sequence[Net]) -> Table:
    """Every claim that there are results for."""
    lines = [line for net in found for line in (*_accuracy(net), *_fit(net), *_losses(net))]
    lines += [line for ce, sl in pairs(found) for line in (*_calibration(ce, sl), *_orders(ce, sl, found), *_honest(ce, sl))]
    lines += _settings(found)
    kinds = {HOLDS: "agrees", NOT: "differs"}
    rows = [
        [Entry(where), Entry(text), Entry(here), Entry.words(word, kinds.get(word, ""))] for where, text, here, word in lines
    ]
    caption = (
        "Differences are over the seeds that both have; in brackets a 95% interval, Student's, from two seeds on (of two it is "
        "wide: 9 standard deviations to each side). One that has zero in it, or rests on one seed, can't be told from chance. "
        "Accuracy, and whether training images are fit, are judged by the mean alone. Far: a fifth fewer left. Fit: 99% right."
    )
    return Table("What the paper says, and what came", ["network", "the paper", "here", "so it"], rows, caption)


def tally(found: Sequence[Net]) -> list[str]:
    """A sentence: how many claims of the paper hold; none without claims."""
    words = [row[-1].text for row in claims(found).rows if OURS not in row[1].text]
    if not words:
        return []
    hold, fail, same = (words.count(word) for word in (HOLDS, NOT, BY_MEANS))
    rest = len(words) - hold - fail
    told = f" ({same} of them hold by the means)" if rest else ""
    return [
        f"Claims of the paper that could be tried: {len(words)}. Hold here: {hold}; do not: {fail}; "
        f"can't be told from chance: {rest}{told}."
    ]


def gaps(found: Sequence[Net]) -> Table:
    """How many points more of square loss stand than of cross-entropy, attack by attack, and what stays of it in the end."""
    attacks = {"pgd": "PGD, as the paper attacks", "pgd_least": "PGD, least over losses", "autoattack": "AutoAttack"}
    attacks |= {"least": "least over all"}
    rows = []
    for ce, sl in pairs(found):
        for level in LEVELS:
            seeds, gap = _gap(ce, sl, [f"{key}_{level}" for key in attacks])
            if not seeds or 100 * gap[0] < LEAST:
                continue
            stays = max(0.0, gap[-1] / gap[0])
            who = (_both(ce, sl), f"{level}/255", str(seeds))
            rows.append([*map(Entry, who), *(Entry(_points(d), d) for d in gap), Entry.number(stays, ".0%")])
    caption = (
        "Percent of the test images that stand under square loss, less those under cross-entropy, over the seeds that have all "
        "these attacks on both. An attack that fails on one loss more than on the other shows a gap that is not there."
    )
    names = ["network", "radius", "seeds", *attacks.values(), "of the first gap, stays"]
    return Table("What stays of the gap", names, rows, caption)


def _points(gap: float) -> str:
    """A gap in percent with its sign; "0.00" if nothing is left of it, or so little."""
    text = f"{100 * gap:+.2f}"
    return text if float(text) else text[1:]


def _gap(ce: Net, sl: Net, keys: Sequence[str]) -> tuple[int, list[float]]:
    """For how many seeds both networks have all of some measures, and their mean differences over these."""
    seeds = set.intersection(*(_shared(ce, sl, key) for key in keys))
    if not seeds:
        return 0, []
    return len(seeds), [sum(sl.by_seed(key)[s] - ce.by_seed(key)[s] for s in seeds) / len(seeds) for key in keys]


def _shared(ce: Net, sl: Net, key: str) -> set[int]:
    return set(ce.by_seed(key)) & set(sl.by_seed(key))


def _where(net: Net) -> str:
    data, network, loss = label(net.line)
    return f"{network}, {data}, {loss}" + ("" if net.usual else f" ({net.trained})")


def _both(ce: Net, sl: Net) -> str:
    data, network, loss = label(sl.line)
    adversary = f", {loss.split()[-1]}" if "-adv" in sl.line else ""
    return f"{network}, {data}{adversary}{_rates(ce, sl)}" + ("" if sl.usual else f" ({sl.trained})")


def _rates(ce: Net, sl: Net) -> str:
    """The learning rates and batch sizes of two networks, where there are pairs of others; a shorter training says its own."""
    if not sl.full:
        return ""
    if sl.line.endswith("-b128"):
        return ", both (.1, 128)" if ce.line.endswith("-b128") else ", CE (.01, 32), SL (.1, 128)"
    return ", both (.01, 32)" if f"{sl.line}-b128" in TABLE_1 else ""


def _accuracy(net: Net) -> list[Line]:
    paper, mine = net.paper.get("accuracy"), net.summary("accuracy")
    if paper is None or paper.mean is None or mine.mean is None or paper.mark:
        return []
    word = HOLDS if abs(mine.mean - paper.mean) <= NEAR else NOT
    theirs, ours = (mean_std(one.mean, one.std, lambda value: f"{100 * value:.2f}") for one in (paper, mine))
    return [(_where(net), f"accuracy {theirs}, to within half a point", ours, word)]


def _fit(net: Net) -> list[Line]:
    """Whether the training images are not fit, where the paper says so."""
    paper, mine = net.paper.get("accuracy"), net.summary("train_accuracy").mean
    if paper is None or paper.mean is None or not paper.mark or (mine is None and not net.diverged):
        return []
    here = "diverged" if mine is None else f"{100 * mine:.2f} on training batches"
    return [(_where(net), "training images are not fit", here, NOT if mine is not None and mine >= FIT else HOLDS)]


def _losses(net: Net) -> list[Line]:
    """Angle far better than square, L1 the best of the four, but for one exception; said of the networks of Table 1."""
    lines, asked = [], "" if net.line in TABLE_1 else f" ({OURS})"
    for level in LEVELS:
        left = {name: net.by_seed(f"pgd_{name}_{level}") for name in _PAPERS}
        told = {name: 100 * sum(seeds.values()) / len(seeds) for name, seeds in left.items() if seeds}
        if len(told) < len(_PAPERS) or max(told.values()) < LEAST:
            continue
        where, at = _where(net), f"attacks at {level}/255"
        far = _told(paired(left["angle"], _times(FAR, left["residual"])), up=False)
        here = f"{told['angle']:.2f} left by the angle, {told['residual']:.2f} by square loss"
        lines.append((where, f"{at}: angle far better than square loss{asked}", here, far))
        best, rival, text = L1, min((name for name in _PAPERS if name != L1), key=lambda name: told[name]), "is the best"
        if (net.line, level) == _EXCEPTION:
            best, rival, text = "angle", L1, "does not beat the angle"
        here = ", ".join(f"{name} {value:.2f}" for name, value in told.items())
        lines.append((where, f"{at}: L1, {L1}, {text}{asked}", here, _told(paired(left[best], left[rival]), up=False)))
    return lines


def _calibration(ce: Net, sl: Net) -> list[Line]:
    """Half of the calibration error, by two readings of eta; and what calibrators make of the order."""
    lines = []
    for reading, how in {"": "projected", "+renormalised": "clipped and renormalised"}.items():
        a, b = ce.by_seed("ece"), sl.by_seed(f"ece{reading}")
        if (d := paired(b, _times(0.5, a))) is not None:
            mine, theirs = _means(b, a)
            here = f"{mine:.4f} against {theirs:.4f}, {f'{mine / theirs:.2f} of it' if theirs else 'none'}"
            lines.append((_both(ce, sl), f"ECE of SL below half of CE's, eta {how} ({OURS})", here, _told(d, up=False)))
    for reading, how in {"+temperature": "after a temperature", "+asinh": "by Asinh"}.items():
        a, b = ce.by_seed(f"ece{reading}"), sl.by_seed(f"ece{reading}")
        if (d := paired(b, a)) is not None:
            mine, theirs = _means(b, a)
            here = f"{mine:.4f} against {theirs:.4f}: {_difference(d, 'ece')}"
            lines.append((_both(ce, sl), f"ECE {how} for both: SL below CE ({OURS})", here, _told(d, up=False)))
    return lines


def _orders(ce: Net, sl: Net, found: Sequence[Net]) -> list[Line]:
    """The order of the two in every column, by the paper's means; of shorter trainings where no full pair has the measure."""
    lines = []
    full = [(a, b) for a, b in pairs(found) if not sl.full and b.full and (a.line, b.line) == (ce.line, sl.line)]
    for key, text in _COLUMNS.items():
        theirs = [values().get(net.line, {}).get(key) for net in (ce, sl) if not net.stands_in]
        means = [value.mean for value in theirs if value and value.mean is not None]
        d = paired(sl.by_seed(key), ce.by_seed(key))
        if len(set(means)) < 2 or d is None or any(_shared(a, b, key) for a, b in full):
            continue
        up = means[1] > means[0]
        lines.append((_both(ce, sl), f"{text}: SL {'above' if up else 'below'} CE", _difference(d, key), _told(d, up)))
    return lines


def _settings(found: Sequence[Net]) -> list[Line]:
    """The order of accuracies by coding, learning rate and radius: by the paper's means, of the radius as its text has it."""
    full, lines = {net.line: net for net in found if net.usual}, []
    for line, net in full.items():
        codings = [line.replace("-SL", f"-{name}") for name in ("OH1", "OH5", "SLr1") if net.loss == "SL"]
        for other in (full[name] for name in (*codings, line.removesuffix("-b128")) if name != line and name in full):
            step = 1.0 if other.loss == "SLr1" else _paper(net) - _paper(other)
            d = paired(net.by_seed("accuracy"), other.by_seed("accuracy"))
            if abs(step) > 0 and d is not None:
                (data, network, mine), (_, _, rival) = label(line), label(other.line)
                text = f"clean accuracy: {mine} {'above' if step > 0 else 'below'} {rival}"
                lines.append((f"{network}, {data}", text, _difference(d, "accuracy"), _told(d, step > 0)))
    return lines


def _paper(net: Net) -> float:
    """The paper's mean accuracy, NaN if it has none."""
    value = net.paper.get("accuracy")
    return math.nan if value is None or value.mean is None else value.mean


def _honest(ce: Net, sl: Net) -> list[Line]:
    """Square loss is more robust: under the least over all attacks too, or, while that is missing, in the worst case?"""
    lines = []
    for level in LEVELS:
        for key, text in {f"least_{level}": "least over all attacks", f"worst_{level}": "worst case"}.items():
            d = paired(sl.by_seed(key), ce.by_seed(key))
            if d is not None:
                mine, theirs = _means(sl.by_seed(key), ce.by_seed(key))
                here = f"{100 * mine:.2f} against {100 * theirs:.2f}: {_difference(d, key)}"
                lines.append((_both(ce, sl), f"SL stands more at {level}/255, {text} ({OURS})", here, _told(d, up=True)))
                break
    return lines


def _told(d: Difference | None, up: bool) -> str:
    """Whether a difference goes the way it is said to, and whether that can be told."""
    if d is None or round(d.value, 9) == 0:
        return OPEN
    same = (d.value > 0) == up
    return (HOLDS if same else NOT) if d.sign else (BY_MEANS if same else NOT_BY_MEANS)


def _times(factor: float, by_seed: Mapping[int, float]) -> dict[int, float]:
    return {seed: factor * value for seed, value in by_seed.items()}


def _means(a: Mapping[int, float], b: Mapping[int, float]) -> tuple[float, float]:
    """Of both, over the seeds that both have, as their difference is."""
    seeds = set(a) & set(b)
    return sum(a[seed] for seed in seeds) / len(seeds), sum(b[seed] for seed in seeds) / len(seeds)


def _difference(d: Difference, key: str) -> str:
    unit, digits = (1, 4) if key.startswith("ece") else (100, 2)

    def show(value: float) -> str:
        return f"{unit * value:+.{digits}f}"

    return f"{show(d.value)} {d.interval(show) or f'({d.how})'}"
