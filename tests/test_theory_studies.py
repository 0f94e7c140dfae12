"""The studies of the theorems: each runs and is shown at smoke scale; targets, classes and estimators are what they say."""

import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats

from squareloss.lab import report
from squareloss.lab.report.views import _rates, calibration_rate, excess_risk, noise_injection, separable_rate, view
from squareloss.lab.report.views._rates import Series, Slope, failing, late, near, slope, table, tally, verdict
from squareloss.lab.runs import Store
from squareloss.lab.runs.execute import execute
from squareloss.lab.studies import get
from squareloss.lab.studies.run import header_of
from squareloss.lab.studies.theory.arcs import Arcs, Caps
from squareloss.lab.studies.theory.common import seed_of
from squareloss.lab.studies.theory.excess_risk import specs as excess_studied
from squareloss.lab.studies.theory.logistic import circle_logistic, logistic
from squareloss.lab.studies.theory.margin import distances
from squareloss.lab.studies.theory.noise_injection import corrected, near_half
from squareloss.lab.studies.theory.simplex_probability import probabilities
from squareloss.lab.studies.theory.sphere import Circle, Target, circle_points, gram, penalty, ridge, uniform, with_bias
from squareloss.ntk.kernels import NTK

STUDIES = [
    "spectrum", "excess_risk", "separable_rate", "calibration_rate", "margin", "ntk_equivalence", "odd_degrees",
    "noise_injection", "simplex_probability",
]  # fmt: skip


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", STUDIES)
def test_every_study_runs_and_is_shown(name, tmp_path):
    study, store = get(name), Store(tmp_path)
    header_of(study, "smoke", [0]).write(store)
    outcome = execute(study, "smoke", [0], store)
    assert not outcome.failures, outcome.message()
    (found,) = report.gather(tmp_path)
    assert found.view.sentences[0].startswith(("Statement", "What the theory"))
    assert found.view.tables and all(table.rows for table in found.tables)
    assert all("<svg" in panel.svg and "nan" not in panel.svg for figure in found.view.figures for panel in figure.panels)
    page = report.write(tmp_path).read_text()
    assert all(sentence[:40] in page.replace("&lt;", "<").replace("&gt;", ">") for sentence in found.view.sentences)
    for kind in ("md", "tex", "csv"):
        assert report.write(tmp_path, kind).stat().st_size > 0


@pytest.mark.parametrize("name", [*STUDIES, "spirals", "sine"])
def test_a_study_run_in_pieces_is_shown_and_claims_nothing_from_one_point(name, tmp_path):
    study = get(name)
    header, records = header_of(study, "smoke", [0]), execute(study, "smoke", [0], tmp_path).records
    for record in records:
        for part in ([record], [other for other in records if other is not record]):
            found = view(part, header)
            assert all(table.rows for table in found.tables) and all(figure.panels for figure in found.figures)
            texts = [*found.sentences, *(entry.text for table in found.tables for row in table.rows for entry in row)]
            assert not [text for text in texts if re.search(r"\bnan\b", text)]
            assert all("nan" not in panel.svg for figure in found.figures for panel in figure.panels)


def test_losses_on_the_circle_stand_beside_each_other_by_n(tmp_path):
    """A loss that lacks an n has a dash there, and its other values in their own rows."""
    study = get("calibration_rate")
    header, records = header_of(study, "smoke", [0]), execute(study, "smoke", [0], tmp_path).records
    gone = min((r for r in records if r.spec["height"] == 1 and r.spec["loss"] == "square"), key=lambda r: r.spec["n"])

    def side(some):
        found = next(table for table in view(some, header).tables if table.heading == "Losses on the circle")
        return [[entry.text for entry in row] for row in found.rows]

    whole = side(records)
    assert whole[0][0] == str(gone.spec["n"])
    whole[0][1] = "–"  # square loss has the first column
    assert side([r for r in records if r is not gone]) == whole


@pytest.mark.parametrize("name", STUDIES)
def test_scales_have_distinct_cells_and_costs(name):
    study = get(name)
    for scale in ("smoke", "laptop", "paper"):
        cells = study.cells(scale)
        assert len({cell.hash() for cell in cells}) == len(cells) and study.cost[scale]


@pytest.mark.parametrize(("d", "kappa"), [(d, kappa) for d in (2, 3, 5) for kappa in (0.5, 1, 2)] + [(2, 4), (2, 8)])
def test_targets_have_their_tsybakov_exponent(d, kappa):
    """P(|2 eta - 1| < t) over two decades of t, by quadrature over x_1 as uniform points have it."""
    target = Target.of_exponent(d, kappa)
    x = uniform(400_000, d, generator())
    weight, height = target.weight(x), target.margin(x).abs()
    t = 0.9 * torch.tensor([0.01, 0.1]) ** target.power  # |s/M| below 0.01 and 0.1
    share = [float((weight * (height < value)).sum() / weight.sum()) for value in t]
    assert math.log(share[1] / share[0]) / math.log(float(t[1] / t[0])) == pytest.approx(kappa, rel=0.15)


def test_samples_follow_the_target():
    target = Target.of_exponent(3, 2)
    x, y = target.sample(2, 20_000, generator())
    assert x.shape == (2, 20_000, 3) and (x.square().sum(2) - 1).abs().max() < 1e-12
    # the mean of y f(x) is that of (2 eta - 1) f(x)
    assert (y * target.margin(x)).mean().item() == pytest.approx(target.margin(x).square().mean().item(), abs=0.02)
    flat = uniform(40_000, 3, generator(1))
    weight = target.weight(flat)
    expected = float((weight * target.share(flat).abs()).sum() / weight.sum())
    assert target.share(x).abs().mean().item() == pytest.approx(expected, rel=0.02)


@pytest.mark.parametrize(("d", "kappa"), [(2, 0.5), (5, 0.5), (2, 1), (6, 1), (2, 2), (3, 2), (6, 2), (2, 4), (2, 8)])
def test_points_have_the_density_of_the_target(d, kappa):
    target = Target.of_exponent(d, kappa)
    x = target.points(40_000, generator(3))
    # x_1 = cos(angle), which takes the singularity at +-1 out of the circle's density
    angle = np.linspace(0, np.pi, 20_001)
    mass = np.sin(angle[1:-1]) ** (d - 2) * np.abs(np.cos(angle[1:-1]) ** 2 - 1 / d) ** target.vanish
    cdf = np.concatenate([[0], np.cumsum(mass), [mass.sum()]]) / mass.sum()
    assert stats.kstest(np.arccos(x[:, 0].numpy()), lambda a: np.interp(a, angle, cdf)).pvalue > 1e-3
    others = x[:, 1:] / torch.linalg.vector_norm(x[:, 1:], dim=1, keepdim=True)
    assert others.mean(0).abs().max() < 0.03  # and the rest is uniform on its own sphere


@pytest.mark.parametrize("kappa", [0.5, 1, 2])
def test_targets_lie_in_the_rkhs_of_the_kernel_on_the_circle(kappa):
    angle = torch.arange(2**14, dtype=torch.float64) * (2 * math.pi / 2**14)
    f = Target.of_exponent(2, kappa).margin(circle_points(angle))
    coefficients = torch.fft.rfft(f)[:4001].abs() / 2**14
    assert coefficients[3::2].max() < 1e-14  # odd degrees from three on have eigenvalue zero
    k = torch.arange(2, 4001, 2, dtype=torch.float64)
    eigenvalues = (k**2 + 1) / (math.pi**2 * (k**2 - 1) ** 2)
    norm = torch.cumsum(coefficients[2::2] ** 2 / eigenvalues, 0)
    assert norm[-1] / norm[250] == pytest.approx(1, abs=0.01)  # |f|^2 in the RKHS converges
    rough = torch.sign(f) * torch.cos(2 * angle).abs() ** 0.3  # below the power that lies in it, the sum goes on growing
    diverging = torch.cumsum((torch.fft.rfft(rough)[2:4001:2].abs() / 2**14) ** 2 / eigenvalues, 0)
    assert diverging[-1] / diverging[250] > 1.2


def test_batched_ridge_is_ridge_one_by_one():
    x, y = Target(3).sample(3, 20, generator())
    test = uniform(7, 3, generator(2))
    fit = ridge(x, y, 0.5, test, "cpu")
    for i in range(3):
        matrix = NTK().matrix(x[i])
        weights = torch.linalg.solve(matrix + 0.5 * torch.eye(20), y[i])
        torch.testing.assert_close(fit.outputs[i], NTK().matrix(test, x[i]) @ weights)
        torch.testing.assert_close(fit.norm[i], weights @ matrix @ weights)
    wide = ridge(x, torch.stack([y, 2 * y], 2), 0.5, test, "cpu").outputs
    torch.testing.assert_close(wide[..., 1], 2 * fit.outputs)


def test_singular_matrices_still_interpolate():
    """Four pairs of opposite points on the circle with an even label: H is singular, and the least solution exists."""
    angle = torch.tensor([0.1, 0.7, 1.2, 2.0], dtype=torch.float64)
    x = circle_points(torch.cat([angle, angle + math.pi])).unsqueeze(0)
    y = torch.tensor([1.0, -1, 1, 1] * 2, dtype=torch.float64).unsqueeze(0)
    torch.testing.assert_close(ridge(x, y, 0.0, x, "cpu").outputs, y, rtol=0, atol=1e-6)


def test_eigenfunctions_of_the_circle_are_the_kernel_and_give_the_same_ridge():
    x, y = Target(2).sample(2, 60, generator())
    angle, grid = torch.atan2(x[..., 1], x[..., 0]), torch.linspace(0, 6, 30, dtype=torch.float64)
    phi = Circle(600).features(angle)
    torch.testing.assert_close(phi @ phi.mT, gram(x), rtol=0, atol=2e-4)
    exact = ridge(x, y, 0.5, circle_points(grid), "cpu").outputs
    torch.testing.assert_close(Circle(600).ridge(angle, y, 0.5, grid, "cpu"), exact, rtol=0, atol=5e-3)


@pytest.mark.parametrize("name", ["excess_risk", "calibration_rate"])
def test_circles_leave_out_only_what_ridge_would_shrink_anyway(name):
    """A degree that is left out has less variance than it should: its eigenvalue must be small beside mu / n."""
    specs = [cell.spec for cell in get(name).cells("paper") if cell.spec["d"] == 2]
    ridges = [spec for spec in specs if spec.get("loss", "square") == "square"]
    assert ridges
    for spec in ridges:
        least = 1 / (math.pi * spec["degree"]) ** 2
        assert least < 0.1 * penalty(spec["n"], 2, spec["c"]) / spec["n"], spec


def test_logistic_regression_is_stationary_and_keeps_its_bound():
    x, y = Target(2).sample(2, 80, generator())
    angle, circle = torch.atan2(x[..., 1], x[..., 0]), Circle(10)
    phi = circle.features(angle)
    for bound in (None, 1.5):
        weights = logistic(phi, y, 0.3, bound).requires_grad_()
        g = (phi @ weights.unsqueeze(2)).squeeze(2)
        f = g if bound is None else bound * (g / bound).tanh()
        value = torch.nn.functional.softplus(-y * f).sum() + 0.3 * weights.square().sum()
        (gradient,) = torch.autograd.grad(value, weights)
        assert gradient.abs().max() < 1e-4
    assert circle_logistic(circle, angle, y, 1e-6, angle[0], "cpu", bound=0.7).abs().max() <= 0.7


def test_arcs_and_caps_hold_their_points():
    arcs = Arcs(4, 0.15)
    x, y = arcs.sample(1, 4000, generator())
    angle = torch.atan2(x[0, :, 1], x[0, :, 0])
    assert ((4 * angle).cos().sign() == y[0]).all()
    assert (4 * angle).cos().abs().min() >= math.sin(4 * 0.15) - 1e-9
    points, label = arcs.grid()
    assert len(points) == 8 * 101 and label.sum() == 0
    ends = (circle_points(arcs.gaps()[:, 0]).unsqueeze(1) - points).square().sum(2).amin(1)
    assert ends.max() < 1e-20  # a gap begins where an arc ends
    caps = Caps(1.2)
    x, y = caps.sample(1, 4000, generator())
    assert (x[..., 0].abs() >= math.cos(1.2) - 1e-12).all() and (x[..., 0].sign() == y).all()
    uniform_by_area = stats.uniform(math.cos(1.2), 1 - math.cos(1.2))  # of |x_1|, as Archimedes found
    assert stats.kstest(x[0, :, 0].abs().numpy(), uniform_by_area.cdf).pvalue > 1e-3
    points, label = caps.grid()
    assert (points[:, 0].abs() >= math.cos(1.2) - 1e-12).all() and (points[:, 0].sign() == label).all()


def test_distances_of_a_known_boundary():
    """f = cos(4 (theta - 0.05)) has its zeros 0.05 rad beyond the middle of each gap."""
    gaps = Arcs(4, 0.15).gaps()
    euclid, largest = distances((4 * (gaps - 0.05)).cos().expand(3, -1, -1), gaps)
    assert euclid.tolist() == pytest.approx([2 * math.sin(0.05)] * 3, rel=1e-3)
    assert ((largest <= euclid) & (largest >= euclid / math.sqrt(2))).all()


def test_noise_lemma_by_monte_carlo_and_by_its_bound():
    t, v = torch.tensor(0.3, dtype=torch.float64), torch.tensor(0.6, dtype=torch.float64)
    x = 1 + v * torch.randn(400_000, generator=generator(), dtype=torch.float64)
    assert near_half(t, v).item() == pytest.approx(((x / v**2).tanh().abs() < t).double().mean().item(), rel=0.02)
    for noise in (1.0, 0.3, 0.1, 0.05):
        v = torch.tensor(noise, dtype=torch.float64)
        for chance in (0.01, 0.3, 0.9):
            t = torch.tensor(chance, dtype=torch.float64)
            assert 0 < near_half(t, v) <= corrected(t, v)
            if chance < 0.05:  # and no larger than it must be
                assert near_half(t, v) > 0.9 * corrected(t, v)


def test_probabilities_of_many_classes_are_probabilities():
    eta = probabilities(uniform(500, 3, generator()), 10)
    assert (eta > 0).all()
    torch.testing.assert_close(eta.sum(1), torch.ones(500, dtype=torch.float64))
    assert eta.std(0).min() > 0.005


def test_bias_puts_points_on_a_half_sphere():
    x = with_bias(uniform(50, 2, generator()))
    assert (x.square().sum(1) - 1).abs().max() < 1e-12 and (x @ x.T).min() >= -1e-12


def test_slopes_and_their_intervals():
    rng = np.random.default_rng(1)
    n = [100, 200, 400, 800]
    noisy = Series("a", n, [list(m**-0.7 * (1 + 0.2 * rng.standard_normal(60))) for m in n], -0.5)
    found = slope(noisy)
    assert found.value == pytest.approx(-0.7, abs=0.03) and found.low < -0.7 < found.high and found.high - found.low < 0.15
    assert verdict(found, -0.5) == ("yes", "better") and verdict(found, -0.9)[1] == "worse"
    assert tally([noisy]) == "1 of 1"
    exact = Series("b", n, [[3 * math.exp(-0.01 * m)] for m in n])
    assert slope(exact, exponential=True).value == pytest.approx(-0.01) and slope(exact).low is None
    with_zero = Series("c", n, [[1.0, 0.0, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.0] * 4, [0.0] * 4])
    assert slope(with_zero).value == pytest.approx(-1)


def test_the_interval_of_means_with_standard_errors_is_that_of_a_normal_law(monkeypatch):
    monkeypatch.setattr(_rates, "DRAWS", 20_000)
    n, errors = np.array([100.0, 200.0, 400.0, 800.0]), np.array([0.001, 0.002, 0.0005, 0.003])
    means = n**-0.5
    known = Series("a", list(n), [[m] for m in means], -0.5, list(errors * means))
    found = slope(known)
    across = np.log(n) - np.log(n).mean()
    half = 1.96 * np.linalg.norm(across / (across @ across) * errors)  # of a sum of independent logarithms
    assert (found.value - found.low, found.high - found.value) == pytest.approx((half, half), rel=0.05)
    (panel,) = _rates.panel("", [known], "n", "e")
    assert len(re.findall(r'<path class="line c0" d="M', panel.svg)) == 4


def test_a_law_is_in_the_interval_or_not():
    found = Slope(-0.5, -0.6, -0.4)
    assert [near(found, law)[0] for law in (-0.59, -0.41, -0.61, -0.39)] == 2 * ["in the interval"] + 2 * [
        "outside the interval"
    ]
    assert near(Slope(-0.5), -0.6)[0] == "off by +0.100"


def test_a_slope_that_changes_is_told():
    """Steep at first, then flatter than the bound: over all points the bound seems to hold, over the last half not."""
    n, rng = [100.0 * 2**i for i in range(9)], np.random.default_rng(2)
    means = [m**-1.0 if m < 1600 else 1 / 1600 * (m / 1600) ** -0.2 for m in n]
    bent = Series("bent", n, [list(m * (1 + 0.05 * rng.standard_normal(40))) for m in means], -0.4)
    assert late(bent).x == n[4:] and late(Series("two", n[:2], bent.samples[:2])).x == n[:2]
    assert tally([bent]) == "1 of 1" and tally([late(bent)]) == "0 of 1 (bent: no)"
    made = table("rates", [bent], "", halves=True)
    assert made.columns[-1] == "slope over the last half" and made.rows[0][-1].value == pytest.approx(-0.2, abs=0.03)
    barely = Series("near", n, bent.samples, slope(bent).value + 1e-3)
    assert tally([barely]) == "1 of 1 (near: yes, within the interval)"


def test_one_point_has_no_slope():
    one = Series("a", [100.0], [[0.1, 0.2]], -0.5)
    assert math.isnan(slope(one).value) and verdict(slope(one), -0.5) == near(slope(one), -0.5) == ("can't be told", "")
    assert tally([one]) == "0 of 1 (a: can't be told)" and late(one) == one
    assert [entry.text for entry in table("t", [one], "", halves=True).rows[0][3:]] == ["–", "–", "can't be told", "– (–)"]
    assert _rates.panel("p", [], "n", "error") == []


@pytest.mark.parametrize("exponential", [False, True])
def test_dashes_have_the_slope_of_the_bound(exponential):
    """Of a series that has it, they are its line; else they leave it at the first point, or come to it at the last."""
    x = [10.0, 20.0, 30.0] if exponential else [10.0, 40.0, 160.0]
    law = [[math.exp(-0.1 * place) if exponential else place**-0.5] for place in x]
    rate = -0.1 if exponential else -0.5

    def drawn(bound, through):
        (panel,) = _rates.panel("", [Series("a", x, law, bound)], "n", "e", exponential=exponential, through=through)
        dots = [[*map(float, at)] for at in re.findall(r'class="dot c0" cx="([\d.]+)" cy="([\d.]+)"', panel.svg)]
        (line,) = re.findall(r'<polyline[^>]* points="([^"]+)"', panel.svg)
        assert [[*map(float, at.split(","))] for at in line.split()] == dots
        ((*ends,),) = re.findall(r'class="guide" x1="([\d.]+)" y1="([\d.]+)" x2="([\d.]+)" y2="([\d.]+)"', panel.svg)
        return np.array(dots), np.array([*map(float, ends)]).reshape(2, 2)

    for through in (0, -1):
        dots, ends = drawn(rate, through)
        assert np.ptp(np.diff(dots, axis=0), axis=0).max() < 0.3, "on such axes the law is a line"
        assert (np.abs(dots[-1] - dots[0]) > [250, 150]).all(), "across the whole plot"
        assert ends.tolist() == dots[[0, -1]].tolist()
        dots, ends = drawn(2 * rate, through)
        assert ends[through].tolist() == dots[through].tolist() and ends[:, 0].tolist() == dots[[0, -1], 0].tolist()
        assert np.diff(ends[:, 1]) == pytest.approx(2 * (dots[-1, 1] - dots[0, 1]), abs=0.5)


def test_the_last_half_is_of_places_not_of_seeds():
    """Two seeds at each n: the last half has two n, as with one seed."""
    n = [100.0, 200.0, 400.0, 800.0]
    once = Series("a", n, [[m**-0.5] for m in n])
    twice = Series("a", [m for m in n for _ in range(2)], [[m**-0.5] for m in n for _ in range(2)])
    assert set(late(twice).x) == set(late(once).x) == {400.0, 800.0}
    assert slope(late(twice)).value == pytest.approx(-0.5)
    assert late(Series("b", [1.0, 1.0, 2.0, 2.0], twice.samples[:4])).x == [1.0, 1.0, 2.0, 2.0]


def test_two_seeds_at_one_n_make_no_rate():
    """Of three margins two have results at two n, and the last at one, with two seeds."""
    places = [(gap, n, seed) for gap in (0.2, 0.3, 0.4) for n in (10, 20) for seed in (0, 1) if (gap, n) != (0.4, 20)]
    records = [
        SimpleNamespace(
            spec={"look": "rate", "gap": gap, "n": n, "replications": 1000},
            metrics={"error": math.exp(-n), "spread": 0.0, "failures": 100},
            seed=seed,
        )
        for gap, n, seed in places
    ]
    found = view(records, header_of(get("noise_injection"), "smoke", [0, 1]))
    assert "Measured rates go from 1.000" in found.sentences[-1] and "nan" not in found.sentences[-1]
    assert [len(table.rows) for table in found.tables] == [2, 2, 10]


def test_the_margin_is_told_once_for_each_n_over_all_seeds():
    def told(*places):
        specs = [({"loss": "square", "gap": 0.15, "n": n}, {"l2": l2, "linf": l2, "right": 1.0}) for n, l2 in places]
        records = [SimpleNamespace(spec=spec, metrics=metrics, seed=i) for i, (spec, metrics) in enumerate(specs)]
        return view(records, header_of(get("margin"), "smoke", [0, 1])).sentences[1]

    assert told((20, [0.1, 0.2, 0.3])) == (
        "square loss: median l_2 distance 0.200 at n = 20, of 0.150 possible; the lowest of 3 replications there is 0.100."
    )
    both = told((20, [0.1]), (20, [0.3]), (40, [0.2]), (40, [0.5, 0.6]))
    assert "distance 0.200 at n = 20, 0.500 at n = 40, of" in both and "lowest of 3 replications there is 0.200" in both


@pytest.mark.parametrize(("rate", "above"), [(0.14, True), (0.132, False)])
def test_rates_that_are_said_to_be_above_both_bounds_are(rate, above):
    """At gamma = 0.9, gamma/7 is 0.129 and gamma^2/6 is 0.135."""
    n = [10.0, 20.0, 30.0]
    rows = [Series("", n, [[math.exp(-c * m)] for m in n], -gamma / 7) for c, gamma in ((0.05, 0.2), (rate, 0.9))]
    assert (", all above both;" in noise_injection._rates(rows)) is above


@pytest.mark.parametrize(("free", "held", "told"), [
    ((60, 90), (50, 0), "fails and so does its conclusion: with mu = 1/n 60% of fits err somewhere at n = 20 and 90% at n"),
    ((60, 10), (50, 0), "fails but its conclusion does not: with mu = 1/n 60% of"),
    ((60, 90), (50, 25), "; mu = 0.1 mends it (25% of 100 at n = 80)."),
    ((60, 90), (50, 26), "; mu = 0.1 does not mend it (26% of 100 at n = 80)."),
])  # fmt: skip
def test_what_is_said_of_the_opposite_caps_follows_the_numbers(free, held, told):
    free, held = (
        [
            SimpleNamespace(spec={"n": n, "replications": 100}, metrics={"failures": count, "norm": [1.0, 2.0, 3.0]})
            for n, count in zip((20, 80), counts, strict=True)
        ]
        for counts in (free, held)
    )
    assert told in separable_rate._caps(free, held)


@pytest.mark.parametrize(("ends", "told"), [
    ((0.27, 0.125, 0.02), ("comes down to a floor where", ", as the text says. With the same penalty and no bound it shows")),
    ((0.35, 0.125, 0.02), ("is still above its floor where", "). With the same penalty and no bound it shows none")),
    ((0.27, 0.125, 0.13), ("comes down to a floor where", "no bound it is no lower: 0.400 at n = 50, 0.130 at n = 100")),
])  # fmt: skip
def test_what_is_said_of_floors_follows_the_numbers(ends, told):
    names = ("ce-bound1", "ce-bound2", "ce")
    sides = {name: Series(name, [50.0, 100.0], [[0.4], [end]]) for name, end in zip(names, ends, strict=True)}
    assert all(part in calibration_rate._floors(sides) for part in told)


def test_bounds_below_one_over_root_n_are_tried_where_there_are_any():
    """For kappa > 2d - 2."""
    steep = {(spec["d"], spec["kappa"]) for spec in excess_studied("paper").values() if spec["kappa"] > 2 * spec["d"] - 2}
    assert steep == {(2, 4.0), (2, 8.0)}
    rows = {
        key: Series(f"kappa = {key[1]:g}", [1.0, 10.0], [[1.0], [0.1]], -excess_risk.bound(*key)) for key in [(2, 2), (2, 4)]
    }
    assert "of these settings, kappa = 4: -1.000 (bound -0.556). At" in excess_risk._fast(rows)
    assert "of these settings, none. At" in excess_risk._fast({(2, 2): rows[2, 2]})


def test_what_is_said_of_the_noise_lemma_follows_the_numbers():
    noise = {"noise": [1.0, 0.05], "over-stated-t0.2": [0.8, 16.0], "over-corrected-t0.2": [0.98, 0.99]}
    assert "no constant will do" in noise_injection._lemma(noise) and noise_injection._lemma(noise).endswith(
        "that bound holds."
    )
    other = {**noise, "over-stated-t0.2": [0.8, 0.9], "over-corrected-t0.2": [0.98, 1.01]}
    assert "a constant may do" in noise_injection._lemma(other) and noise_injection._lemma(other).endswith("that bound fails.")
    plane = {"t": [0.1, 1e-6], "xor": [0.12, 0.15], "two-points": [0.05, 0.05]}
    assert "reduction to two points fails" in noise_injection._xor(plane)
    assert "reduction to two points stands" in noise_injection._xor({**plane, "xor": [0.05, 0.05]})


def test_tables_without_a_bound_judge_nothing():
    n = [10.0, 20.0, 30.0]
    made = table("decay", [Series("a", n, [[math.exp(-0.1 * m)] for m in n])], "", exponential=True, halves=True)
    assert made.columns == ["setting", "range", "measured slope", "95% interval", "slope over the last half"]
    assert [entry.text for entry in made.rows[0]] == ["a", "10 to 30", "-0.100", "exact", "-0.100 (exact)"]


def test_rates_need_replications_that_err():
    """A point with one failure of 100,000 would pull the end of a line; where most err there is no rate yet."""

    def record(n, failures, total=100_000):
        return SimpleNamespace(spec={"n": n, "replications": total}, metrics={"failures": failures})

    found = [record(10, 90_000), record(20, 40_000), record(30, 500), record(40, 10), record(50, 1), record(60, 0)]
    assert [r.spec["n"] for r in failing(found)] == [10, 20, 30, 40]
    assert [r.spec["n"] for r in failing(found, 0.5)] == [20, 30, 40]
    assert [r.spec["n"] for r in failing([record(5, 1, 20), record(6, 2, 20), record(7, 0, 5)])] == [6]


def test_many_zeros_and_ones_are_resampled_by_their_number(monkeypatch):
    n = [10.0, 20.0, 30.0]
    found = Series("d", n, [[1.0] * k + [0.0] * (12_000 - k) for k in (3000, 800, 200)])
    quick = slope(found, exponential=True)
    monkeypatch.setattr(_rates, "MANY", 10**9)
    each = slope(found, exponential=True)
    assert quick.value == each.value and quick.low != each.low
    assert quick.low == pytest.approx(each.low, rel=0.02) and quick.high == pytest.approx(each.high, rel=0.02)


def test_seeds_differ():
    assert len({seed_of(0, i, j) for i in range(20) for j in range(20)}) == 400
