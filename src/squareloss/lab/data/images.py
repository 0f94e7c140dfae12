"""A folder of images by class: folder/class/image.png, or folder/{train,validation,test}/class/image.png."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageOps

from squareloss.lab.data.dataset import Dataset, Split, SplitPlan, assemble

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
_PARTS = {"train": "train", "validation": "validation", "valid": "validation", "val": "validation", "test": "test"}


def read_folder(folder: Path, plan: SplitPlan, *, size: int | None = None, progress: bool = False) -> Dataset:
    """The images of a folder as RGB bytes, turned as their EXIF says, classes named by their subfolders.

    Without `size`, all must have the same size; with it, each is scaled so that its shorter side is `size`, and cropped
    at the centre. If there is a subfolder `train`, it and its siblings `validation` (or `val`) and `test` are the splits.
    """
    files = _parts(folder)
    classes = sorted({path.parent.name for path in files["train"]})
    if len(classes) < 2:
        raise ValueError(f"{folder}: expected two classes (subfolders) or more, got only {classes[0]!r}; nothing to classify")
    every = [path for part in files.values() for path in part]
    strangers = [path for path in every if path.parent.name not in classes]
    if strangers:
        raise ValueError(f"{strangers[0].parent}: expected the classes of train ({', '.join(classes)}), got a class not there")
    x = torch.from_numpy(_decode_all(every, size, progress)).permute(0, 3, 1, 2).contiguous()
    y = torch.tensor([classes.index(path.parent.name) for path in every])
    sizes = [len(part) for part in files.values()]
    parts = zip(files, torch.split(x, sizes), torch.split(y, sizes), strict=True)
    splits = {part: Split(*pair) for part, *pair in parts}
    return assemble(
        folder.name, "image", classes, plan, splits["train"], validation=splits.get("validation"), test=splits.get("test")
    )


def _parts(folder: Path) -> dict[str, list[Path]]:
    """The image files of each split; all under "train" if the folder itself holds the classes."""
    subfolders = _subfolders(folder)
    if "train" not in [sub.name for sub in subfolders]:
        return {"train": _files(folder)}
    unknown = [sub.name for sub in subfolders if sub.name not in _PARTS]
    if unknown:
        raise ValueError(f"{folder}: expected only train, validation and test beside each other, got {unknown[0]!r}")
    parts = [_PARTS[sub.name] for sub in subfolders]
    if len(set(parts)) < len(parts):
        raise ValueError(f"{folder}: expected one folder of validation images, got {', '.join(s.name for s in subfolders)}")
    return {part: _files(sub) for part, sub in zip(parts, subfolders, strict=True)}


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for sub in _subfolders(folder):
        images = sorted(p for p in sub.iterdir() if p.suffix.lower() in SUFFIXES and not p.name.startswith("."))
        if not images:
            raise ValueError(f"{sub}: expected images ({', '.join(sorted(SUFFIXES))}), got none; remove the folder or fill it")
        found += images
    if not found:
        raise ValueError(f"{folder}: expected one subfolder of images per class, got none; a folder is read as class/image.png")
    return found


def _subfolders(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.name.startswith("."))


def _decode_all(files: Sequence[Path], size: int | None, progress: bool) -> npt.NDArray[np.uint8]:
    first = _decode(files[0], size)
    out = np.empty((len(files), *first.shape), np.uint8)

    def place(row: int) -> None:
        image = _decode(files[row], size)
        if image.shape != first.shape:
            height, width = first.shape[:2]
            raise ValueError(
                f"{files[row]}: expected {width} x {height} pixels as {files[0].name} has, got {image.shape[1]} x "
                f"{image.shape[0]}; pass size= (on the command line --size) to bring all to one size"
            )
        out[row] = image

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoding leaves the interpreter
        try:
            for _ in _track(pool.map(place, range(len(files))), len(files), progress):
                pass
        except BaseException:
            pool.shutdown(cancel_futures=True)  # one bad file must not wait for the rest
            raise
    return out


def _track(steps: Iterable[None], total: int, progress: bool) -> Iterable[None]:
    from rich.progress import track

    return track(steps, "reading images", total=total) if progress else steps


def _decode(path: Path, size: int | None) -> npt.NDArray[np.uint8]:
    if path.exists() and not path.is_file():  # a pipe would be waited for, and Ctrl-C with it
        raise ValueError(f"{path}: expected an image, got something that is no file; remove it")
    try:
        with Image.open(path) as image:
            rgb = _rgb(image)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path}: could not decode this image: {error}; repair or remove it") from error
    if size is not None:
        rgb = ImageOps.fit(rgb, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(rgb)


def _rgb(image: Image.Image) -> Image.Image:
    """Upright and in bytes; 16 bits are scaled, where Pillow would clip them at 255."""
    try:
        upright = ImageOps.exif_transpose(image)
    except Exception:  # no EXIF that Pillow can read, whatever it raises; the pixels may well be
        upright = image
    if image.mode.startswith("I;16") or (image.mode == "I" and image.format in ("PNG", "PPM")):  # which never hold more
        levels = np.round(np.asarray(upright, np.float32) / 257).astype(np.uint8)
        return Image.fromarray(levels).convert("RGB")
    if image.mode in ("I", "F"):
        raise ValueError(f"expected 8 or 16 bits, got 32 (mode {image.mode}), of which the range is not known")
    return upright.convert("RGB")
