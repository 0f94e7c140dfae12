"""`load`, the one entrance to data: by name, or by the path of a file or folder."""

from __future__ import annotations

import os
from pathlib import Path

from squareloss._checks import nearest
from squareloss.lab.data import arrays, cifar, images, tables
from squareloss.lab.data.dataset import Dataset, SplitPlan, assemble

NAMES = ("digits", "cifar10", "cifar100")


def default_root() -> Path:
    """Where named data sets lie: the folder in the environment variable SQUARELOSS_DATA, else ~/.cache/squareloss."""
    return Path(os.environ.get("SQUARELOSS_DATA") or Path.home() / ".cache" / "squareloss")


def load(
    source: str | Path,
    target: str | None = None,
    *,
    seed: int = 0,
    validation: float | None = None,
    test: float = 0.2,
    root: str | Path | None = None,
    size: int | None = None,
    progress: bool = False,
) -> Dataset:
    """Read a data set and split it, stratified by class.

    Arguments:
        source: "digits", "cifar10", "cifar100", or a path: a .npz, .csv or .parquet file, or a folder of images by class
            (or one in an official CIFAR layout).
        target: the column to predict, for .csv and .parquet.
        seed: draws the splits.
        validation: share of the samples for validation; None is 0.1, or 0 where the data have a test set of their own.
        test: share of the samples for testing; not used where the data have a test set of their own.
        root: the folder where named data sets lie; `default_root()` if None.
        size: bring the images of a folder to size x size; without it they must have one size already.
        progress: show progress while a folder of images is read.
    """
    plan = SplitPlan(validation, test, seed)
    path = Path(source)
    is_table = path.suffix.lower() in (".csv", ".parquet")
    if target is not None and not is_table:
        raise ValueError(
            f"expected a .csv or .parquet file with target={target!r}, got {source}; write it as one of these, or leave the "
            "target out if classes are told otherwise"
        )
    if size is not None and not path.is_dir():
        raise ValueError(f"expected size only for a folder of images, got size={size} for {source}")
    official = {layout.folder: name for name, layouts in cifar.LAYOUTS.items() for layout in layouts}
    if str(source) == "digits":
        return arrays.read_digits(plan)
    if str(source) in cifar.LAYOUTS:
        return _cifar(str(source), plan, Path(root) if root is not None else default_root())
    if path.is_dir() and path.name in official:
        return _cifar(official[path.name], plan, path)
    if path.is_dir():
        return images.read_folder(path, plan, size=size, progress=progress)
    if not path.is_file():
        raise FileNotFoundError(f"Unknown data {str(source)!r}: no such file or folder. {_available()}{_near(path)}")
    if is_table:
        return tables.read_table(path, target, plan)
    if path.suffix.lower() == ".npz":
        return arrays.read_npz(path, plan)
    raise ValueError(f"Unknown kind of data file {str(source)!r}. {_available()}")


def places(root: str | Path | None = None) -> dict[str, str]:
    """For each named data set, where it lies, or how to get it."""
    folder = Path(root) if root is not None else default_root()
    found = {name: cifar.find(name, folder) for name in cifar.LAYOUTS}
    here = {name: str(pair[1]) if pair else f"not in {folder}; squareloss data get {name}" for name, pair in found.items()}
    return {"digits": "with scikit-learn", **here}


def _available() -> str:
    return f"Available: {', '.join(NAMES)}, or a path to .npz, .csv, .parquet, or a folder of images by class"


def _near(path: Path) -> str:
    """The nearest name of what is there: data sets known by name, and what lies beside the path."""
    beside = [str(path.with_name(found.name)) for found in path.parent.iterdir()] if path.parent.is_dir() else []
    return nearest(str(path), [*NAMES, *sorted(beside)])


def _cifar(name: str, plan: SplitPlan, root: Path) -> Dataset:
    found = cifar.find(name, root)
    if found is None:
        folders = " or ".join(layout.folder for layout in cifar.LAYOUTS[name])
        raise FileNotFoundError(
            f"{name}: expected the folder {folders} in {root}, got neither; "
            f"run `squareloss data get {name}`, or set SQUARELOSS_DATA (in Python, root=) to the folder that holds it"
        )
    train, test = cifar.read(*found)
    return assemble(name, "image", cifar.CLASSES[name], plan, train, test=test)
