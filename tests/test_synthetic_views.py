"""What the pages of the synthetic studies say: the choice of mu, the claims, slopes and fields."""

import base64
import dataclasses
import io
import math
import re

import numpy as np
import pytest
from scipy import stats

from squareloss.lab.report import fields
from squareloss.lab.report.views import _replicated as shared
from squareloss.lab.report.views import sine as sine_view
from squareloss.lab.runs.store import Record


def record(loss, mu, changed="", seed=0, **metrics):
    spec = {"task": "t", "loss": loss, "mu": mu, "changed": changed.partition("=")[0], "n": 100, "width": 10}
    if changed:
        key, _, value = changed.partition("=")
        spec[key] = value
    return Record("s", f"{loss}-{mu}", spec, "h", seed, "done", metrics, 1.0, "", None, {}, {}, "")


def test_mu_is_chosen_by_the_mean_validation_error():
    cells = shared.Cells.of(
        [
            record("SL", 0.0, validation_error=[0.1, 0.5]),
            record("SL", 0.01, validation_error=[0.2, 0.2]),
            record("SL", 0.1, validation_error=[0.2, 0.2]),
            record("SL", 1.0, validation_error=[0.0, 0.9]),
            record("SL", 0.1, "penalty=mean", validation_error=[0.9]),
            record("SL", 0.1, "lr=0.01", validation_error=[0.9]),
        ]
    )
    assert cells.best("SL") == 0.1  # the larger of two equal ones
    assert cells.best("SL", "penalty=mean") == 0.0  # without a penalty its reading does not matter
    assert cells.best("SL", "lr=0.01") == 0.1
    assert cells.best("CE") is None
    longer = [record("SL", 0.0, validation_error=[0.1, 0.1, 0.1]), record("SL", 0.1, validation_error=[0.12, 0.12])]
    assert shared.Cells.of(longer).best("SL") == 0.0  # over the two replications that both have
    zero_best = shared.Cells.of([record("CE", mu, validation_error=[mu]) for mu in (0.0, 0.001, 0.1)])
    assert (zero_best.best("CE"), zero_best.best("CE", above=0.0)) == (0.0, 0.001)


def test_replications_of_several_seeds_are_joined():
    cells = shared.Cells.of([record("SL", 0.0, seed=1, a=[3.0]), record("SL", 0.0, seed=0, a=[1.0, 2.0])])
    assert cells.values("SL", 0.0, "a") == [1.0, 2.0, 3.0]


def test_replications_stay_paired_where_one_diverged():
    lower = [record("SL", 0.0, seed=seed, a=[seed + 0.1, seed + 0.2]) for seed in range(3)]
    higher = [record("CE", 0.0, seed=seed, a=[seed + 0.3, seed + 0.4]) for seed in range(3)]
    lower[1] = dataclasses.replace(lower[1], status="diverged", metrics={"diverged": 1})
    cells = shared.Cells.of([*lower, *higher])
    d = shared.difference(cells.values("SL", 0.0, "a"), cells.values("CE", 0.0, "a"))
    assert d.value == pytest.approx(-0.2)
    assert shared.Cells.of(lower[1:2]).mus("SL") == []


def test_paired_tests_agree_with_scipy():
    a, b = np.random.default_rng(0).normal(size=(2, 12))
    assert shared.p_value(list(a), list(b)) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    distances = [np.abs(x - np.median(x)) for x in (a, 3 * b)]
    assert shared.spread_p_value(list(a), list(3 * b)) == pytest.approx(stats.ttest_rel(*distances).pvalue)
    assert shared.p_value([1.0, 1.0], [1.0, 1.0]) == 1.0 and math.isnan(shared.p_value([1.0], [0.0]))
    assert shared.p_value([0.1 * i for i in range(6)], [0.1 * i + 0.7 for i in range(6)]) == 2**-5, "by a sign test"
    for same in ([0.1, 0.2, 0.15], [math.inf, 0.2, 0.15]):  # the difference alike, or infinite: no interval, so no p
        assert math.isnan(shared.p_value(same, [0.2, 0.3, 0.25]))
    assert shared.spread_p_value([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]) == 1 and math.isnan(shared.spread_p_value([1.0], [2.0]))


def test_skewed_values_of_equal_spread_are_seldom_told_apart():
    """Pitman and Morgan's test of the variances would tell a quarter of these apart."""
    draws = np.random.default_rng(0).exponential(size=(1000, 2, 40))
    assert np.mean([shared.spread_p_value(list(a), list(b)) < 0.05 for a, b in draws]) == pytest.approx(0.05, abs=0.02)


def verdict(row):
    return row[-1].text


def test_claims_are_judged_by_the_paired_interval():
    b = [0.30, 0.42, 0.35, 0.55, 0.41]
    a = [v - 0.05 + e for v, e in zip(b, (0.01, -0.01, 0.005, 0.0, -0.005), strict=True)]
    assert verdict(shared.lower("", "", a, b)) == shared.HOLDS
    assert verdict(shared.lower("", "", b, a)) == shared.FAILS
    assert verdict(shared.higher("", "", b, a)) == shared.HOLDS
    assert verdict(shared.lower("", "", a, a[::-1])) == shared.OPEN
    assert verdict(shared.lower("", "", a[:1], b[:1])) == shared.OPEN  # one replication proves nothing
    assert verdict(shared.lower("", "", a, b, margin=0.1)) == shared.HOLDS
    assert verdict(shared.lower("", "", a, b, margin=0.05)) == shared.OPEN
    assert verdict(shared.lower("", "", a, b, margin=0.01)) == shared.FAILS


def test_claims_are_counted_and_those_that_fail_are_named():
    words = [shared.HOLDS, shared.OPEN, shared.FAILS, shared.HOLDS, shared.HOLDS]
    told = shared.tally([shared.claim(f"claim {'abcde'[i]}", "", "", math.nan, word) for i, word in enumerate(words)])
    assert [int(number) for number in re.findall(r"\d+", told)] == [5, 3, 1, 1] and re.findall("claim [a-e]", told) == [
        "claim c"
    ]


def test_spreads_are_judged_by_the_paired_test():
    rng = np.random.default_rng(0)
    narrow, wide = list(rng.normal(0, 1, 40)), list(rng.normal(0, 3, 40))
    assert verdict(shared.steadier("", "", narrow, wide)) == shared.HOLDS
    assert verdict(shared.steadier("", "", wide, narrow)) == shared.FAILS
    assert verdict(shared.steadier("", "", narrow, narrow[::-1])) == shared.OPEN
    wider = [1.2 * value for value in rng.permutation(narrow)]
    assert 0.05 < shared.spread_p_value(narrow, wider) < 0.5
    assert verdict(shared.steadier("", "", narrow, wider)) == shared.OPEN, "one in three such differences is chance"


def test_the_best_mu_is_judged_against_the_paper():
    errors = {0.01: [0.10, 0.12, 0.11], 0.1: [0.20, 0.23, 0.21], 1.0: [0.1, 0.2, 0.05]}
    cells = shared.Cells.of([record("SL", mu, validation_error=values) for mu, values in errors.items()])
    assert [verdict(shared.best_mu("", mu, cells, "SL")) for mu in (0.01, 0.1, 1.0, 7.0)] == [
        shared.OPEN, shared.FAILS, shared.OPEN, shared.OPEN,
    ]  # fmt: skip
    cells = shared.Cells.of([record("SL", mu, validation_error=errors[mu]) for mu in (0.01, 0.1)])
    assert [verdict(shared.best_mu("", mu, cells, "SL")) for mu in (0.01, 0.1)] == [shared.HOLDS, shared.FAILS]
    assert shared.best_mu("", 0.1, cells, "SL")[2].text.startswith(
        "0.01; validation error at 0.1 against 0.01: difference +0.1033"
    )


@pytest.mark.parametrize(("log", "from_zero"), [(False, True), (False, False), (True, True)])
def test_bars_against_mu_are_means_and_spreads(log, from_zero):
    values = {0.0: [0.2, 0.3, 0.25], 0.1: [0.4, 0.44, 0.48], 1.0: [0.9, 1.1, 1.3]}
    cells = shared.Cells.of([*(record("SL", mu, a=found) for mu, found in values.items()), record("CE", 0.1, a=[0.5, 0.6])])
    svg = shared.by_mu(cells, "a", "", "", log=log, from_zero=from_zero).svg
    assert svg.count('<circle class="dot c1"') == 1, "one loss has one mu alone"
    assert "<circle" not in shared.by_mu(cells, "other", "", "", log=log, from_zero=from_zero).svg
    dots = [float(y) for y in re.findall(r'<circle class="dot c0" cx="[\d.]+" cy="([\d.]+)"', svg)]
    bars = [[*map(float, ends)] for ends in re.findall(r'<path class="line c0" d="M[\d.]+ ([\d.]+)V([\d.]+)M', svg)]
    scale = np.log if log else np.asarray
    means, stds = (np.array([f(found) for found in values.values()]) for f in (np.mean, lambda found: np.std(found, ddof=1)))
    slope, start = np.polyfit(scale(means), dots, 1)  # pixels, downwards
    expected = start + slope * scale(np.stack([means - stds, means + stds], 1))
    np.testing.assert_allclose(bars, expected, atol=0.5)
    assert slope < 0 and (log or abs(start - 220) < 0.5 or not from_zero)


def sine_cells():
    """CE has the least validation error at mu = 1, where its L_inf error is large and steady; SL keeps mu = 0.01."""
    at = {
        ("SL", 0.01): (0.10, [0.20, 0.24, 0.22, 0.21]), ("SL", 1.0): (0.12, [0.30, 0.34, 0.32, 0.31]),
        ("CE", 0.01): (0.12, [0.20, 0.42, 0.36, 0.28]), ("CE", 1.0): (0.11, [0.45, 0.46, 0.45, 0.44]),
    }  # fmt: skip
    kept = lambda error, linf: {
        "validation_error": [error] * 4, "test_error": [error] * 4, "linf_grid": linf, "linf_test": linf,
        "l1_grid": [v / 10 for v in linf], "l1_test": [v / 10 for v in linf],
    }  # fmt: skip
    records = [
        record(loss, mu, **kept(*values), also={"temperature": {"linf_grid": [1 - mu / 2] * 4}})
        for (loss, mu), values in at.items()
    ]
    return shared.Cells.of([*records, record("SL", 0.01, "lr=0.01", **kept(0.1, [0.9] * 4))])


def test_mu_may_be_chosen_for_the_calibration_error():
    cells = sine_cells()
    assert (cells.best("SL"), cells.best("CE")) == (0.01, 1.0)
    assert (cells.best("CE", key="linf_grid"), cells.best("CE", key="also.temperature.linf_grid")) == (0.01, 1.0)
    chosen, nearest = ({row[0].text: row for row in table(cells).rows} for table in (sine_view.chosen, sine_view.nearest))
    assert [chosen[name][1].text for name in ("SL + l2", "CE + l2", "CE + l2, temperature")] == ["0.01", "1", "1"]
    assert [nearest[name][1].text for name in ("SL + l2", "CE + l2", "CE + l2, temperature")] == ["0.01", "0.01", "1"]
    assert chosen["SL + l2"][3].kind == "better" and nearest["SL + l2"][3].kind == ""  # beside CE at its mu there
    assert "SL + l2 by 0.217 (mu = 0.01); CE + l2 by 0.315 (mu = 0.01): can't be told" in sine_view._nearest_answer(cells)


def test_the_claims_are_told_for_each_choice_of_mu():
    rows = {row[0].text: row for row in sine_view.choices(sine_cells()).rows}
    assert list(rows) == ["least validation error", "least L_inf", "the same, 0.01", "the same, 1"]
    assert [rows[name][1].text for name in list(rows)[:2]] == ["0.01, 1", "0.01, 0.01"]
    assert [entry.text for entry in rows["least L_inf"][2:]] == [entry.text for entry in rows["the same, 0.01"][2:]]
    smaller = {name: [row[place].text for place in (3, 5, 7)] for name, row in rows.items()}
    assert smaller["least validation error"][0] == smaller["the same, 1"][0] == shared.HOLDS
    assert smaller["least L_inf"] == [shared.OPEN, shared.HOLDS, shared.OPEN]
    assert rows["least validation error"][2].text.startswith("0.2175 (0.0171) against 0.4500 (0.0082), difference -0.2325 [")


def test_readings_at_one_mu_stand_beside_ours_at_that_mu():
    rows = sine_view.readings(sine_cells()).rows  # CE has no other reading there, so SL's has no line
    assert [(row[0].text, row[2].text) for row in rows] == [("ours", "0.01, 1"), ("ours", "0.01, 0.01")]


def test_slopes_of_a_power_law():
    main = record("SL", 0.01, linf_grid=[0.1, 0.2, 9.0])
    other = [record("SL", 0.01, f"n={n}", linf_grid=[0.1 * (n / 100) ** -0.5, 0.2 * (n / 100) ** -0.25]) for n in (25, 400)]
    points = shared.Cells.of([main, *other]).curve("SL", "n", "linf_grid")
    assert list(points) == [25, 100, 400] and points[100] == [0.1, 0.2]
    assert sine_view.slope(points) == pytest.approx([-0.5, -0.25])


def test_fields():
    values = np.random.default_rng(0).random((5, 7))
    values[0, :2] = 0, 1
    assert fields.unpack(fields.pack([-0.5, 0.0, 1.0, 1.5]), 4).tolist() == [[0, 0, 1, 1]]
    assert np.abs(fields.unpack(fields.pack(values), 7) - values).max() <= 0.5 / 255 + 1e-12
    lines = [[(-2.0, 2.0), (0.3, -1.2)], [(1.0, 1.5)] * 3]
    back = fields.unpack_lines(fields.pack_lines(lines, 2.0), 2.0)
    assert [len(line) for line in back] == [2, 3]
    assert np.abs(np.concatenate(back) - np.concatenate(lines)).max() <= 2.0 / 999
    image = pytest.importorskip("PIL.Image")
    colours = fields.shade(values)
    file = base64.b64decode(fields.png(colours).partition(",")[2])
    assert np.array_equal(np.asarray(image.open(io.BytesIO(file))), colours)
    lightness = fields.shade(np.linspace(0, 1, 50)) @ np.array([0.299, 0.587, 0.114])
    assert (np.diff(lightness) > 0).all()  # in order without colours too
