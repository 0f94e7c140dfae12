"""The page of a report: its figures, a file that stands alone, and how it looks in a browser."""

import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from report_records import fill
from squareloss.lab.report import write
from squareloss.lab.report.figures import figures
from squareloss.lab.report.header import Header
from squareloss.lab.report.rows import rows_of
from squareloss.lab.report.svg import Plot, ticks
from squareloss.lab.runs import Cell, Job, Result, Store

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

KEPT = Path(__file__).parents[1] / "results"


@pytest.fixture
def filled(tmp_path):
    return fill(tmp_path / "out")


# --- figures


def test_ticks_are_round_and_inside():
    assert ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert ticks(0, 0.1) == [0, 0.02, 0.04, 0.06, 0.08, 0.1]
    assert ticks(3, 3) == [3]
    for low, high in ((0, 0.7843), (3, 97), (-0.3, 1), (0, 1e-4)):
        found = ticks(low, high)
        assert 2 <= len(found) <= 6 and low <= found[0] and found[-1] <= high * (1 + 1e-9)


def test_points_land_where_they_belong():
    plot = Plot("x", "y", (0, 2), (0, 1), width=200, height=100)
    left, bottom = plot.at(0, 0)
    right, top = plot.at(2, 1)
    assert plot.at(1, 0.5) == ((left + right) / 2, (top + bottom) / 2)
    assert plot.at(5, -3) == (right, bottom)  # beyond the axes: at their edge


def test_logarithmic_axes_take_and_tell_the_values_themselves():
    plot = Plot("n", "error", (10, 1000), (0.001, 0.1), log="xy", width=200, height=100)
    (left, bottom), (right, top) = plot.at(10, 0.001), plot.at(1000, 0.1)
    assert plot.at(100, 0.01) == ((left + right) / 2, (top + bottom) / 2)
    assert plot.at(100, -1)[1] == bottom, "what has no logarithm is at the edge"
    plot.line([(20, 0.05)], 0, "SL")
    assert all(place == pytest.approx(float(text)) for axis in "xy" for place, text in plot._marks(axis))
    wide = Plot("n", "error", (1e-6, 1e7), (0.2, 0.7), log="xy")
    assert [place for place, _ in wide._marks("x")] == pytest.approx([1e-6, 1e-3, 1, 1e3, 1e6])
    assert [text for _, text in wide._marks("y")] == ["0.2", "0.3", "0.4", "0.5", "0.6", "0.7"]
    texts = re.findall(">([^<]+)<", plot.svg())
    assert "SL: 0.05 at 20" in texts and {"10", "100", "1000", "0.001", "0.01", "0.1"} <= set(texts)


def test_marks_are_drawn_where_the_data_are():
    plot = Plot("x", "y", (0, 10), (0, 4), width=180, height=152)  # ten units to one of x, 25 to one of y
    (left, bottom), up, right = plot.at(0, 0), -25, 10
    plot.box(2, 5, 3, 1, "bar", "told")
    plot.bar(4, 1, 2, 0)
    plot.circle(5, 2, 3, "told")
    plot.image("data:,")
    plot.rule((0, 1), (10, 3))
    plot.trace([(0, 0), (10, 4)], "guide")
    plot.dots([(1, 1), (3, 2)], 0, 2)
    plot.band([(0, 1), (5, 1)], [(0, 2), (5, 3)], 0)
    own = [re.sub(r'(class|style|href)="[^"]*"|[xy][12]=', "", part) for part in plot.parts]  # the coordinates alone
    box, bar, circle, image, rule, trace, dots, band = ([float(v) for v in re.findall(r"-?[\d.]+", part)] for part in own)
    at = lambda x, y: [left + right * x, bottom + up * y]
    assert box == [*at(2, 3), 3 * right, -2 * up], "the larger value on top, whatever the order"
    assert bar == [*at(4, 1), at(4, 2)[1], at(4, 1)[0] - 4, at(4, 1)[1], 8, at(4, 2)[0] - 4, at(4, 2)[1], 8]
    assert circle == [*at(5, 2), 3 * right]
    assert image == [*at(0, 4), 10 * right, -4 * up], "it fills the axes"
    assert rule == [*at(0, 1), *at(10, 3)]
    assert trace == [*at(0, 0), *at(10, 4)]
    assert dots == [*at(1, 1), 0, *at(3, 2), 0]
    assert band == [*at(0, 1), *at(5, 1), *at(5, 3), *at(0, 2)], "around, so that it does not cross itself"


def test_figures_show_what_there_is(filled):
    store, header = filled
    found = {figure.heading: figure for figure in figures(rows_of(store.records(), header))}
    assert list(found) == ["Reliability", "Robustness", "Noise", "Training"]
    assert [panel.heading for panel in found["Reliability"].panels] == list(header.rows)
    assert [panel.heading for panel in found["Robustness"].panels] == [
        "worst case",
        "ce, by attack loss",
        "simplex, by attack loss",
    ]
    assert {name for _, name, _ in found["Robustness"].panels[1].legend} == {"ce", "margin", "worst case"}
    assert figures(rows_of([], header)) == []


def test_reliability_pools_the_seeds(tmp_path):
    store = Store(tmp_path)
    for seed, (count, accuracy) in enumerate([(10, 0.5), (30, 0.9)]):
        bins = {"count": [0, count], "confidence": [0.0, 0.8], "accuracy": [0.0, accuracy]}
        store.write("s", Result(Job(Cell("ce", {"task": "t"}), seed), {"reliability": bins}))
    header = Header("s", "s")
    (figure,) = figures(rows_of(store.records(), header))
    assert "accuracy 0.800, 40 predictions" in figure.panels[0].svg


def test_pictures_of_the_runs_are_embedded(tmp_path):
    store = Store(tmp_path)
    store.write(
        "s", Result(Job(Cell("ce", {"task": "t"}), 0), {"error": 0.1}, artefacts={"boundary.png": b"\x89PNG not really"})
    )
    page = write(tmp_path).read_text()
    assert 'src="data:image/png;base64,iVBORyBub3QgcmVhbGx5"' in page
    assert "1 result of s" in page
    next(tmp_path.rglob("*boundary.png")).unlink()
    assert "data:image/png" not in write(tmp_path).read_text(), "the numbers are there without it"


# --- one file


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
        "3 of 5 seeds",
        "simplex+temperature",
        "ce: cross-entropy; simplex: square loss",
        "squareloss compare digits --quick",
        "1.5 s",
    ):
        assert part in said
    assert len(text) < 300_000


def test_a_page_with_nothing_to_say_in_short_has_no_empty_box(tmp_path):
    """One cell of a study: no claims, one caution."""
    study = KEPT / "images" / "beyond_paper"
    (cell,), (header,) = study.glob("resnet18-cifar10-CE-beyond-*"), study.glob("header-*.json")
    shutil.copytree(cell, tmp_path / "beyond_paper" / cell.name)
    shutil.copy(header, tmp_path / "beyond_paper")
    page = write(tmp_path).read_text()
    assert "have no result yet" in page
    assert 'class="answer"' not in page


def test_names_can_not_inject(tmp_path):
    store, _ = fill(tmp_path, title="<script>alert(1)</script>")
    text = write(store.folder).read_text()
    assert "<script>alert" not in text and "&lt;script&gt;alert" in text


def test_two_reports_of_the_same_results_are_equal(filled):
    store, _ = filled
    assert write(store.folder).read_bytes() == write(store.folder, output=store.folder / "again.html").read_bytes()


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


def test_verdicts_are_in_sight_on_a_laptop(opened):
    region = opened(1100, "light").get_by_role("region", name="Differences")
    assert region.evaluate("e => e.scrollWidth <= e.clientWidth")


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


RESULTS = sorted({path.parents[2] for path in KEPT.rglob("seed*.json")})
SMALLER = {"theory", "sine-laptop", "sine-tf32", "spirals-laptop"}  # of studies whose larger results are there too
PAGES = [pytest.param(f, id=f.name, marks=[pytest.mark.slow] * bool(SMALLER & {f.name, f.parent.name})) for f in RESULTS]

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


@pytest.mark.parametrize("folder", PAGES)
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


def test_long_names_break_on_a_phone(browser, tmp_path):
    store, header = fill(tmp_path)
    name = "long_name_" * 20
    replace(header, title=name, facts=[("data", name)], cut=[name], notes=[name]).write(store)
    page = browser.new_context(viewport={"width": 390, "height": 800}).new_page()
    page.goto(write(store.folder).as_uri())
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


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
