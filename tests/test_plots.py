"""Reliability diagrams: they show the numbers of `reliability`, and their files are vectors, transparent and reproducible."""

from __future__ import annotations

import subprocess
import sys
from xml.etree import ElementTree

import pytest
import torch
from PIL import Image

from squareloss import metrics
from squareloss.metrics import plots


@pytest.fixture(scope="module")
def predictions():
    g = torch.Generator().manual_seed(0)
    z = torch.randn(800, 4, generator=g, dtype=torch.float64) * 2
    labels = torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1)
    return {"sharp": (2 * z).softmax(1), "flat": (0.5 * z).softmax(1), "raw": 1.2 * z.softmax(1) - 0.05}, labels


def test_bars_and_gaps_are_the_table(predictions):
    named, labels = predictions
    figure = plots.reliability_diagram(named, labels, bins=10)
    upper, lower = figure.axes[:3], figure.axes[3:]
    for axes, below, (name, p) in zip(upper, lower, named.items(), strict=True):
        table = metrics.reliability(p, labels, bins=10)
        filled = table.count > 0
        accuracy, too_confident, too_shy = axes.containers
        assert [bar.get_height() for bar in accuracy] == pytest.approx(table.accuracy[filled].tolist())
        gap = table.confidence - table.accuracy
        assert [bar.get_height() for bar in too_confident] == pytest.approx(gap[filled & (gap > 0)].tolist())
        assert [bar.get_height() for bar in too_shy] == pytest.approx(gap[filled & (gap <= 0)].tolist())
        assert [bar.get_height() for bar in below.containers[0]] == pytest.approx((table.count / 800).tolist())
        title = axes.get_title()
        assert title.startswith(f"{name}\nECE {metrics.ece(p, labels, bins=10):.4f}, accuracy")
        assert ("outside [0, 1]" in title) == (name == "raw")
    assert len(too_shy) + len(too_confident) == int(filled.sum())


def test_no_share_is_cut_off(predictions):
    named, labels = predictions
    for order in (("sharp", "flat"), ("flat", "sharp")):
        figure = plots.reliability_diagram({name: named[name] for name in order}, labels)
        for axes in figure.axes[2:]:
            bottom, top = axes.get_ylim()
            assert bottom == 0
            assert top > max(bar.get_height() for bar in axes.containers[0])


def test_overall_lines(predictions):
    named, labels = predictions
    figure = plots.reliability_diagram(named["sharp"], labels)
    lines = [line.get_xdata()[0] for line in figure.axes[1].lines]
    expected = [float(metrics.accuracy(named["sharp"], labels)), float(named["sharp"].amax(1).mean())]
    assert lines == pytest.approx(expected)


def test_files_are_vectors_transparent_and_the_same_twice(predictions, tmp_path):
    named, labels = predictions
    for suffix in (".svg", ".pdf", ".png"):
        for name in ("a", "b"):
            plots.save(plots.reliability_diagram(named, labels), tmp_path / f"{name}{suffix}")
        assert (tmp_path / f"a{suffix}").read_bytes() == (tmp_path / f"b{suffix}").read_bytes()
    root = ElementTree.parse(tmp_path / "a.svg").getroot()
    assert root.tag.endswith("svg")
    assert not [node for node in root.iter() if node.tag.endswith("}image")]  # nothing was turned into pixels
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")
    with Image.open(tmp_path / "a.png") as image:
        assert image.getpixel((0, 0))[3] == 0


def contrast(colour, background):
    def luminance(rgb):
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    bright, dark = sorted((luminance(colour), luminance(background)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize(("colour", "least"), [(plots.GREY, 4.5), (plots.BLUE, 3.0), (plots.VERMILION, 3.0)])
def test_colours_read_on_white_and_on_black(colour, least):
    # the contrasts WCAG 2 asks for: 4.5 of text, 3 of graphics
    rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    assert contrast(rgb, (1, 1, 1)) >= least
    assert contrast(rgb, (0, 0, 0)) >= least


def test_matplotlib_is_loaded_when_it_draws_and_pyplot_never():
    code = (
        "import sys, torch; from squareloss.metrics import plots; assert 'matplotlib' not in sys.modules;"
        "plots.reliability_diagram(torch.eye(2), torch.arange(2)); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_bad_input(predictions):
    _, labels = predictions
    with pytest.raises(ValueError, match="got none"):
        plots.reliability_diagram({}, labels)
    with pytest.raises(ValueError, match="labels of shape"):
        plots.reliability_diagram(torch.eye(3), labels)
