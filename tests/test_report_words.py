"""The sentences of the report: what can be told of the numbers, and what must be said with them."""

import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from report_records import COLUMNS, fill, gather_with, metrics
from squareloss.lab.report import gather, write
from squareloss.lab.report.console import conclude, introduce
from squareloss.lab.report.header import Column, Header
from squareloss.lab.report.rows import Row, difference, rows_of
from squareloss.lab.report.tables import differences
from squareloss.lab.report.words import (
    LOSSES,
    cautions,
    in_short,
    like_with_like,
    named,
    nothing_trained,
    summary,
    verdicts,
)
from squareloss.lab.runs import Cell, Job, Result, Store


@pytest.fixture
def filled(tmp_path):
    return fill(tmp_path / "out")


def test_words_follow_the_numbers(filled):
    store, header = filled
    rows = rows_of(store.records(), header)
    found = {(v.row.name, v.column.key): v for v in verdicts(rows, header)}
    assert found["simplex", "accuracy"].word == "better"
    assert found["simplex", "accuracy"].amount().startswith("+2.00 points [+2.00, +2.00]")
    assert found["simplex", "ece"].word == "better"  # lower is better
    assert ("simplex+temperature", "accuracy") not in found  # the same network, told once
    assert ("ce+temperature", "accuracy") not in found
    flipped = Header(**{**vars(header), "baseline": "simplex"})
    back = {(v.row.name, v.column.key): v.word for v in verdicts(rows, flipped)}
    assert back["ce", "accuracy"] == "worse" and back["ce", "ece"] == "worse"
    assert {v.other.name for v in like_with_like(rows, header)} == {"ce+temperature"}
    told = summary(rows, header)
    assert told[1].startswith("simplex against ce: better in accuracy (95.")
    assert all(told[1].count(label) == 1 for label in ("accuracy (", "ECE (", "Brier score (")), "each measure once"
    assert in_short(rows, header)[0].startswith("As trained, simplex against ce: better in accuracy")
    read = in_short(rows, replace(header, baseline="ce+temperature"))
    against = ["ce as trained", "simplex as trained", "With both calibrated, simplex+temperature"]
    assert [line.partition(" against ce+temperature: ")[0] for line in read] == against
    assert not like_with_like(rows, replace(header, baseline="ce+temperature"))
    other = [replace(row, name=row.name.replace("simplex+temperature", "simplex+asinh")) for row in rows]
    assert {(v.row.name, v.other.name) for v in like_with_like(other, header)} == {("simplex+asinh", "ce+temperature")}
    assert any(
        line.startswith("With both calibrated, simplex+temperature against ce+temperature: ") for line in in_short(rows, header)
    )


def test_what_readings_share_is_told_in_short_whatever_was_asked_for(filled):
    store, header = filled
    for names, first in (
        (["ce", "simplex+temperature", "simplex"], "As trained, simplex against ce: better in accuracy"),
        (["ce", "simplex+temperature"], "simplex+temperature against ce: better in accuracy"),
        (["ce", "ce+temperature", "simplex+temperature"], "simplex+temperature against ce: better in accuracy"),
        (
            ["ce+temperature", "simplex+temperature"],
            "With both calibrated, simplex+temperature against ce+temperature: better in acc",
        ),
    ):
        asked = replace(header, rows=names, baseline=names[0])
        assert in_short(rows_of(store.records(), asked), asked)[0].startswith(first)
    replace(header, rows=["ce+temperature", "simplex+temperature", "simplex"], baseline="ce+temperature").write(store)
    console = Console(file=io.StringIO(), width=100)
    conclude(gather(store.folder)[0], console)
    networks = console.file.getvalue().partition("\nNetworks\n")[2].partition("\nProbabilities\n")[0]
    assert "\nce " in networks and "\nsimplex " in networks and "temperature" not in networks
    assert "Bold is better than ce, italic is worse" in networks and re.search(r"simplex +\*\*9", networks), "it has no colours"
    coloured = Console(file=io.StringIO(), width=100, force_terminal=True, color_system="standard")
    conclude(gather(store.folder)[0], coloured)
    assert "Green is better than ce, " in coloured.file.getvalue() and "**" not in coloured.file.getvalue()


def test_names_of_losses_are_explained_wherever_they_are_used(filled):
    from squareloss.lab.studies.compare import ingredients

    store, header = filled
    assert list(LOSSES) == list(ingredients.LOSSES)
    told = named(header)
    assert told.startswith("ce: cross-entropy; simplex: square loss") and "+temperature: the same network" in told
    assert "temperature" not in named(replace(header, rows=["ce", "focal"]))
    assert named(replace(header, rows=["ce+asinh"])).endswith(
        "; +asinh: the same network, its scores bent by three fitted numbers"
    )
    assert named(replace(header, rows=["resnet18-SL"])) == named(replace(header, rows=[])) == ""
    console = Console(file=io.StringIO(), width=400)
    introduce(header, console)
    assert told in console.file.getvalue() and told in write(store.folder, "md").read_text()


def test_names_are_explained_only_where_all_are_losses():
    assert named(Header("x", "x", rows=["ce", "simplex"])) and not named(Header("x", "x", rows=["ce", "wide"]))


def test_a_reading_that_older_results_lack_is_told(filled):
    store, header = filled
    header = replace(header, rows=[*header.rows, "simplex+asinh"])
    told = [line for line in cautions(rows_of(store.records(), header), header) if "--force" in line]
    assert len(told) == 1 and told[0].startswith("simplex+asinh: 3 of 3 seeds were measured before there was this reading; ")


def test_noise_can_not_be_told_apart(tmp_path):
    store = Store(tmp_path)
    for name, values in (("ce", [0.90, 0.92, 0.91]), ("simplex", [0.92, 0.90, 0.915])):
        for seed, value in enumerate(values):
            store.write("compare", Result(Job(Cell(name, {"task": "t", "loss": name}), seed), {"accuracy": value}))
    header = Header("compare", "x", rows=["ce", "simplex"], columns=COLUMNS, baseline="ce")
    rows = rows_of(store.records(), header)
    assert [v.word for v in verdicts(rows, header)] == ["can't be told apart"]
    assert "against" not in verdicts(rows, header)[0].told(), "means that can't be told apart are not told"
    one = rows_of(store.records(), replace(header, seeds=[0]))
    assert [v.word for v in verdicts(one, header)] == ["no interval"], "of one seed nothing is said to be alike"
    assert in_short(rows, header) == ["As trained, simplex against ce: no difference that can be told in accuracy."]
    wide, each = cautions(rows, header)
    assert wide.startswith("3 seeds make wide intervals") and each.startswith("Each interval is a 95% one")
    assert cautions(rows, replace(header, baseline="")) == [], "nothing is compared, so there is no interval to speak of"
    assert cautions(one, replace(header, baseline="")) == []


def test_one_seed_uses_the_bootstrap_of_the_test_points(tmp_path):
    store, rng = Store(tmp_path), np.random.default_rng(0)
    shared = rng.normal(0, 0.05, 200)
    for name, value in (("ce", 0.90), ("simplex", 0.93)):
        replicates = torch.tensor(value + shared + rng.normal(0, 0.005, 200))
        drawn = {"accuracy": replicates, "smooth_ece": replicates.clone(), "ece+temperature": torch.zeros(200)}
        drawn["margin"] = value + replicates  # its draws lie far from its value: the basic interval is another
        result = Result(
            Job(Cell(name, {"task": "t", "loss": name}), 0),
            {"accuracy": value, "smooth_ece": value, "margin": value**4},
            artefacts={"replicates.safetensors": drawn},
        )
        store.write("compare", result)
    header = Header("compare", "x", rows=["ce", "simplex"], columns=COLUMNS, baseline="ce")
    rows = rows_of(store.records(), header)
    found = difference(rows[1], rows[0], COLUMNS[0], 0.0)
    assert found.how == "one seed, bootstrap of the test points"
    assert 0 < found.low < 0.03 < found.high < 0.06  # paired: far narrower than the replicates' own spread of 0.05
    found = difference(rows[1], rows[0], Column("smooth_ece", ""), 0.0)
    assert (found.how, found.low) == ("one seed", None), "of calibration errors the bootstrap's intervals do not hold"
    found = difference(rows[1], rows[0], Column("margin", ""), 0.0)
    assert 0 < found.low < 0.06 < found.high, "a median has the quantiles of its draws"
    both = replace(header, columns=[COLUMNS[0], Column("smooth_ece", "smooth ECE", better="lower")])
    (line,) = in_short(rows, both)
    assert line.endswith("); no interval to judge smooth ECE by."), "what has none is not among what can't be told apart"
    table = differences(rows, both)
    assert table.caption == "95% intervals of the difference: one seed, bootstrap of the test points."
    assert [row[6].text == "–" for row in table.rows] == [False, True]
    (said,) = cautions(rows, header)
    assert said.startswith("One seed")
    assert not cautions(rows[:1], header), "of one loss there is no interval"
    more = Result(
        Job(Cell("simplex", {"task": "t", "loss": "simplex"}), 1),
        {"accuracy": 0.94},
        artefacts={"replicates.safetensors": drawn},
    )
    store.write("compare", more)
    rows = rows_of(store.records(), header)
    found = difference(rows[1], rows[0], COLUMNS[0], 0.0)
    assert (found.how, found.low) == ("one seed", None), "a mean over two seeds is not what the replicates are of"


def test_every_ground_of_the_intervals_is_told(filled):
    """One loss has a seed less: its differences rest on fewer pairs than the others."""
    store, header = filled
    for seed in header.seeds[:2]:
        store.write("compare", Result(Job(Cell("focal", {"task": "test", "loss": "focal"}), seed), metrics(0.94, seed, 0.0)))
    header = replace(header, rows=[*header.rows, "focal"], hashes={}, overlap=0.5)
    rows = rows_of(store.records(), header)
    caption = differences(rows, header).caption
    assert caption.startswith(
        "95% intervals of the difference: the same for all 3 seeds; 3 seeds, paired; 2 seeds, paired. Widened"
    )
    assert "Widened" not in differences(rows, replace(header, overlap=0.0)).caption
    one = replace(header, seeds=[0])
    assert "Widened" not in differences(rows_of(store.records(), one), one).caption, "of one seed nothing is"
    of = {row.name: row for row in rows}
    plain, wide = (difference(of["simplex"], of["ce"], COLUMNS[0], overlap) for overlap in (0.0, 0.5))
    assert (wide.high - wide.low) / (plain.high - plain.low) == pytest.approx((1 + 3 * 0.5) ** 0.5), "and widened they are"


def test_cautions_are_found_in_the_numbers(tmp_path):
    store = Store(tmp_path)
    cell = Cell("ce", {"task": "t"})
    for seed in range(3):
        found = metrics(0.9, seed, 0.0)
        found |= {"lr": 0.3, "temperature_fitted": seed > 0}
        store.write("compare", Result(Job(cell, seed), found))
    store.write("compare", Result(Job(cell, 3), {}, "diverged"))
    header = Header("compare", "x", seeds=range(5), rows=["ce"], hashes={"ce": cell.hash()}, columns=COLUMNS, baseline="ce")
    said = "\n".join(gather_with(store, header).cautions)
    assert "diverged, at every learning rate tried, for 1 of 4 seeds" in said
    assert "at an end of the grid for 3 of 3 seeds" in said
    assert "no temperature is best for 1 of 3 seeds" in said
    assert "1 of 5 jobs have no result yet" in said
    assert "upper bounds" in said
    assert "interval" not in said, "of one loss there is none"


def test_what_is_open_is_a_list_and_smoke_is_said_to_be_smoke(filled):
    store, header = filled
    rows = rows_of(store.records(), header)
    alike = [replace(row, metrics=rows[0].metrics) for row in rows]
    assert in_short(alike, replace(header, columns=COLUMNS[:3]))[0].endswith(
        ": no difference that can be told in accuracy, ECE or Brier score."
    )
    said = {scale: cautions(rows, replace(header, facts=[("scale", scale)])) for scale in ("smoke", "paper")}
    assert said["smoke"] == ["Scale smoke shows that everything runs; its numbers say nothing of the paper.", *said["paper"]]


@pytest.mark.parametrize(("lr", "told"), [(0.03, True), (0.1, False), (0.3, True)])
def test_either_end_of_the_grid_is_told(tmp_path, lr, told):
    store = Store(tmp_path)
    store.write("compare", Result(Job(Cell("ce", {"task": "t"}), 0), metrics(0.9, 0, 0.0) | {"lr": lr}))
    header = Header("compare", "x", rows=["ce"], columns=COLUMNS)
    assert any("at an end of the grid" in line for line in cautions(rows_of(store.records(), header), header)) is told


def test_nothing_is_trained_where_every_network_there_is_diverged():
    lost, not_run = Row("ce", "ce", diverged=[0]), Row("brier", "brier")
    trained = Row("simplex", "simplex", {0: {"accuracy": 0.9}})
    assert nothing_trained([lost, not_run])
    assert not nothing_trained([lost, trained]) and not nothing_trained([not_run])
