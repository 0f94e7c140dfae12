"""The studies on synthetic data: what is measured, replications, cells and readings, and from the command to the page."""

import time

import numpy as np
import pytest
import torch

from squareloss.lab.data.replications import Splits, sine_split, spirals_split
from squareloss.lab.data.synthetic import Sample, sine_eta
from squareloss.lab.report import fields, gather, write
from squareloss.lab.report.views import _replicated as shared
from squareloss.lab.report.views import spirals as spirals_view
from squareloss.lab.runs import Cell, Context, Job, Store
from squareloss.lab.runs.execute import execute
from squareloss.lab.studies import get
from squareloss.lab.studies.run import header_of, with_settings
from squareloss.lab.studies.synthetic import boundary, one_output, replicated, sine, spirals

STUDIES = {"spirals": spirals.STUDY, "sine": sine.STUDY}


# what is measured of the spirals


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
    assert margins["margin_support_low"][0] == pytest.approx(float(signed.quantile(0.05)), abs=1e-3)
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
    networks = half_plane(job, Splits(train, test, test))
    assert networks.error(test) == pytest.approx([0.9])
    assert spirals.sparse_error(networks) == [0.0]
    assert spirals.sparse_error(half_plane(job, Splits(train, test, test), scale=-1.0)) == [1.0]


def test_unrest():
    smooth = 10.0 ** -torch.linspace(0, 3, 31)[:, None]  # a tenth of a decade per note
    jumping = torch.tensor([1.0, 10.0] * 16)[:, None]
    assert float(spirals.unrest(smooth)) == pytest.approx(0.1, rel=1e-4)
    assert float(spirals.unrest(jumping)) == pytest.approx(1.0, rel=1e-5)
    assert float(spirals.unrest(torch.cat([jumping[:-1], smooth]))) == pytest.approx(0.1, rel=1e-4), "how it began is over"


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
        assert [split.x.shape for split in one] == [(1, 20, 2), (1, 30, 2), (1, 30, 2)]
        for mine, other in zip(many, one, strict=True):
            assert torch.equal(mine.x[2], other.x[0]) and torch.equal(mine.y[2], other.y[0])
        assert torch.equal(one.test.x, more.test.x)  # a larger training set leaves the test points
        assert not torch.equal(many.train.x[0], many.test.x[0])
        assert not torch.equal(many.train.x[0], many.train.x[1])


@pytest.mark.parametrize("name", STUDIES)
def test_no_two_seeds_share_a_replication(name):
    spec = STUDIES[name].cells("smoke")[0].spec
    jobs = [Job(Cell("untrained", {**spec, "steps": 0, "replications": 3}), seed) for seed in (0, 1, 2)]
    draw = {"spirals": spirals.data_of, "sine": sine.data_of}[name]
    networks = list(replicated._together(jobs, Context(), draw, "float32", 0))
    for tensors in ([n.data.train.x for n in networks], [n.data.test.x for n in networks], [n.parameters[0] for n in networks]):
        assert len(torch.cat(tensors).flatten(1).unique(dim=0)) == 9


def test_the_curve_the_progress_and_the_time_of_a_job():
    jobs = [Job(cell, 0) for cell in spirals.STUDY.cells("smoke")[:4]]
    told, begun = [], time.perf_counter()
    context = Context(on_report=lambda job, step, total, values: told.append((job, step, total)))
    together = list(replicated._together(jobs, context, spirals.data_of, "tf32", 10))
    took = time.perf_counter() - begun
    assert {(job, 40, 40) for job in jobs} <= set(told)
    for mine in together:
        assert mine.steps[-1] == 40 and mine.errors[-1].tolist() == pytest.approx(mine.error(mine.data.train), abs=1e-4)
        weights = torch.tensor(one_output.LOSSES[mine.job.cell.spec["loss"]])
        last = one_output.blended(mine.outputs(mine.data.train.x)[..., None], mine.data.train.y, weights).mean(-1)
        torch.testing.assert_close(mine.losses[-1], last, rtol=1e-4, atol=1e-5)
    assert 0.3 * took < sum(mine.seconds for mine in together) <= took
    assert together[0].result(lambda networks: {}).seconds > together[0].seconds


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


@pytest.mark.parametrize("name", STUDIES)
def test_validation_is_apart_from_testing(name):
    job = Job(next(cell for cell in STUDIES[name].cells("smoke") if cell.spec["loss"] == "CE"), 0)
    train, right, test = {"spirals": spirals.data_of, "sine": sine.data_of}[name](job)
    right = right._replace(y=(right.x[..., 0] > 0).long())  # as the half plane has them, and as it has not
    wrong = test._replace(y=(test.x[..., 0] <= 0).long())
    found = {"spirals": spirals.measured, "sine": sine.measured}[name](half_plane(job, Splits(train, right, wrong)))
    assert found["validation_error"] == [0.0, 0.0] and found["test_error"] == [1.0, 1.0]
    if name == "sine":
        assert max(found["temperature"]) < 0.01, "sharpened, for all of the validation points are right"
        x = boundary.lattice(1.0, sine.SIDE).view(-1, 2)
        step = ((x[:, 0].sign() + 1) / 2 - sine_eta(x)).abs()
        assert found["also"]["temperature"]["l1_grid"] == pytest.approx([float(step.mean())] * 2, abs=1e-3)


@pytest.mark.parametrize("scale", ["smoke", "laptop", "paper"])
@pytest.mark.parametrize("name", STUDIES)
def test_cells(name, scale):
    study = get(name)
    cells = study.cells(scale)
    assert len({cell.name for cell in cells}) == len({cell.hash() for cell in cells}) == len(cells)
    header_of(study, scale, range(1))
    main = [cell.spec for cell in cells if not cell.spec["changed"]]
    assert {spec["loss"] for spec in main} == set(one_output.LOSSES)
    assert all(cell.spec["mu"] for cell in cells if cell.spec["changed"] == "penalty"), "which is none with mu = 0"
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
    mean = [cell.spec for study in STUDIES.values() for cell in with_settings(study, ["penalty=mean"]).cells("smoke")]
    assert {spec["penalty"] for spec in mean if spec["changed"] == "penalty"} == {"sum"}
    exact = with_settings(sine.STUDY, ["products=tf32"]).cells("smoke")
    assert all(cell.spec["products"] == "tf32" for cell in exact) and "products" not in sine.STUDY.cells("smoke")[0].spec
    with pytest.raises(ValueError, match="Unknown reading 'clippd'.*did you mean 'clipped'"):
        with_settings(sine.STUDY, ["reading=clippd"])
    with pytest.raises(ValueError, match="Unknown products 'tf23'"):
        with_settings(sine.STUDY, ["products=tf23"])
    with pytest.raises(ValueError, match="Unknown penalty 'total'"):
        with_settings(spirals.STUDY, ["penalty=total"])


def test_calibration_errors_of_known_probabilities():
    found = sine.calibration(torch.tensor([[0.1, -0.3], [0.0, 0.2]]), torch.tensor([[0.5, 0.0], [0.25, -0.25]]))
    assert found["linf_test"] == pytest.approx([0.3, 0.2]) and found["l1_test"] == pytest.approx([0.2, 0.1])
    assert found["linf_grid"] == [0.5, 0.25] and found["l1_grid"] == [0.25, 0.25]


@pytest.mark.parametrize("reading", ["affine", "clipped"])
def test_a_network_that_knows_eta_has_no_calibration_error(monkeypatch, reading):
    study = with_settings(sine.STUDY, [f"reading={reading}"])
    job = Job(next(cell for cell in study.cells("smoke") if cell.spec["loss"] == "SL"), 0)
    networks = half_plane(job, sine.data_of(job))
    truth = lambda self, x: 2 * sine_eta(x if x.ndim == 3 else x.expand(2, *x.shape), reading) - 1
    monkeypatch.setattr(replicated.Trained, "outputs", truth)
    found = sine.measured(networks)
    assert max(found["linf_grid"] + found["linf_test"]) < 1e-6
    surface = fields.unpack(found["figures"]["surface"], 41)
    line = torch.linspace(-1, 1, 41)
    y, x = torch.meshgrid(line, line, indexing="ij")
    assert np.abs(surface - sine_eta(torch.stack([x, y], -1), reading).numpy()).max() < 0.003
    assert sum(found["figures"]["histogram"]) == 200


def test_pictures_count_all_points_and_show_the_mean_of_all_replications():
    truth = torch.full((sine.SIDE**2,), 0.5)
    found = sine.pictures(torch.tensor([-0.9, 0.01, 0.9, 0.9]), torch.stack([truth + 0.1, truth - 0.3]), truth)
    assert [found["histogram"][0], found["histogram"][-1], sum(found["histogram"])] == [1, 2, 4]
    assert fields.unpack(found["error"], 41) == pytest.approx(0.2, abs=0.003)


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


@pytest.mark.parametrize("name", STUDIES)
def test_networks_that_diverge_are_said_to(name, tmp_path):
    study = with_settings(STUDIES[name], ["lr=1e9"])
    store = Store(tmp_path)
    header_of(study, "smoke", range(1)).write(store)
    execute(study, "smoke", range(1), store)
    mine = [r for r in store.records(name) if (r.spec["loss"], r.spec["lr"]) == ("SL", 1e9)]
    assert {r.status for r in mine} == {"diverged"}
    page = write(tmp_path, "md").read_text()
    assert "diverged" in page and " nan" not in page


@pytest.mark.parametrize("name", STUDIES)
@pytest.mark.parametrize("lr", ["nan", "inf", "0", "-1"])
def test_learning_rates_that_can_not_be_are_refused(name, lr):
    with pytest.raises(ValueError, match="expected lr > 0 and finite"):
        with_settings(STUDIES[name], [f"lr={lr}"])
