"""report: words that follow the numbers, and a page that stands alone."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

from squareloss.lab.report import gather, write
from squareloss.lab.report.console import conclude, put
from squareloss.lab.report.figures import figures
from squareloss.lab.report.header import Claim, Column, Header, read
from squareloss.lab.report.rows import columns_of, difference, rows_of
from squareloss.lab.report.svg import Plot, ticks
from squareloss.lab.report.tables import Entry, Table, matrix, places
from squareloss.lab.report.views import View
from squareloss.lab.report.words import cautions, in_short, judge, like_with_like, summary, verdicts
from squareloss.lab.runs import Cell, Job, Result, Store, StoreError

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


# --- records to look at


def metrics(level, seed, reading_gain):
    """A result like those of compare; `level` moves the accuracy, `reading_gain` the ECE that a temperature saves."""
    rng = np.random.default_rng(100 * seed + 7)
    wobble = float(rng.normal(0, 0.002))
    accuracy, ece = level + wobble, 0.06 - (level - 0.9) + wobble / 2
    bins = {"count": [0] * 10 + [5, 10, 20, 40, 125], "confidence": [0.0] * 10 + [0.7, 0.75, 0.83, 0.9, 0.97]}
    bins["accuracy"] = [0.0] * 10 + [0.6, 0.8, 0.8, 0.95, 0.99]
    return {
        "accuracy": accuracy, "nll_temperature": 0.3 - level / 10, "temperature": 1.2, "temperature_fitted": True, "lr": 0.1,
        "grid": [{"lr": lr, "accuracy": accuracy - abs(lr - 0.1), "nll": 0.2} for lr in (0.03, 0.1, 0.3)],
        "robust_0.1": level - 0.4 + wobble,
        "readings": {
            "": {"ece": ece, "brier": 0.1 - level / 20, "reliability": bins},
            "+temperature": {"ece": ece - reading_gain, "brier": 0.09 - level / 20, "reliability": bins},
        },
        "noise": {"std": [0.1, 0.2], "accuracy": [accuracy - 0.05, accuracy - 0.2]},
        "attacks": {"norm": "linf", "eps": [0.05, 0.1], "points": 50, "clean": accuracy,
                    "robust": {"ce": [0.8, 0.6], "margin": [0.82, 0.61], "worst case": [0.78, level - 0.4]}},
        "curve": {"epoch": [1, 2, 3], "loss": [1.0, 0.5, 0.3], "train_accuracy": [0.6, 0.8, 0.95]},
    }  # fmt: skip


COLUMNS = [
    Column("accuracy", "accuracy", "higher", percent=True),
    Column("ece", "ECE", "lower", shared=False),
    Column("brier", "Brier score", "lower", shared=False),
    Column("outside", "eta outside [0, 1]", percent=True, shared=False),
    Column("robust_0.1", "robust accuracy at 0.1", "higher", percent=True),
]


def fill(folder, seeds=(0, 1, 2), title="Which loss for digits?", **options):
    store = Store(folder)
    cells = {name: Cell(name, {"task": "test", "loss": name}) for name in ("ce", "simplex")}
    for name, level, gain in (("ce", 0.93, 0.0), ("simplex", 0.95, 0.02)):
        for seed in seeds:
            store.write("compare", Result(Job(cells[name], seed), metrics(level, seed, gain), seconds=1.5 + seed))
    rows, hashes = ["ce", "ce+temperature", "simplex", "simplex+temperature"], {name: c.hash() for name, c in cells.items()}
    options |= {"facts": [("data", "digits")], "cut": ["3 seeds instead of 5"]}
    command = "squareloss compare digits --quick"
    header = Header("compare", title, command, list(seeds), rows, hashes, COLUMNS, "ce", **options)
    header.write(store)
    return store, header


@pytest.fixture
def filled(tmp_path):
    return fill(tmp_path / "out")


def test_header_survives_the_file(filled):
    store, header = filled
    assert read(store, "compare") == header
    assert read(store, "other") == Header("other", "other")
    (store.folder / "compare.json").write_text('{"study": 1}')
    with pytest.raises(StoreError, match="expected the description of a study"):
        read(store, "compare")


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


def test_results_of_other_settings_stay_out(filled):
    store, header = filled
    stale = Cell("ce", {"task": "test", "loss": "ce", "epochs": 1})
    store.write("compare", Result(Job(stale, 0), {"accuracy": 0.1}))
    rows = rows_of(store.records(), header)
    assert rows[0].summary("accuracy").mean > 0.9
    assert len(gather(store.folder)[0].records) == 6


# --- words


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
    assert "simplex against ce: better in accuracy (95." in "\n".join(summary(rows, header))
    assert in_short(rows, header)[0].startswith("As trained, simplex against ce: better in accuracy")
    assert any(line.startswith("With a temperature for both") for line in in_short(rows, header))


def test_noise_can_not_be_told_apart(tmp_path):
    store = Store(tmp_path)
    for name, values in (("ce", [0.90, 0.92, 0.91]), ("simplex", [0.92, 0.90, 0.915])):
        for seed, value in enumerate(values):
            store.write("compare", Result(Job(Cell(name, {"task": "t", "loss": name}), seed), {"accuracy": value}))
    header = Header("compare", "x", rows=["ce", "simplex"], columns=COLUMNS, baseline="ce")
    rows = rows_of(store.records(), header)
    assert [v.word for v in verdicts(rows, header)] == ["can't be told apart"]
    assert in_short(rows, header) == ["As trained, simplex against ce: no difference that can be told in accuracy."]


def test_one_seed_uses_the_bootstrap_of_the_test_points(tmp_path):
    store, rng = Store(tmp_path), np.random.default_rng(0)
    shared = rng.normal(0, 0.05, 200)
    for name, value in (("ce", 0.90), ("simplex", 0.93)):
        drawn = {"accuracy": torch.tensor(value + shared + rng.normal(0, 0.005, 200)), "ece+temperature": torch.zeros(200)}
        result = Result(
            Job(Cell(name, {"task": "t", "loss": name}), 0), {"accuracy": value}, artefacts={"replicates.safetensors": drawn}
        )
        store.write("compare", result)
    header = Header("compare", "x", rows=["ce", "simplex"], columns=COLUMNS, baseline="ce")
    rows = rows_of(store.records(), header)
    found = difference(rows[1], rows[0], COLUMNS[0], 0.0)
    assert found.how == "one seed, bootstrap of the test points"
    assert 0 < found.low < 0.03 < found.high < 0.06  # paired: far narrower than the replicates' own spread of 0.05
    assert "One seed" in cautions(rows, header)[0]


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
    assert "diverged at every learning rate for 1 seeds" in said
    assert "at an end of the grid for 3 of 3 seeds" in said
    assert "no temperature could be fitted for 1 of 3 seeds" in said
    assert "1 of 5 jobs have no result yet" in said
    assert "upper bounds" in said


def gather_with(store, header):
    header.write(store)
    return gather(store.folder)[0]


def test_beside_the_paper(tmp_path):
    claims = [
        Claim("accuracy", "simplex", "ce", "square loss is more accurate"),
        Claim("ece", "ce", "simplex"),
        Claim("brier", "ce", "focal"),
    ]
    paper = {"ce": {"accuracy": [0.931, 0.002, 5]}, "simplex": {"accuracy": [0.99, None, None]}}
    store, header = fill(tmp_path, paper=paper, claims=claims)
    rows = rows_of(store.records(), header)
    assert [judge(claim, rows, header).split(":")[0] for claim in claims] == ["holds", "does not hold", "not run"]
    text = write(store.folder, "md").read_text()
    assert "| ce | accuracy (%) | 93." in text and "| 93.10 (0.20) | agrees |" in text
    assert "| 99.00 | differs |" in text
    assert "square loss is more accurate" in text


# --- figures


def test_ticks_are_round_and_inside():
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(0, 0.1) == [0, 0.02, 0.04, 0.06, 0.08, 0.1]
    for low, high in ((0, 0.7843), (3, 97), (-0.3, 1), (0, 1e-4)):
        found = ticks(low, high)
        assert 2 <= len(found) <= 6 and low <= found[0] and found[-1] <= high * (1 + 1e-9)


def test_points_land_where_they_belong():
    plot = Plot("x", "y", (0, 2), (0, 1), width=200, height=100)
    left, bottom = plot.at(0, 0)
    right, top = plot.at(2, 1)
    assert plot.at(1, 0.5) == ((left + right) / 2, (top + bottom) / 2)
    assert plot.at(5, -3) == (right, bottom)  # beyond the axes: at their edge


def test_figures_show_what_there_is(filled):
    store, header = filled
    found = {figure.heading: figure for figure in figures(rows_of(store.records(), header), header)}
    assert list(found) == ["Reliability", "Robustness", "Noise", "Training"]
    assert [panel.heading for panel in found["Reliability"].panels] == list(header.rows)
    assert [panel.heading for panel in found["Robustness"].panels] == [
        "worst case",
        "ce, by attack loss",
        "simplex, by attack loss",
    ]
    assert {name for _, name, _ in found["Robustness"].panels[1].legend} == {"ce", "margin", "worst case"}
    assert figures(rows_of([], header), header) == []


def test_reliability_pools_the_seeds(tmp_path):
    store = Store(tmp_path)
    for seed, (count, accuracy) in enumerate([(10, 0.5), (30, 0.9)]):
        bins = {"count": [0, count], "confidence": [0.0, 0.8], "accuracy": [0.0, accuracy]}
        store.write("s", Result(Job(Cell("ce", {"task": "t"}), seed), {"reliability": bins}))
    header = Header("s", "s")
    (figure,) = figures(rows_of(store.records(), header), header)
    assert "accuracy 0.800, 40 predictions" in figure.panels[0].svg


def test_pictures_of_the_runs_are_embedded(tmp_path):
    store = Store(tmp_path)
    store.write(
        "s", Result(Job(Cell("ce", {"task": "t"}), 0), {"error": 0.1}, artefacts={"boundary.png": b"\x89PNG not really"})
    )
    page = write(tmp_path).read_text()
    assert 'src="data:image/png;base64,iVBORyBub3QgcmVhbGx5"' in page or 'src="data:image/png;base64,' in page


# --- files


class Page(HTMLParser):
    """Collects what a page refers to, and whether its tags are balanced."""

    VOID = ("meta", "link", "img", "line", "circle", "rect", "polyline", "polygon", "br")

    def __init__(self, text):
        super().__init__()
        self.open, self.refers, self.text = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.refers += [value for name, value in attrs if name in ("src", "href", "data", "action")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def test_the_page_stands_alone(filled):
    store, _ = filled
    path = write(store.folder)
    assert path == store.folder / "report.html"
    text = path.read_text()
    page = Page(text)
    assert all(value.startswith("data:") for value in page.refers)
    assert not re.search(r"https?://|@import|url\(|fetch\(|XMLHttpRequest", text)
    said = " ".join(page.text)
    for part in (
        "Which loss for digits?",
        "3 seeds instead of 5",
        "simplex+temperature",
        "squareloss compare digits --quick",
        "1.5 s",
    ):
        assert part in said
    assert len(text) < 300_000


def test_names_can_not_inject(tmp_path):
    store, _ = fill(tmp_path, title="<script>alert(1)</script>")
    text = write(store.folder).read_text()
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text


def test_two_reports_of_the_same_results_are_equal(filled):
    store, _ = filled
    assert write(store.folder).read_bytes() == write(store.folder, output=store.folder / "again.html").read_bytes()


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
    assert lines[0] == "study,row,seed,measure,index,value"
    assert lines[1:] == [
        "study,a,3,error,0,0.25", "study,a,3,error,1,0.5", "study,a,3,also.clipped,0,0.1", "study,a,3,by_time[0],0,1.0",
        "study,a,3,by_time[0],1,2.0", "study,a,3,by_time[1],0,3.0", "study,a,3,by_time[1],1,4.0", "study,a,3,right,,0.75",
    ]  # fmt: skip


def test_tex_is_escaped(filled):
    text = write(filled[0].folder, "tex").read_text()
    assert "accuracy (\\%)" in text and "simplex$+$temperature" in text
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == 2
    assert not re.search(r"(?<!\\)%", text.split("\n\n", 1)[1])


def test_unknown_formats_and_empty_folders(filled, tmp_path):
    with pytest.raises(ValueError, match="Unknown format 'pdf'. Available: html, md, tex, csv"):
        write(filled[0].folder, "pdf")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="expected results in .*empty, found none"):
        write(tmp_path / "empty")


def test_a_damaged_result_is_left_out_and_named(filled):
    store, _ = filled
    path = store.path("compare", Job(Cell("ce", {"task": "test", "loss": "ce"}), 1))
    path.write_text(path.read_text()[:100])
    with pytest.warns(UserWarning, match="seed1.json"):
        (report,) = gather(store.folder)
    assert len(report.records) == 5 and "1 of 6 jobs have no result yet." in report.cautions


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
    tables = [Table(f"table {i}", ["a", "b"], [[Entry(f"row of {i}"), Entry("1")]]) for i in range(4)]
    report.__dict__["view"] = View(tables, brief=2)
    console = Console(file=io.StringIO(), width=80)
    conclude(report, console)
    text = console.file.getvalue()
    assert "row of 1" in text and "row of 2" not in text and "More tables in the report: table 2; table 3." in text


# --- in a browser


@pytest.fixture(scope="module")
def browser():
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install playwright")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
    with sync_api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield found
        found.close()


@pytest.fixture
def opened(browser, filled):
    complaints, asked = [], []
    path = write(filled[0].folder)

    def open_page(width=1280, scheme="light"):
        page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800}).new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(path.as_uri())
        return page

    yield open_page
    assert complaints == []
    assert all(url.startswith(("file:", "data:")) for url in asked)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_every_figure_is_visible_and_nothing_overflows(opened, width, scheme):
    page = opened(width, scheme)
    plots = page.locator("svg.plot")
    assert plots.count() == 9
    for i in range(plots.count()):
        box = plots.nth(i).bounding_box()
        assert plots.nth(i).is_visible() and box["width"] > 150 and box["height"] > 100
        assert box["x"] >= 0 and box["x"] + box["width"] <= width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    background, ink = page.evaluate("(s => [s.backgroundColor, s.color])(getComputedStyle(document.body))")
    shade = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (background, ink)]
    assert (shade[0] < shade[1]) == (scheme == "dark") and abs(shade[0] - shade[1]) > 400


def test_tables_sort(opened):
    page = opened()
    table = page.locator("section", has=page.locator("h2", has_text="Differences")).locator("table")
    place = 5  # the difference
    column = lambda: [
        float(v) for v in table.locator(f"tbody td:nth-child({place + 1})").evaluate_all("t => t.map(x => x.dataset.v)")
    ]
    head = table.locator("th").nth(place)
    before = column()
    head.locator("button").click()
    assert column() == sorted(before) != before and head.get_attribute("aria-sort") == "ascending"
    head.locator("button").press("Enter")
    assert column() == sorted(before, reverse=True) and head.get_attribute("aria-sort") == "descending"
    table.locator("th").nth(1).locator("button").click()
    names = table.locator("tbody td:nth-child(2)").all_inner_texts()
    assert names == sorted(names) and head.get_attribute("aria-sort") is None


def test_it_prints(opened, tmp_path):
    page = opened()
    page.pdf(path=str(tmp_path / "page.pdf"))
    assert (tmp_path / "page.pdf").stat().st_size > 10_000
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


RESULTS = sorted(path.parent for path in (Path(__file__).parents[1] / "results").glob("*/*/*.json"))

CROWDED = """() => [...document.querySelectorAll('svg.plot')].flatMap(plot => {
  const frame = plot.getBoundingClientRect();
  const named = [...plot.querySelectorAll('text')].filter(t => t.textContent);
  const texts = named.map(t => [t.textContent, t.getBoundingClientRect()]);
  const apart = (a, b) => a.left > b.right - 1 || b.left > a.right - 1 || a.top > b.bottom - 2 || b.top > a.bottom - 2;
  const inside = a => a.left >= frame.left - 1 && a.right <= frame.right + 1 && a.bottom <= frame.bottom + 1;
  return texts.flatMap(([name, a], i) => [
    ...(inside(a) ? [] : [name + ' leaves the plot']),
    ...texts.slice(0, i).filter(([, b]) => !apart(a, b)).map(([other]) => name + ' covers ' + other)]);
})"""


@pytest.mark.parametrize("folder", RESULTS, ids=lambda folder: folder.name)
def test_pages_of_the_studies_are_legible(browser, tmp_path, folder):
    shutil.copytree(folder, tmp_path / "results")
    path, complaints = write(tmp_path / "results"), []
    for width in (1280, 390):
        page = browser.new_context(viewport={"width": width, "height": 800}).new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path.as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert page.evaluate(CROWDED) == []
        page.context.close()
    assert complaints == []


def test_long_lists_are_folded_and_printed(browser, tmp_path):
    store = Store(tmp_path)
    for i in range(14):
        store.write("study", Result(Job(Cell(f"cell{i}", {"task": "t", "i": i, "replications": 3 + i % 2}), 0), {"x": 1.0}))
    page = browser.new_context().new_page()
    page.goto(write(tmp_path).as_uri())
    assert "3 to 4 in a job" in page.locator("dl").inner_text()
    jobs = page.locator("details table")
    assert not jobs.is_visible()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert jobs.is_visible() and jobs.locator("tbody tr").count() == 14


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


def test_sentences_may_break_and_numbers_may_not():
    numbers = Table("t", ["a"], [[Entry("0.0272 (0.0118) [-0.0098, +0.0093]")]])
    words = Table("t", ["a"], [[Entry("0.0272 (0.0118) against 0.0275 (0.0088), difference -0.0003")]])
    assert words.wordy and not numbers.wordy
