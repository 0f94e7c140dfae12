"""`squareloss attack`: a saved classifier against several attacks, as a table and a JSON file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch

from squareloss.attacks._save import fingerprint
from squareloss.attacks.evaluation import DEFAULT, AttackTable, evaluate
from squareloss.classifier import Classifier
from squareloss.codings import Coding
from squareloss.lab.data import load
from squareloss.lab.runs.execute import check_device
from squareloss.lab.runs.store import write_atomically


def attack(
    directory: Path,
    source: str,
    eps: Sequence[float],
    *,
    attacks: Sequence[str] = DEFAULT,
    norm: str = "linf",
    points: int | None = None,
    device: str = "auto",
    seed: int = 0,
    out: Path | None = None,
    root: Path | None = None,
    progress: bool = True,
) -> AttackTable:
    """Attack the classifier saved in `directory` on the test images of a data set; the table goes to `out` as JSON.

    Arguments:
        directory: where `Classifier.save` wrote it; its inputs are images in [0, 1].
        source, root: the data, as for `squareloss.lab.data.load`.
        eps: radii. norm: "linf" or "l2". attacks: names, as for `squareloss.attacks.evaluation.evaluate`.
        points: how many test images, from the first; all if None.
        out: a file; beside it, in a folder of the same name, an interrupted evaluation is kept and gone on from. Of another
            classifier, other points or another seed there, each has a folder of its own; it goes when the file is written.
    """
    check_device(device)
    if points is not None and points < 1:
        raise ValueError(f"expected --points to be 1 or more, got {points}")
    if Path(source).suffix.lower() in (".csv", ".parquet"):
        raise ValueError(f"expected images to attack, got the table {source}; attacks move pixels in [0, 1]")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    classifier = Classifier.load(directory).to(device).eval()
    data = load(source, seed=seed, root=root)
    if data.kind != "image":
        raise ValueError(
            f"expected images to attack, got {source} with a row of numbers per sample; attacks move pixels in [0, 1]"
        )
    x, y = data.test.x[:points].float() / 255, data.test.y[:points]
    coding = classifier.link if isinstance(classifier.link, Coding) else None
    mark = fingerprint(classifier, x, y, f"{classifier.link} {norm} {seed} {device}")[:12]
    kept = None if out is None else out.with_suffix(".parts") / mark
    table = evaluate(
        classifier, x.to(device), y.to(device), list(eps), attacks=attacks, norm=norm, seed=seed, coding=coding,
        progress=progress, save=kept,
    )  # fmt: skip
    if out is not None and kept is not None:
        facts = {"classifier": directory.name, "data": data.name, "points": len(y), "torch": torch.__version__}
        write_atomically(out, json.dumps({**facts, **table.to_dict()}, indent=1).encode() + b"\n")
        shutil.rmtree(kept)
        with suppress(OSError):  # others are kept there
            kept.parent.rmdir()
    return table
