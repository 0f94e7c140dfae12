"""The studies on synthetic data: losses of one output, boundaries and margins, replications, choice of mu, claims, pages."""

import base64
import io
import math

import numpy as np
import pytest
import torch
from scipy import stats

from squareloss import functional
from squareloss.calibrators import Temperature
from squareloss.lab.data.replications import Split, sine_split, spirals_split
from squareloss.lab.data.synthetic import Sample, sine_eta
from squareloss.lab.report import fields, gather, write
from squareloss.lab.report.views import _replicated as shared
from squareloss.lab.report.views import sine as sine_view
from squareloss.lab.report.views import spirals as spirals_view
from squareloss.lab.runs import Context, Job, Store
from squareloss.lab.runs.execute import execute
from squareloss.lab.runs.store import Record
from squareloss.lab.studies import boundary, get, one_output, replicated, sine, spirals
from squareloss.lab.studies.run import header_of, with_settings

STUDIES = {"spirals": spirals.STUDY, "sine": sine.STUDY}


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# losses of one output


def family(name, f, labels):
    weights = torch.tensor(one_output.LOSSES[name], dtype=f.dtype)
    return one_output.blended(f[:, None], labels.to(f.dtype), weights)


def test_the_losses_are_those_of_two_tied_outputs():
    f = torch.randn(50, generator=generator(), dtype=torch.float64) * 3
    labels = torch.randint(0, 2, (50,), generator=generator(1))
    two = torch.stack([-f / 2, f / 2], dim=1)
    torch.testing.assert_close(family("SL", f, labels), (f - (2.0 * labels - 1)) ** 2)
    torch.testing.assert_close(family("CE", f, labels), functional.cross_entropy(two, labels, reduction="none"))
    torch.testing.assert_close(family("squentropy", f, labels), functional.squentropy(two, labels, reduction="none"))
    smoothed = torch.nn.functional.cross_entropy(two, labels, reduction="none", label_smoothing=one_output.SMOOTHING)
    torch.testing.assert_close(family("smoothed", f, labels), smoothed)


def test_temperatures_agree_with_the_calibrator():
    f = torch.randn(3, 400, generator=generator(), dtype=torch.float64) * torch.tensor([[0.5], [3.0], [20.0]])
    labels = (torch.rand(3, 400, generator=generator(1)) < torch.sigmoid(f / 2)).long()
    mine = one_output.temperatures(f, labels)
    for r in range(3):
        theirs = Temperature().fit(torch.stack([-f[r] / 2, f[r] / 2], dim=1), labels[r]).temperature_
        assert float(mine[r]) == pytest.approx(theirs, rel=1e-5)


def test_temperatures_of_outputs_that_tell_nothing_are_finite():
    assert one_output.temperatures(torch.zeros(2, 5), torch.ones(2, 5)).isfinite().all()


def test_undoing_the_smoothing_gives_eta_back():
    eta = torch.linspace(0, 1, 11, dtype=torch.float64)[None]
    s = one_output.SMOOTHING
    best = torch.logit((1 - s) * eta + s / 2)  # minimises the expected loss: its derivative is zero there
    f = best.clone().requires_grad_()
    both = [family("smoothed", f[0], torch.full((11,), y)) for y in (0, 1)]
    ((1 - eta[0]) * both[0] + eta[0] * both[1]).sum().backward()
    torch.testing.assert_close(f.grad, torch.zeros_like(f), atol=1e-12, rtol=0)
    torch.testing.assert_close(one_output.other_readings("smoothed", best, torch.ones(1))["undone"], eta)


def test_readings_of_square_loss():
    f = torch.tensor([[-3.0, 0.0, 0.5, 2.0]])
    assert one_output.probabilities("SL", f).tolist() == [[0.0, 0.5, 0.75, 1.0]]
    assert one_output.other_readings("SL", f, torch.ones(1))["unclipped"].tolist() == [[-1.0, 0.5, 0.75, 1.5]]


# boundaries and margins


def traced(f, side=201):
    points = boundary.lattice(1.5, side)
    return boundary.segments(f(points.view(-1, 2)).view(side, side), points, f)


def circle(x):
    return x.norm(dim=-1) ** 3 - 0.7**3  # curved along every ray, so that one linear step would miss the zero


def test_zeros_lie_on_the_boundary_and_distances_are_right():
    found = traced(circle)
    assert (found.norm(dim=-1) - 0.7).abs().max() < 1e-5
    points = 2 * torch.rand(500, 2, generator=generator()) - 1
    expected = (points.norm(dim=-1) - 0.7).abs()
    assert (boundary.distances(points, found, 9.0) - expected).abs().max() < 2e-4
    assert float(boundary.distances(points, found, 0.1).max()) == pytest.approx(0.1)


def test_the_distance_to_a_line_is_exact():
    found = traced(lambda x: x[:, 0] + 2 * x[:, 1] - 0.3, side=21)
    points = torch.rand(100, 2, generator=generator()) - 0.5
    expected = (points @ torch.tensor([1.0, 2.0]) - 0.3).abs() / math.sqrt(5)
    torch.testing.assert_close(boundary.distances(points, found, 9.0), expected, atol=1e-5, rtol=0)


def test_no_boundary_is_as_far_as_can_be():
    found = traced(lambda x: torch.ones(len(x)), side=11)
    assert len(found) == 0
    assert boundary.distances(torch.zeros(3, 2), found, 0.4).tolist() == pytest.approx([0.4] * 3)


def test_chains_are_lines_that_can_be_drawn():
    two = lambda x: torch.minimum((x - 0.7).norm(dim=-1) - 0.4, (x + 0.7).norm(dim=-1) - 0.5)
    lines = boundary.chains(traced(two), 0.004)
    assert len(lines) == 2 and all(line[0] == line[-1] for line in lines)  # two circles, closed
    assert all(len(line) < 60 for line in lines)
    for line in lines:
        dense = torch.tensor(line)
        middles = (dense[1:] + dense[:-1]) / 2
        assert two(middles).abs().max() < 0.006
    again = fields.unpack_lines(fields.pack_lines(lines, 1.5), 1.5)
    assert [len(line) for line in again] == [len(line) for line in lines]
    assert np.abs(np.concatenate(again) - np.concatenate(lines)).max() < 0.002


def half_plane(job, data, scale=1.0):
    """Networks 2-2-2-1 with f(x) = scale x_1 in place of trained ones."""
    first = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    weights = [first, torch.zeros(2), torch.eye(2), torch.zeros(2), scale * torch.tensor([[1.0, -1.0]]), torch.zeros(1)]
    count = len(data.train.x)
    return replicated.Trained(job, [w.expand(count, *w.shape).clone() for w in weights], data)


def test_margins_of_a_known_boundary():
    job = Job(spirals.STUDY.cells("smoke")[0], 0)
    data = spirals.data_of(job)
    networks = half_plane(job, data)
    margins, lines = spirals.traced(networks, 31, 1)
    right = torch.where(data.train.y == 1, 1, -1) * data.train.x[..., 0]  # signed distance to x_1 = 0
    expected = right.clamp(-spirals.FARTHEST, spirals.FARTHEST).min(1).values
    assert margins["margin_train"] == pytest.approx(expected.tolist(), abs=1e-3)
    points, labels = spirals.support(31)
    signed = (torch.where(labels == 1, 1, -1) * points[:, 0]).clamp(-spirals.FARTHEST, spirals.FARTHEST)
    assert margins["margin_support"][0] == pytest.approx(float(signed.mean()), abs=1e-3)
    (line,) = fields.unpack_lines(lines[0], 1.5)
    assert np.abs(np.array(line)[:, 0]).max() < 0.002 and np.ptp(np.array(line)[:, 1]) == pytest.approx(3.0)
    wrong = ((data.test.x[..., 0] > 0) != (data.test.y == 1)).float().mean(1)
    assert networks.error(data.test) == pytest.approx(wrong.tolist(), rel=1e-3)


def test_the_support_is_where_the_data_lie():
    data = spirals_split([0], 2000, 2).train
    points, labels = spirals.support(2000)
    for klass in (0, 1):
        gaps = torch.cdist(data.x[0][data.y[0] == klass], points[labels == klass]).min(1).values
        assert gaps.max() < 0.02  # within a strip of half width 0.03, marked at its middle and edges
    assert torch.cdist(points[labels == 0], points[labels == 1]).min() > 0.01


def test_sparse_error_counts_the_far_tenth_only():
    job = Job(spirals.STUDY.cells("smoke")[0], 0)
    at = lambda *xs: torch.tensor([[x, 0.0] for x in xs])[None]
    ones = lambda n: torch.ones(1, n, dtype=torch.int64)
    train = Sample(at(-1.0, 5.0), torch.tensor([[1, 0]]), torch.zeros(1, 2))
    # class 1 has its only training point on the wrong side; eighteen test points lie there, two far off on the right side
    test = Sample(at(*[-1.0] * 18, 3.0, 3.0), ones(20), torch.ones(1, 20))
    networks = half_plane(job, Split(train, test, test))
    assert networks.error(test) == pytest.approx([0.9])
    assert spirals.sparse_error(networks) == [0.0]
    assert spirals.sparse_error(half_plane(job, Split(train, test, test), scale=-1.0)) == [1.0]


def test_unrest():
    smooth = 10.0 ** -torch.linspace(0, 3, 31)[:, None]  # a tenth of a decade per note
    jumping = torch.tensor([1.0, 10.0] * 16)[:, None]
    assert float(spirals.unrest(smooth)) == pytest.approx(0.1, rel=1e-4)
    assert float(spirals.unrest(jumping)) == pytest.approx(1.0, rel=1e-5)


def test_the_widest_gap_is_found():
    data = spirals_split([0], 400, 2).train
    x, y = data.x[0].numpy(), data.y[0].numpy()
    hole = np.array([0.04, -0.75])  # on the arm of class 0 near theta = 3 pi
    near = (np.hypot(*(x - hole).T) < 0.35) & (y == 0)
    assert near.any()
    middle, gap = spirals_view.widest_gap(x[~near], y[~near])
    assert gap > 0.5 and np.hypot(*(middle - hole)) < 0.25


# replications


def test_a_replication_does_not_depend_on_the_others():
    for draw in (lambda r, n: spirals_split(r, n, 30), lambda r, n: sine_split(r, n, 30, "affine")):
        many, one, more = draw(range(3), 20), draw([2], 20), draw([2], 60)
        for mine, other in zip(many, one, strict=True):
            assert torch.equal(mine.x[2], other.x[0]) and torch.equal(mine.y[2], other.y[0])
        assert torch.equal(one.test.x, more.test.x)  # a larger training set leaves the test points
        assert not torch.equal(many.train.x[0], many.test.x[0])
        assert not torch.equal(many.train.x[0], many.train.x[1])


@pytest.mark.parametrize("name", STUDIES)
def test_jobs_trained_together_are_those_trained_alone(name):
    study, context = STUDIES[name], Context()
    cells = study.cells("smoke")
    jobs = [Job(cell, 0) for cell in (*cells[:4], *(cell for cell in cells if cell.spec["changed"] == "lr"))]
    assert {job.cell.spec["lr"] for job in jobs} == {0.001, 0.01}
    draw = {"spirals": spirals.data_of, "sine": sine.data_of}[name]
    together = list(replicated._together(jobs, context, draw, "tf32", 10))  # what a GPU does
    for mine, job in zip(together, jobs, strict=True):
        (alone,) = replicated.trained([job], context, draw, products="tf32", every=10)
        assert mine.job == alone.job == job and mine.steps == alone.steps
        for a, b in zip(mine.parameters, alone.parameters, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(torch.stack(mine.losses), torch.stack(alone.losses), rtol=1e-4, atol=1e-5)


def test_chunks_fit_the_memory_and_keep_shapes_apart():
    jobs = [Job(cell, 0) for cell in sine.STUDY.cells("paper")]
    chunks = replicated.chunks(jobs, "cuda")
    assert sorted(job.name for chunk in chunks for job in chunk) == sorted(job.name for job in jobs)
    for chunk in chunks:
        assert len({replicated._shape(job) for job in chunk}) == 1
        assert sum(replicated._size(job) for job in chunk) <= replicated.MOST or len(chunk) == 1
    sizes = [sum(job.cell.spec["replications"] for job in chunk) for chunk in chunks]
    assert sorted(sizes) == [10] * 12 + [240] * 4  # the large ones alike: compiled once
    assert all(len(chunk) == 1 for chunk in replicated.chunks(jobs, "cpu"))
    assert [replicated._worth(chunk) for chunk in chunks] == [size == 240 for size in sizes]
    (whole,) = replicated.chunks([Job(cell, 0) for cell in spirals.STUDY.cells("paper")], "cuda")
    assert len(whole) == len(spirals.STUDY.cells("paper")) and replicated._worth(whole)


def test_penalty_readings():
    assert replicated.penalty({"mu": 0.01, "penalty": "sum", "n": 200}) == 0.01
    assert replicated.penalty({"mu": 0.01, "penalty": "mean", "n": 200}) == pytest.approx(2.0)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("name", STUDIES)
def test_cells(name, scale):
    study = get(name)
    cells = study.cells(scale)
    assert len({cell.name for cell in cells}) == len({cell.hash() for cell in cells}) == len(cells)
    header_of(study, scale, range(1))
    main = [cell.spec for cell in cells if not cell.spec["changed"]]
    assert {spec["loss"] for spec in main} == set(one_output.LOSSES)
    if scale == "paper":
        assert {spec["mu"] for spec in main} == {0, 0.001, 0.01, 0.1, 1}
        assert {(spec["replications"], spec["width"], spec["lr"], spec["penalty"]) for spec in main} == {
            (40, 500, 0.001, "sum")
        }
        assert {spec["steps"] for spec in main} == {10_000 if name == "spirals" else 2000}
        assert {spec["n"] for spec in main} == {200 if name == "spirals" else 8000}
        assert all(cell.group for cell in cells)


def test_settings_are_readings_and_the_others_stay_beside_them():
    clipped = with_settings(sine.STUDY, ["reading=clipped", "lr=0.01"])
    specs = [cell.spec for cell in clipped.cells("smoke")]
    assert all(spec["reading"] == "clipped" for spec in specs if spec["changed"] != "reading")
    assert {spec["reading"] for spec in specs if spec["changed"] == "reading"} == {"affine", "absolute", "half"}
    assert {spec["lr"] for spec in specs if spec["changed"] == "lr"} == {0.001}
    exact = with_settings(sine.STUDY, ["products=tf32"]).cells("smoke")
    assert all(cell.spec["products"] == "tf32" for cell in exact) and "products" not in sine.STUDY.cells("smoke")[0].spec
    with pytest.raises(ValueError, match="Unknown reading 'clippd'.*did you mean 'clipped'"):
        with_settings(sine.STUDY, ["reading=clippd"])
    with pytest.raises(ValueError, match="Unknown penalty 'total'"):
        with_settings(spirals.STUDY, ["penalty=total"])


def test_calibration_errors_of_known_probabilities():
    found = sine.calibration(torch.tensor([[0.1, -0.3], [0.0, 0.2]]), torch.tensor([[0.5, 0.0], [0.25, -0.25]]))
    assert found["linf_test"] == pytest.approx([0.3, 0.2]) and found["l1_test"] == pytest.approx([0.2, 0.1])
    assert found["linf_grid"] == [0.5, 0.25] and found["l1_grid"] == [0.25, 0.25]


def test_a_network_that_knows_eta_has_no_calibration_error(monkeypatch):
    job = Job(next(cell for cell in sine.STUDY.cells("smoke") if cell.spec["loss"] == "SL"), 0)
    networks = half_plane(job, sine.data_of(job))
    truth = lambda self, x: 2 * sine_eta(x if x.ndim == 3 else x.expand(2, *x.shape)) - 1
    monkeypatch.setattr(replicated.Trained, "outputs", truth)
    found = sine.measured(networks)
    assert max(found["linf_grid"] + found["linf_test"]) < 1e-6
    surface = fields.unpack(found["figures"]["surface"], 41)
    line = torch.linspace(-1, 1, 41)
    y, x = torch.meshgrid(line, line, indexing="ij")
    assert np.abs(surface - sine_eta(torch.stack([x, y], -1)).numpy()).max() < 0.003
    assert sum(found["figures"]["histogram"]) == 200


# the choice of mu and the claims


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
    zero_best = shared.Cells.of([record("CE", mu, validation_error=[mu]) for mu in (0.0, 0.001, 0.1)])
    assert (zero_best.best("CE"), zero_best.best("CE", above=0.0)) == (0.0, 0.001)


def test_replications_of_several_seeds_are_joined():
    cells = shared.Cells.of([record("SL", 0.0, seed=1, a=[3.0]), record("SL", 0.0, seed=0, a=[1.0, 2.0])])
    assert cells.values("SL", 0.0, "a") == [1.0, 2.0, 3.0]


def test_paired_tests_agree_with_scipy():
    a, b = np.random.default_rng(0).normal(size=(2, 12))
    assert shared.p_value(list(a), list(b)) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert shared.spread_p_value(list(a), list(3 * b)) == pytest.approx(stats.pearsonr(a + 3 * b, a - 3 * b).pvalue)
    assert shared.p_value([1.0, 1.0], [1.0, 1.0]) == 1.0 and math.isnan(shared.p_value([1.0], [0.0]))
    assert math.isnan(shared.spread_p_value([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]))


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


def test_spreads_are_judged_by_the_paired_test():
    rng = np.random.default_rng(0)
    narrow, wide = list(rng.normal(0, 1, 40)), list(rng.normal(0, 3, 40))
    assert verdict(shared.steadier("", "", narrow, wide)) == shared.HOLDS
    assert verdict(shared.steadier("", "", wide, narrow)) == shared.FAILS
    assert verdict(shared.steadier("", "", narrow, narrow[::-1])) == shared.OPEN


def test_the_best_mu_is_judged_against_the_paper():
    errors = {0.01: [0.10, 0.12, 0.11], 0.1: [0.20, 0.23, 0.21], 1.0: [0.1, 0.2, 0.05]}
    cells = shared.Cells.of([record("SL", mu, validation_error=values) for mu, values in errors.items()])
    assert [verdict(shared.best_mu("", mu, cells, "SL")) for mu in (0.01, 0.1, 1.0, 7.0)] == [
        shared.HOLDS, shared.FAILS, shared.OPEN, shared.OPEN,
    ]  # fmt: skip


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
    assert np.abs(fields.unpack(fields.pack(values), 7) - values).max() <= 0.5 / 255 + 1e-12
    image = pytest.importorskip("PIL.Image")
    colours = fields.shade(values)
    file = base64.b64decode(fields.png(colours).partition(",")[2])
    assert np.array_equal(np.asarray(image.open(io.BytesIO(file))), colours)
    lightness = fields.shade(np.linspace(0, 1, 50)) @ np.array([0.299, 0.587, 0.114])
    assert (np.diff(lightness) > 0).all()  # in order without colours too


# from the command to the page

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", STUDIES)
def test_smoke(name, device, tmp_path):
    study = get(name)
    store = Store(tmp_path)
    header_of(study, "smoke", range(1)).write(store)
    outcome = execute(study, "smoke", range(1), store, device=device)
    assert not outcome.failures and outcome.new == len(study.cells("smoke"))
    (found,) = gather(tmp_path)
    headings = [table.heading for table in found.tables]
    assert headings[0] == "What the paper claims" and "How much the reading matters" in headings
    assert all(row[-1].text in (shared.HOLDS, shared.FAILS, shared.OPEN) for row in found.tables[0].rows)
    assert found.in_short
    drawn = {figure.heading for figure in found.figures}
    wanted = {"spirals": {"Decision boundaries", "Training"}, "sine": {"Pointwise errors", "Where each loss errs"}}
    assert wanted[name] <= drawn
    for kind in ("html", "md", "tex"):
        assert write(tmp_path, kind).stat().st_size > 2000
