"""`squareloss attack`: a saved classifier against several attacks, as a table and a JSON file."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from squareloss import _checkpoint
from squareloss._checks import whole
from squareloss.attacks._save import fingerprint
from squareloss.attacks.evaluation import DEFAULT, AttackTable, evaluate, part_of
from squareloss.attacks.losses import CODED
from squareloss.classifier import Classifier
from squareloss.codings import Coding
from squareloss.lab.data import Dataset, load
from squareloss.lab.runs.execute import settled_device
from squareloss.lab.runs.store import explained, is_stream, write_atomically
from squareloss.lab.studies.compare.ingredients import build


def attack(
    directory: Path,
    source: str,
    eps: Sequence[float],
    *,
    attacks: Sequence[str] = DEFAULT,
    norm: str = "linf",
    model: str | None = None,
    size: int | None = None,
    points: int | None = None,
    device: str = "auto",
    seed: int = 0,
    split_seed: int = 0,
    every: bool = False,
    out: Path | None = None,
    root: Path | None = None,
    progress: bool = True,
) -> AttackTable:
    """Attack the classifier saved in `directory` on the test images of a data set; the table goes to `out` as JSON.

    Arguments:
        directory: where `Classifier.save` wrote it; its inputs are images in [0, 1].
        source, root, size: the data, as for `squareloss.lab.data.load`.
        eps: radii. norm: "linf" or "l2". attacks: names, as for `squareloss.attacks.evaluation.evaluate`.
        model: "package.module:function" for a network that is not built in, called as by `squareloss compare`.
        points: how many test images, from the first; all if None.
        seed: of the attacks. split_seed: draws the test images where the data do not bring them; the one that the training
            images were drawn with, else they are attacked too. every: all images of such data, none of which it was trained on.
        out: a file; beside it, in a folder of the same name, an interrupted evaluation is kept and gone on from. Of another
            classifier, other points or another seed there, each has a folder of its own; it goes when the file is written.
    """
    device = settled_device(device)
    _check_options(points, size, out)
    config = _checkpoint.read_config(directory)
    _check_model(model, _checkpoint.section(config, "network", (dict,), directory))
    parts = {"validation": 0.0, "test": 0.0} if every else {"seed": split_seed}
    data = _images(source, every, **parts, root=root, size=size, progress=progress and sys.stderr.isatty())
    # one output per class, or one less with reduced simplex coding
    outputs = len(config.get("classes") or data.classes) - bool((config.get("link") or {}).get("reduced"))
    network = None if model is None else build({"name": model}, data.shape, outputs, seed=0)
    classifier = Classifier.load(directory, network=network)
    x = data.test.x[:points].float() / 255
    y = _labels(classifier, data, _width(classifier, data))[:points]
    coding = classifier.link if isinstance(classifier.link, Coding) else None
    _check_eta(attacks, classifier)
    mark = fingerprint(classifier, x, y, f"{classifier.link} {norm} {seed} {device}")[:12]
    kept = None if out is None or is_stream(out) else out.with_suffix(".parts") / mark
    with nullcontext() if out is None else explained(f"write {out}"):  # parts first: at once, if they can't be
        table = evaluate(
            classifier.to(device), x.to(device), y.to(device), list(eps), attacks=attacks, norm=norm, seed=seed,
            coding=coding, progress=progress, save=kept,
        )  # fmt: skip
        if out is not None:
            facts = {"classifier": directory.resolve().name, "data": data.name, "points": len(y)}
            facts |= {"torch": torch.__version__, "seed": seed, "split_seed": None if every else split_seed}
            write_atomically(out, json.dumps({**facts, **table.to_dict()}, indent=1).encode() + b"\n")
    if kept is not None:
        _remove(kept, table)
    return table


def _check_options(points: int | None, size: int | None, out: Path | None) -> None:
    for option, value in {"points": points, "size": size}.items():
        if value is not None:
            whole(f"--{option}", value)
    if out is not None and out.is_dir():
        raise ValueError(f"expected --out to be a file, got the folder {out}; pass {out / 'attack.json'}")


def _images(source: str, every: bool, **options: Any) -> Dataset:
    """Data with the images to attack as their test set; raises if they are no images."""
    if Path(source).suffix.lower() in (".csv", ".parquet"):
        raise ValueError(f"expected images to attack, got the table {source}; attacks move pixels in [0, 1]")
    data = load(source, **options)
    if data.kind != "image":
        raise ValueError(
            f"expected images to attack, got {source} with a row of numbers per sample; attacks move pixels in [0, 1]"
        )
    return replace(data, test=data.train) if every and not data.test.n else data


def _remove(kept: Path, table: AttackTable) -> None:
    """Remove the files of an evaluation that is done; others, of other attacks and radii, stay."""
    for name, eps in table.results:
        part_of(kept, name, eps).unlink(missing_ok=True)
    for folder in (kept, kept.parent):
        with suppress(OSError):  # others are kept there
            folder.rmdir()


def _check_model(model: str | None, saved: dict[str, Any]) -> None:
    """Raise unless the network can be built: it is built in, or there is a function that makes it."""
    if model is None and saved.get("spec") is None:
        raise ValueError(
            f"expected --model package.module:function, since the saved network, {saved.get('class')}, is not built in; "
            "function(shape, outputs) returns one of the same architecture"
        )
    if model is not None and ":" not in model:
        raise ValueError(f"expected --model to be package.module:function, got {model!r}; built-in networks need none")


def _check_eta(attacks: Sequence[str], classifier: Classifier) -> None:
    """Raise if an attack needs eta, or the code of a class, of a classifier that has none."""
    coded = [f"pgd-{loss}" for loss in CODED]
    name = next((name for name in attacks if name.endswith("@eta") or name in coded), None)
    if name is not None and not isinstance(classifier.link, Coding):
        other = "pgd-ce, pgd-margin or pgd-angle" if name in coded else name.removesuffix("@eta")
        raise ValueError(
            f"expected {name} with a classifier trained by a square loss, which has codes and estimates eta, got one "
            f"whose link is {classifier.link}; pass --attacks with {other}"
        )


def _width(classifier: Classifier, data: Dataset) -> int:
    """How many scores the classifier gives to an image of the data; raises if it can't take one."""
    try:
        with torch.no_grad():
            return int(classifier(data.test.x[:1].float() / 255).shape[1])
    except (RuntimeError, ValueError) as error:
        shape = " x ".join(map(str, data.shape))
        raise ValueError(
            f"expected images that the network takes, got {data.name} with images of {shape}: {error}; "
            "pass --data (and --size) as it was trained"
        ) from error


def _labels(classifier: Classifier, data: Dataset, width: int) -> Tensor:
    """The test labels (N,) as the classifier numbers its classes: by name, or in order where the data have only numbers."""
    if classifier.classes is None:
        if width != data.num_classes:
            raise ValueError(
                f"expected data of {width} classes for a classifier that does not name its own, got {_listed(data.classes)}; "
                "save it with classes=..., and labels are matched by name"
            )
        return data.test.y
    names = [str(name) for name in classifier.classes]
    place = {name: i for i, name in enumerate(names)}
    twice = [name for name in data.classes if names.count(name) > 1]
    if twice:
        raise ValueError(f"expected one class of the classifier for each of the data, got several called {twice[0]!r}")
    if all(name in place for name in data.classes):
        return torch.tensor([place[name] for name in data.classes])[data.test.y]
    if list(data.classes) == [str(i) for i in range(len(names))] and not set(data.classes) & set(place):
        return data.test.y
    raise ValueError(
        f"expected data with classes of the classifier, {_listed(list(place))}, got {_listed(data.classes)}; "
        "labels are matched by name: give the classes of the data those names"
    )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")
