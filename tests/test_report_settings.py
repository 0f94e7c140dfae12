"""Which results a report shows: those of its settings, seeds and cells, and what it says of the others."""

import csv
import io
import json
from dataclasses import replace

import pytest
from rich.console import Console

from report_records import fill, metrics
from squareloss.lab import studies
from squareloss.lab.report import gather, write
from squareloss.lab.report.console import conclude
from squareloss.lab.report.header import Header, read
from squareloss.lab.report.rows import rows_of
from squareloss.lab.report.write import of
from squareloss.lab.runs import Cell, Job, Result, Store
from squareloss.lab.studies import run
from squareloss.lab.studies.compare.plan import plan


@pytest.fixture
def filled(tmp_path):
    return fill(tmp_path / "out")


def test_results_of_other_settings_stay_out_and_are_counted(filled):
    store, header = filled
    assert not any("Not shown" in line for line in gather(store.folder)[0].cautions)
    stale = Cell("ce", {"task": "test", "loss": "ce", "epochs": 1})
    store.write("compare", Result(Job(stale, 0), {"accuracy": 0.1}))
    rows = rows_of(store.records(), header)
    assert rows[0].summary("accuracy").mean > 0.9
    (found,) = gather(store.folder)
    assert len(found.records) == 6 and any("Not shown: 1 result of other settings" in line for line in found.cautions)


def test_seeds_that_were_not_asked_for_are_told_of(filled):
    store, header = filled
    told = "Not shown: {} of the same settings in this folder; --seeds 3 shows all."
    for seeds, more in (([0], "2 more seeds (1, 2)"), ([0, 1], "1 more seed (2)")):
        fewer = replace(header, seeds=seeds)
        fewer.write(store)
        (found,) = gather(store.folder)
        assert [line for line in found.cautions if "Not shown" in line] == [told.format(more)] and not found.others
        assert told.format(more) in write(store.folder, "md").read_text()
        conclude(of(fewer, store.records()), console := Console(file=io.StringIO(), width=200))
        assert told.format(more) in console.file.getvalue()
    assert not of(replace(header, seeds=[0], in_pieces=True), store.records()).more


def test_seeds_that_only_some_cells_have_are_not_told_as_there(filled):
    """As where others were compared with the same loss: more seeds would train the rest, not show them."""
    store, header = filled
    next(store.folder.glob("compare/simplex-*/seed2.json")).unlink()
    replace(header, seeds=[0]).write(store)
    (found,) = gather(store.folder)
    same, others = (line for line in found.cautions if "Not shown" in line)
    assert same == "Not shown: 1 more seed (1) of the same settings in this folder; --seeds 2 shows all."
    assert others.startswith("Not shown: 1 result of other settings or seeds")


def other_settings(store, header, **settings):
    """Results of the same losses with other settings, and their header."""
    cells = {name: Cell(name, {"task": "test", "loss": name, **settings}) for name in header.hashes}
    for cell in cells.values():
        store.write("compare", Result(Job(cell, 0), metrics(0.9, 0, 0.0)))
    facts = [("data", "digits"), ("epochs", str(settings.get("epochs", 30))), ("seeds", "1")]
    other = replace(header, seeds=[0], hashes={name: cell.hash() for name, cell in cells.items()}, facts=facts)
    other.write(store)
    return other


def test_every_settings_of_a_study_are_shown_the_last_first_and_told_apart(filled):
    store, first = filled
    assert [report.settings for report in gather(store.folder)] == [""]
    second = other_settings(store, first, epochs=5)
    last, before = gather(store.folder)
    assert [last.header, before.header] == [second, first]
    assert last.settings == "epochs 5" and before.settings.endswith("Z, by: squareloss compare digits --quick")
    assert [len(last.records), len(before.records)] == [2, 6] and not (last.others or before.others)
    third = other_settings(store, replace(first, rows=["ce"], hashes={"ce": ""}), epochs=7)
    assert [report.settings for report in gather(store.folder)[:2]] == [
        "losses ce; epochs 7", "losses ce, ce+temperature, simplex, simplex+temperature; epochs 5"
    ]  # fmt: skip
    first.write(store)  # the first command again
    assert [report.header for report in gather(store.folder)] == [first, third, second]


def test_how_many_networks_share_a_gpu_is_no_setting(filled):
    store, first = filled
    for epochs, together in ((5, "2"), (7, "4")):
        header = other_settings(store, first, epochs=epochs)
        replace(header, facts=[*header.facts, ("together", together)]).write(store)
    assert [report.settings for report in gather(store.folder)[:2]] == ["epochs 7", "epochs 5"]
    table1 = studies.get("table1")
    headers = [run.header_of(run.with_settings(table1, [f"together={n}"]), "paper", [0]) for n in (2, 4)]
    assert headers[0].key == headers[1].key  # nor are they of two settings in a folder


def test_other_readings_are_told_by_the_names_of_the_losses_alone(tmp_path):
    store = Store(tmp_path)
    for losses in ("ce,focal", "ce,simplex+asinh"):
        made = plan("digits", losses=losses, device="cpu")
        made.header.write(store)
        for cell in made.study.cells("laptop"):
            store.write("compare", Result(Job(cell, 0), metrics(0.9, 0, 0.0)))
    assert [report.settings for report in gather(tmp_path)] == [f"losses {rows}" for rows in ("ce, simplex+asinh", "ce, focal")]


def test_settings_that_are_told_alike_are_told_apart_by_when_and_how(filled):
    """As of a data file that was edited."""
    store, first = filled
    for content in "ab":
        other_settings(store, replace(first, command=f"squareloss compare {content}.csv"), epochs=5, content=content)
    b, a, before = (report.settings for report in gather(store.folder))
    assert a.startswith("epochs 5; those of 20") and a.endswith("Z, by: squareloss compare a.csv") and b.endswith(" b.csv")
    assert before.startswith("those of 20") and before.endswith("squareloss compare digits --quick")


def test_every_format_tells_settings_apart(filled):
    store, first = filled
    other_settings(store, first, epochs=5)
    assert write(store.folder, "md").read_text().count("\n\nSettings: epochs 5\n") == 1
    captions = [line for line in write(store.folder, "tex").read_text().splitlines() if line.startswith("\\caption")]
    assert len(set(captions)) == len(captions) and any(line.endswith("Settings: epochs 5.}") for line in captions)
    rows = list(csv.DictReader(io.StringIO(write(store.folder, "csv").read_text())))
    values = [(row["settings"], row["row"], row["seed"]) for row in rows if row["measure"] == "accuracy"]
    assert len(set(values)) == len(values) == 16
    page = write(store.folder).read_text()
    assert (
        page.count("<strong>Settings:</strong> epochs 5</p>") == 1 and page.count("<title>Which loss for digits?</title>") == 1
    )
    assert page.count('<a href="#part') == 2 and "Not shown" not in page


def test_settings_of_which_later_ones_show_every_result_are_no_part_of_their_own(filled):
    store, header = filled
    for rows in (["simplex", "ce"], ["ce", "ce+temperature"]):  # the same networks in another order, or read otherwise
        again = replace(header, rows=rows, baseline=rows[0])
        again.write(store)
        (found,) = gather(store.folder)
        assert found.header == again and [row.name for row in found.rows] == rows
    focal = Cell("focal", {"task": "test", "loss": "focal"})
    more = replace(header, rows=[*header.rows, "focal"], hashes={**header.hashes, "focal": focal.hash()})
    more.write(store)
    assert [report.header for report in gather(store.folder)] == [more]  # one more loss: all is in the larger comparison
    replace(more, seeds=[0]).write(store)
    assert [len(report.records) for report in gather(store.folder)] == [2, 6]  # which has not every seed of the smaller one


def test_seeds_of_cells_that_other_settings_share_leave_nothing_missing(tmp_path):
    """As of two scales: one seed of the small one, three of the large one, a job of which is missing."""
    store, cells = Store(tmp_path), {name: Cell(name, {"task": "t", "name": name}) for name in "abc"}
    small, large = (
        Header("study", "t", seeds=[seed], hashes={n: cells[n].hash() for n in names}, facts=[("cells", names)], in_pieces=True)
        for names, seed in (("ab", 0), ("bc", 1))
    )
    for header, jobs in ((small, ("a0", "b0")), (large, ("c0", "b1", "c1", "c2"))):
        header.write(store)
        for name, seed in jobs:
            store.write("study", Result(Job(cells[name], int(seed)), {"value": 1.0}))
    last, before = gather(tmp_path)
    assert [(list(one.header.seeds), len(one.records)) for one in (last, before)] == [([0, 1, 2], 5), ([0], 3)]
    assert [line for line in last.cautions if "yet" in line] == ["1 of 6 jobs have no result yet."]
    assert not any("yet" in line for line in before.cautions) and before.rows[1].values("value") == {0: 1.0, 1: 1.0}


@pytest.mark.parametrize("how", ["cut", "of_a_later_version", "hashes", "date", "a_folder"])
def test_a_damaged_header_is_named_and_the_other_settings_are_shown(filled, how):
    store, header = filled
    (path,) = (store.folder / "compare").glob("header-*.json")
    second = other_settings(store, header, epochs=5)
    whole = path.read_text()
    changed = {"of_a_later_version": {"new": 1}, "hashes": {"hashes": ["a"]}, "date": {"date": None}}
    path.write_text(json.dumps(json.loads(whole) | changed[how]) if how in changed else whole[:100])
    if how == "a_folder":
        path.unlink()
        path.mkdir()
    with pytest.warns(UserWarning, match=f"{path}.*left out"):
        (found,) = gather(store.folder)
    assert found.header == second and "Not shown: 6 results of other settings" in found.cautions[0]


def test_of_two_headers_of_the_same_cells_the_later_counts(filled):
    """As of a copy by hand, whatever the order of their files."""
    store, header = filled
    (path,) = (store.folder / "compare").glob("header-*.json")
    for name in ("header-0.json", "header-g.json"):
        path.with_name(name).write_text(json.dumps(json.loads(path.read_text()) | {"title": "old", "date": "2020"}))
    assert read(store, "compare") == [header]


def test_results_of_other_studies_and_seeds_stay_out(filled):
    store, header = filled
    before = rows_of(store.records(), header)
    for study, seed in (("other", 0), ("compare", 7)):
        store.write(study, Result(Job(Cell("ce", {"task": "test", "loss": "ce"}), seed), {"accuracy": 0.1}))
    assert rows_of(store.records(), header) == before


def test_results_of_cells_that_were_not_asked_for_stay_out_and_hide_no_missing_one(filled):
    store, header = filled
    for seed in header.seeds:
        store.write("compare", Result(Job(Cell("focal", {"task": "test", "loss": "focal"}), seed), {"accuracy": 0.1}))
    store.path("compare", Job(Cell("ce", {"task": "test", "loss": "ce"}), 1)).unlink()
    (found,) = gather(store.folder)
    assert {record.cell for record in found.records} == {"ce", "simplex"}
    assert found.cautions[0] == "1 of 6 jobs have no result yet."
