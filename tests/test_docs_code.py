"""The Python of README.md and docs/ runs: each page with the names that its reader is said to have."""

import re
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import squareloss
from report_records import fill
from squareloss import ntk

ROOT = Path(__file__).resolve().parent.parent


def reader():
    """What a reader of every page has: a network on small images, labels, probabilities."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.rand(shape, generator=generator)
    labels = torch.arange(40) % 5
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(64, 5)).eval()
    p = torch.softmax(draw(40, 5), 1)
    held_out = {"scores_held_out": draw(40, 5), "labels_held_out": labels}
    return {
        "network": network, "model": network, "x": draw(40, 1, 8, 8), "y": labels, "labels": labels,
        "p": p, "p1": p, "p2": p, "scores": draw(40, 5), **held_out,
    }  # fmt: skip


def many_classes():
    """A layer with many classes, and what goes into it."""
    layer = nn.Linear(512, 50)
    return {
        "h": torch.rand(30, 512, requires_grad=True),
        "weight": layer.weight,
        "bias": layer.bias,
        "target": torch.arange(30) % 50,
    }


def embeddings():
    """Embeddings of four classes, some of them in chunks."""
    rng = np.random.default_rng(0)
    labels = np.array(["eft", "frog", "toad", "olm"] * 50)
    x = rng.normal(size=(200, 8)) + 3 * np.eye(8)[np.arange(200) % 4]
    parts = [(x[i : i + 50], labels[i : i + 50]) for i in range(0, 200, 50)]
    return {
        "embeddings": x, "labels": labels, "new": x[:3], "chunks": parts, "known_classes": ["eft", "frog", "olm", "toad"],
        "read_chunks": lambda: iter(parts),
    }  # fmt: skip


def table():
    """Features and labels as scikit-learn has them."""
    rng = np.random.default_rng(0)
    return {"X": rng.normal(size=(90, 4)), "y": np.arange(90) % 3, "new": rng.normal(size=(3, 4))}


def points():
    """Points in space, and signs to learn."""
    draw = torch.Generator().manual_seed(0)
    x, z, weights = (torch.randn(n, 3, generator=draw).double() for n in (90, 5, 64))
    signs = torch.where(x[:, 0] * x[:, 1] > 0, 1.0, -1.0).double()
    return {
        "torch": torch, "X": x, "x": x, "z": z, "y": signs, "v": signs, "new": z, "mus": [0.1, 1.0], "network": weights,
    }  # fmt: skip


def samples():
    """Eight samples on the sphere, their kernel matrices, and networks' outputs at the start."""
    draw = torch.Generator().manual_seed(0)
    x, test = (ntk.to_sphere(torch.randn(n, 2, generator=draw).double()) for n in (20, 5))
    y, f0, g0 = (torch.randn(8, n, generator=draw).double() for n in (20, 20, 5))
    H, cross = (torch.stack(8 * [ntk.NTK().matrix(*pair)]) for pair in ((x,), (test, x)))
    return {"x": x, "y": y, "H": H, "test": test, "f0": f0, "g0": g0, "cross": cross, "rate": 0.01}


SMALLER = {
    "rank=2000": "rank=20",
    "width=4096": "width=64",
    "SquareLinear(512, 50_000,": "SquareLinear(512, 50,",
    "Stack((2, 500, 500, 1)": "Stack((2, 9, 9, 1)",
}  # to be quick
PAGES = {
    "README.md": dict,
    "docs/losses.md": reader,
    "docs/calibration.md": reader,
    "docs/attacks.md": reader,
    "docs/classifier.md": dict,
    "docs/estimator.md": table,
    "docs/huge_k.md": many_classes,
    "docs/probe.md": embeddings,
    "docs/ntk.md": points,
    "docs/theory.md": samples,
    "docs/cluster.md": dict,
    "docs/training.md": dict,
    "docs/images.md": dict,
}


@pytest.mark.parametrize("page", PAGES)
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = PAGES[page]()
    text = (ROOT / page).read_text()
    for said, small in SMALLER.items():
        text = text.replace(said, small)
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    blocks = [block for block in blocks if 'load("cifar10"' not in block]  # which a reader has to fetch
    assert blocks
    with torch.random.fork_rng(), warnings.catch_warnings():
        torch.manual_seed(0)
        warnings.simplefilter("ignore", UserWarning)  # of scores that say nothing
        for block in blocks:
            exec(compile(block, page, "exec"), names)


def test_a_report_is_read_in_python(tmp_path, monkeypatch):
    fill(tmp_path / "runs" / "compare-digits")
    monkeypatch.chdir(tmp_path)
    for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs/compare.md").read_text(), re.DOTALL):
        exec(compile(block, "docs/compare.md", "exec"), {})
    assert (tmp_path / "runs/compare-digits/report.md").exists()


@pytest.mark.parametrize("module", [squareloss, ntk], ids=lambda module: module.__name__)
def test_code_at_the_head_of_a_package_runs(module):
    names = {name: getattr(module, name) for name in module.__all__}
    names |= {"squareloss": squareloss, **(points() if module is ntk else reader())}
    code = "".join(f"{line}\n" for line in module.__doc__.splitlines() if " = " in line)
    exec(compile(code.replace("width=4096", "width=64"), module.__name__, "exec"), names)
