"""What a report shows: rows, tables in a terminal, CSV and LaTeX; not its words, nor its page."""

import csv
import io
import json
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from report_records import fill
from squareloss.lab.report import figures as figures_module
from squareloss.lab.report import gather, tables, write
from squareloss.lab.report.console import conclude, introduce, put
from squareloss.lab.report.header import Claim, Column, Header, read
from squareloss.lab.report.rows import Row, columns_of, rows_of
from squareloss.lab.report.tables import Entry, Table, matrix, places, rates
from squareloss.lab.report.views import View
from squareloss.lab.report.words import judge
from squareloss.lab.report.write import _no_html, _tex, markdown_table
from squareloss.lab.runs import Cell, Job, Result, Store, StoreError


@pytest.fixture
def filled(tmp_path):
    return fill(tmp_path / "out")


def test_header_survives_the_file(filled):
    store, header = filled
    assert read(store, "compare") == [header] and read(store, "other") == []


def test_rows_are_cells_and_their_readings(filled):
    store, header = filled
    rows = rows_of(store.records(), header)
    assert [(row.name, row.cell) for row in rows] == [
        ("ce", "ce"), ("ce+temperature", "ce"), ("simplex", "simplex"), ("simplex+temperature", "simplex"),
    ]  # fmt: skip
    plain, warm = rows[2], rows[3]
    assert warm.values("accuracy") == plain.values("accuracy")
    assert warm.values("ece")[1] == pytest.approx(plain.values("ece")[1] - 0.02)
    assert [column.key for column in columns_of(rows, header)] == ["accuracy", "ece", "brier", "robust_0.1"]  # none outside
    assert {c.key for c in columns_of(rows, Header("compare", "x"))} >= {"accuracy", "ece", "temperature", "lr"}


def test_without_a_list_every_scalar_that_some_row_has_is_a_column():
    rows = [Row("a", "a", {0: {"accuracy": 0.9}}), Row("b", "b", {0: {"margin": 1.0, "curve": [1, 2]}})]
    assert [column.key for column in columns_of(rows, Header("s", "x"))] == ["accuracy", "margin"]


# --- figures


def drawn_lines(monkeypatch, rows):
    """The curves of a report's figures, by the label of their axis."""
    found = {}

    def lines(x_label, y_label, curves, *args, **kwargs):
        found.setdefault(x_label, curves)
        return figures_module.Panel(x_label, "")

    monkeypatch.setattr(figures_module, "_lines", lines)
    figures_module.figures(rows)
    return found


def test_robustness_begins_with_the_clean_accuracy_at_radius_zero(filled, monkeypatch):
    store, header = filled
    rows = rows_of(store.records(), header)
    x, y = drawn_lines(monkeypatch, rows)["radius"]["ce"]
    assert list(x) == [0.0, 0.05, 0.1]
    for line, found in zip(y, rows[0].metrics.values(), strict=True):
        assert list(line) == [found["accuracy"], *found["attacks"]["robust"]["worst case"]]


def test_noise_begins_with_the_accuracy_of_the_same_seed_though_another_is_left_out(monkeypatch):
    stds = {0: [0.1, 0.2], 1: [0.1, 0.3], 2: [0.1, 0.2]}
    found = {s: {"accuracy": 0.9 + s / 100, "noise": {"std": std, "accuracy": [0.8, s / 10]}} for s, std in stds.items()}
    x, y = drawn_lines(monkeypatch, [Row("ce", "ce", found)])["standard deviation of the noise"]["ce"]
    assert x.tolist() == [0.0, 0.1, 0.2] and y.tolist() == [[0.9, 0.8, 0.0], [0.92, 0.8, 0.2]]


def test_the_margin_is_drawn_as_a_survival_function(monkeypatch):
    reach = np.random.default_rng(0).exponential(1.0, 50)
    row = Row("ce", "ce", {0: {"distances": {"radius": [*reach, np.inf]}}})
    x, y = drawn_lines(monkeypatch, [row])["l_2 radius"]["ce"]
    expected = stats.ecdf([*reach, 100.0]).sf.evaluate(x)  # beyond every place that is drawn
    assert x[0] == 0 and len(x) > 10 and y[0] == pytest.approx(expected)
    assert x[-1] == pytest.approx(np.quantile(reach, 0.95)), "up to where nearly all that can be moved have moved"


def test_points_that_nothing_moves_stand_at_every_length(monkeypatch):
    row = Row("ce", "ce", {0: {"distances": {"radius": [np.inf] * 5}}})
    x, y = drawn_lines(monkeypatch, [row])["l_2 radius"]["ce"]
    assert x[-1] > 0 and (y == 1).all()


def test_curves_with_other_points_than_the_first_are_left_out(monkeypatch):
    made = lambda epochs, value: {"curve": {"epoch": list(epochs), "train_accuracy": [value] * len(epochs)}}
    row = Row("ce", "ce", {0: made([1, 2], 0.75), 1: made([1, 2, 3], 0.1), 2: made([1, 2], 0.5)})
    x, y = drawn_lines(monkeypatch, [row])["epoch"]["ce"]
    assert x.tolist() == [1, 2] and y.tolist() == [[0.25, 0.25], [0.5, 0.5]]


@pytest.mark.parametrize(("accuracy", "kind"), [(0.5, "over"), (0.95, "under")])
def test_too_confident_bins_are_drawn_as_such(accuracy, kind):
    bins = {"count": [0, 20], "confidence": [0.0, 0.8], "accuracy": [0.0, accuracy]}
    panel = figures_module._diagram(Row("ce", "ce", {0: {"reliability": bins}}))
    assert {"over", "under"} & set(re.findall(r'class="(\w+)"', panel.svg)) == {kind}


# --- words


def test_long_names_are_told_whole(filled):
    header, console = replace(filled[1], notes=[f"column {'long' * 30!r}: 3 missing"]), Console(file=io.StringIO(), width=60)
    introduce(header, console)
    assert f"column{'long' * 30!r}:3missing" in "".join(console.file.getvalue().split())
    assert console.file.getvalue().startswith(header.title)


def test_beside_the_paper(tmp_path):
    claims = [
        Claim("accuracy", "simplex", "ce", "square loss is more accurate"),
        Claim("ece", "ce", "simplex"),
        Claim("brier", "ce", "focal"),
        Claim("margin", "simplex", "ce"),
        Claim("ece", "simplex", "ce"),
    ]
    paper = {"ce": {"accuracy": [0.931, 0.002, 5]}, "simplex": {"accuracy": [0.99, None, None]}}
    store, header = fill(tmp_path, paper=paper, claims=claims)
    rows = rows_of(store.records(), header)
    assert [judge(claim, rows, header).split(":")[0] for claim in claims] == [
        "holds", "does not hold", "not run", "not run", "holds",
    ]  # fmt: skip
    assert [row[1].kind for row in tables.claims(rows, header).rows] == ["agrees", "differs", "", "", "agrees"]
    beside = [entry.text for entry in tables.paper(rows, header).rows[0]]
    assert beside[0] == "ce" and "93.10" in beside[3]
    assert beside[2].startswith(f"{100 * rows[0].summary('accuracy').mean:.2f} ("), "ours, not the paper's"
    not_run = [replace(rows[0], metrics={}), *rows[1:]]
    assert [row[0].text for row in tables.paper(not_run, header).rows] == ["simplex"]
    text = write(store.folder, "md").read_text()
    assert "| ce | accuracy (%) | 93." in text and "| 93.10 (0.20) | agrees |" in text
    assert "| 99.00 | differs |" in text
    assert "square loss is more accurate" in text


def test_a_direction_that_seeds_do_not_tell_is_not_said_to_hold():
    values = {"ce": [0.5, 0.25, 0.75], "simplex": [0.25, 0.75, 0.8], "brier": [0.25, 0.5, 0.75]}
    rows = [
        Row(name, name, {seed: {"accuracy": v, "ece": v} for seed, v in enumerate(found)}) for name, found in values.items()
    ]
    columns = [Column("accuracy", "accuracy", "higher"), Column("ece", "ECE", "lower")]
    header = Header("compare", "x", rows=list(values), columns=columns)
    for key, better, worse, way in (
        ("accuracy", "simplex", "ce", "same"),
        ("accuracy", "ce", "simplex", "other"),
        ("ece", "ce", "simplex", "same"),
        ("ece", "ce", "brier", "other"),  # equal
    ):
        told = judge(Claim(key, better, worse), rows, header)
        assert told.startswith(f"{way} direction, can't be told from chance"), (key, better, worse)


def test_what_was_not_run_is_a_dash_and_what_seeds_do_not_tell_has_no_colour(tmp_path):
    store, header = fill(tmp_path, seeds=(0,))
    rows = rows_of(store.records(), header)
    lacking = tables.results([*rows[:1], replace(rows[2], metrics={})], header)
    assert {entry.text for entry in lacking.rows[1][1:]} == {"–"}
    assert "Green" not in lacking.caption


def test_what_was_run_where_in_the_order_of_the_study(filled):
    store, header = filled
    (report,) = gather(store.folder)
    order = [row[0].text for row in report.details[1].rows]
    assert order == list(header.hashes) and " on " not in report.details[1].rows[0][1].text
    first, *others = report.records
    moved = [replace(first, hardware={**first.hardware, "cpu": "another"}), *others]
    table, where = matrix(moved, header), places(moved)
    marks = {row[0].text: [entry.text.rpartition(" ")[2] for entry in row[1:]] for row in table.rows}
    assert (
        marks[first.cell][sorted(header.seeds).index(first.seed)] == "1"
        and sum(m == "1" for ms in marks.values() for m in ms) == 1
    )
    assert [row[0].text.partition(":")[0] for row in where.rows] == ["1", "2"]
    lost = matrix([replace(first, status="diverged"), *others], header)
    said = [entry.text for row in lost.rows for entry in row[1:] if not entry.text.endswith(" s")]
    assert said == [f"{first.seconds:.1f} s diverged"], "only what did not end well is said"
    assert [entry.text for row in matrix(others, header).rows for entry in row if entry.value is None][-1] == "not run"


def test_learning_rates_that_diverged_have_a_column_if_there_are_any(filled):
    store, header = filled
    rows = rows_of(store.records(), header)
    assert rates(rows).columns[-1] == "chosen" and len(rates(rows).rows[0]) == 4
    rows[0].metrics[0]["grid"][2]["accuracy"] = None
    assert rates(rows).columns[-1] == "diverged" and [row[-1].text for row in rates(rows).rows] == ["", "", "1", "", "", ""]
    left = [rows[0].metrics[seed]["grid"][2]["accuracy"] for seed in (1, 2)]
    assert rates(rows).rows[2][2].value == pytest.approx(sum(left) / 2), "the mean is over those that did not diverge"
    for seed in (1, 2):
        rows[0].metrics[seed]["grid"][2]["accuracy"] = None
    assert [entry.text for entry in rates(rows).rows[2][2:]] == ["–", "0 of 3", "3"]


def test_when_it_was_run_is_told_to_the_minute(filled):
    (report,) = gather(filled[0].folder)
    periods = {
        ("2026-11-15T11:02:41Z", "2026-11-15T11:02:59Z"): "2026-11-15 11:02 UTC",
        ("2026-11-15T11:02:41Z", "2026-11-15T11:13:00Z"): "2026-11-15 11:02 to 11:13 UTC",
        ("2026-11-15T23:50:00Z", "2026-11-16T00:10:00Z"): "2026-11-15 23:50 to 2026-11-16 00:10 UTC",
    }
    for (first, last), told in periods.items():
        (row,) = places([replace(report.records[0], date=last), replace(report.records[1], date=first)]).rows
        assert row[-1].text == told


def test_sentences_may_break_and_numbers_may_not():
    numbers = Table("t", ["a"], [[Entry("0.0272 (0.0118) [-0.0098, +0.0093]")]])
    words = Table("t", ["a"], [[Entry("0.0272 (0.0118) against 0.0275 (0.0088), difference -0.0003")]])
    assert words.wordy and not numbers.wordy


# --- files


def test_csv_has_every_scalar(filled):
    store, header = filled
    rows = list(csv.DictReader(io.StringIO(write(store.folder, "csv").read_text())))
    by_place = {(row["row"], row["seed"], row["measure"]): float(row["value"]) for row in rows}
    assert by_place["simplex+temperature", "2", "ece"] == rows_of(store.records(), header)[3].values("ece")[2]
    assert ("ce", "0", "lr") in by_place
    assert not [row for row in rows if row["measure"].startswith(("readings", "curve", "reliability"))]


def test_csv_has_every_replication(tmp_path):
    store = Store(tmp_path)
    found = {"error": [0.25, 0.5], "also": {"clipped": [0.1]}, "by_time": [[1, 2], [3, 4]], "right": 0.75, "picture": "00ff"}
    store.write("study", Result(Job(Cell("a", {"task": "t", "replications": 2}), 3), found))
    lines = write(tmp_path, "csv").read_text().splitlines()
    assert lines[0] == "study,row,seed,measure,index,value,settings"
    assert [line.removesuffix(",") for line in lines[1:]] == [
        "study,a,3,error,0,0.25", "study,a,3,error,1,0.5", "study,a,3,also.clipped,0,0.1", "study,a,3,by_time[0],0,1.0",
        "study,a,3,by_time[0],1,2.0", "study,a,3,by_time[1],0,3.0", "study,a,3,by_time[1],1,4.0", "study,a,3,right,,0.75",
    ]  # fmt: skip


def test_what_is_coloured_on_the_page_is_bold_or_italic_on_paper(filled):
    store, header = filled
    (good,) = [row.summary("accuracy").mean for row in rows_of(store.records(), header) if row.name == "simplex"]
    md, tex = (write(store.folder, kind).read_text() for kind in ("md", "tex"))
    assert f"**{100 * good:.2f} (" in md and f"\\textbf{{{100 * good:.2f} (" in tex
    replace(header, baseline="simplex").write(store)
    for text in (md, tex, write(store.folder, "md").read_text()):
        assert "old is better than" in text and "italic is worse" in text and "reen" not in text
    assert re.search(r"\| \*\d", write(store.folder, "md").read_text())


def test_bars_in_a_markdown_table_end_no_cell():
    head, rule, row, *_ = markdown_table(Table("t", ["|a - b|", "c"], [[Entry("|x|"), Entry("1", kind="better")]]))
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in (head, rule, row)] == [3, 3, 3]
    assert (head, row) == (r"| \|a - b\| | c |", r"| \|x\| | **1** |")


def test_tex_is_escaped(filled):
    text = write(filled[0].folder, "tex").read_text()
    assert "accuracy (\\%)" in text and "simplex$+$temperature" in text
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 2
    assert not re.search(r"(?<!\\)%", text.split("\n\n", 1)[1])
    assert _tex("[-0.5, +2] of ResNet-18 at 1e-05") == "[$-$0.5, $+$2] of ResNet-18 at 1e-05"
    assert _tex("|a_1| < 5%") == r"$|$a\_1$|$ $<$ 5\%"  # bare, a bar is a dash in TeX's own encoding


def test_what_strangers_write_is_text_in_every_format(tmp_path):
    """Names in a results folder may be anyone's: no tag in HTML and Markdown, no line of its own in TeX, no formula in CSV."""
    evil, command = "<script>alert(1)</script>", "squareloss\n\\input{secret}\n```\n<img src=x>"
    store = Store(tmp_path)
    for seed in (0, 1):
        result = Result(Job(Cell("a", {"task": "t"}), seed), {evil: 1.0, "=1+1": 2.0}, artefacts={"it.png": b"drawn"})
        path = store.write("study", result)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"cell": evil, "command": command}))
    Header("study", evil, command, [0, 1], facts=[(evil, evil)], cut=[evil], notes=[evil]).write(store)
    assert evil not in write(tmp_path, "html").read_text()
    text = write(tmp_path, "md").read_text()
    assert evil not in text and "&lt;script>" in text and text.count("\n```") == 2
    assert "\n\\input" not in write(tmp_path, "tex").read_text()
    rows = list(csv.DictReader(io.StringIO(write(tmp_path, "csv").read_text())))
    assert {row["measure"] for row in rows} == {evil, "'=1+1"}
    assert _no_html("p < 0.01, a<b, <, <!--, x <= y") == "p < 0.01, a&lt;b, <, &lt;!--, x <= y"


@pytest.mark.parametrize("kind", ["html", "md", "tex", "csv"])
def test_control_characters_of_strangers_are_written_out_in_every_format(tmp_path, kind):
    store = Store(tmp_path)
    path = store.write("study", Result(Job(Cell("a", {"task": "t"}), 0), {"x": 1.0}))
    path.write_text(json.dumps(json.loads(path.read_text()) | {"cell": "a\x1b[2J\x9b\r"}))
    text = write(tmp_path, kind).read_bytes().decode()
    told = "a\\x1b[2J\\x9b".replace("\\", "\\textbackslash{}" if kind == "tex" else "\\")
    assert told in text and re.sub(r"[\n\t]", "", text).isprintable()


def test_unknown_formats_and_empty_folders(filled, tmp_path):
    with pytest.raises(ValueError, match="Unknown format 'pdf'. Available: html, md, tex, csv"):
        write(filled[0].folder, "pdf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="expected results in .*empty, found none"):
        write(tmp_path / "empty")
    with pytest.raises(StoreError, match=f"found none; pass one of {re.escape(str(filled[0].folder))}$"):
        write(filled[0].folder.parent)


def test_markdown_says_what_was_cut(filled):
    assert "- Cut to save time: 3 of 5 seeds.\n" in write(filled[0].folder, "md").read_text()


def test_a_damaged_result_is_left_out_and_named(filled):
    store, _ = filled
    path = store.path("compare", Job(Cell("ce", {"task": "test", "loss": "ce"}), 1))
    path.write_text(path.read_text()[:100])
    with pytest.warns(UserWarning, match="seed1.json"):
        (report,) = gather(store.folder)
    assert len(report.records) == 5 and "1 of 6 jobs have no result yet." in report.cautions


def test_names_of_strangers_do_not_reach_the_terminal_as_codes(filled):
    console = Console(file=io.StringIO(), width=60)
    introduce(replace(filled[1], title="a\x1b[2Jb", notes=["class '\x9b31m\x07'"]), console)
    text = console.file.getvalue()
    assert "a\\x1b[2Jb" in text and "\\x9b31m\\x07" in text and text.replace("\n", "").isprintable()


def test_the_report_imports_no_training():
    code = "import sys, squareloss.lab.report.console; print([m for m in sys.modules if m.startswith('squareloss.lab')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = json.loads(done.stdout.replace("'", '"'))
    assert not [m for m in loaded if "training" in m or "studies" in m or "data" in m]


# --- in a terminal


def printed(table, width):
    console = Console(file=io.StringIO(), width=width)
    put(table, console)
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    return text


def test_a_table_that_is_too_wide_is_turned_then_listed_and_never_cut():
    names = ["loss", *(f"a measure with a long name {i}" for i in range(7))]
    values = [[f"{0.1 * i + j:.4f} (0.0123)" for i in range(7)] for j in range(3)]
    rows = [[Entry(name), *map(Entry, mine)] for name, mine in zip(("ce", "simplex", "focal"), values, strict=True)]
    table = Table("Results", names, rows, "A caption.")
    lines = {width: printed(table, width).splitlines() for width in (160, 90, 60, 40)}
    assert next(line for line in lines[160] if line.startswith("simplex")).split()[1:] == " ".join(values[1]).split()
    assert any(line.startswith(names[3]) and values[2][2] in line for line in lines[90])
    assert any("──" in line for line in lines[60]) and not any("──" in line for line in lines[40])
    told = " ".join(" ".join(lines[40]).split())
    assert all(f"{name}: {value}" in told for mine in values for name, value in zip(names[1:], mine, strict=True))


def test_a_verdict_stands_beside_the_name_in_a_list():
    words = "0.0272 (0.0118) against 0.0275 (0.0088), difference -0.0003 [-0.0098, +0.0093], p = 0.948"
    row = [Entry("square loss errs less"), Entry("lower"), Entry(words), Entry("holds", "holds", "agrees")]
    text = printed(Table("What the paper claims", ["the paper", "its value", "ours", "here"], [row, row]), 60)
    assert "\nsquare loss errs less: holds\n" in text
    assert f"its value: lower; ours: {words}" in " ".join(text.split())


def test_a_terminal_shows_the_first_tables_and_names_the_others(filled):
    (report,) = gather(filled[0].folder)
    own = [Table(f"table {i}", ["a", "b"], [[Entry(f"row of {i}"), Entry("1")]]) for i in range(4)]
    report.__dict__["view"] = View(own, brief=2)
    console = Console(file=io.StringIO(), width=80)
    conclude(report, console)
    text = console.file.getvalue()
    assert "row of 1" in text and "row of 2" not in text and "More tables in the report: table 2; table 3." in text
    networks, probabilities = text.partition("\nProbabilities\n")[::2]
    assert "\nNetworks\n" in networks and "accuracy" in networks and "ECE" not in networks, (
        "what a network has however it is read"
    )
    assert "ECE" in probabilities.partition("\ntable 0\n")[0] and "accuracy" not in probabilities.partition("\ntable 0\n")[0]
    assert " ".join(report.in_short) in " ".join(text.partition("\nIn short\n")[2].split()), "the answer comes last"
