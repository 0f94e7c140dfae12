"""How a classifier lies on disk: classifier.json says what it is, weights.safetensors holds its tensors. Nothing is pickled."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

FORMAT = 1
CONFIG = "classifier.json"
WEIGHTS = "weights.safetensors"
_SHOWN = 5  # tensor names per line of an error


def write(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Write both files: they are made in a scratch folder beside their place and moved there at the end.

    Config gets the digest of the weights, so that files of two saves, should it end between the two moves, are not read as one.
    """
    unique, shared = _unshare(tensors)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".saving-", dir=directory) as scratch:
        weights, description = Path(scratch, WEIGHTS), Path(scratch, CONFIG)
        write_tensors(weights, unique)
        config = {"format": FORMAT, **config, "weights": {"sha256": _digest(weights), "shared": shared}}
        description.write_text(json.dumps(config, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        os.replace(weights, directory / WEIGHTS)
        os.replace(description, directory / CONFIG)


def write_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file that can be read by whom the umask lets; by itself `save_file` lets only the owner."""
    from safetensors import SafetensorError  # only who saves needs it
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:  # such as a full disk
        raise OSError(f"could not write {path}: {error}; what was there before is intact") from error
    path.chmod(mode)


def replace_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """Write a safetensors file in place of the one at `path`, if any: a reader sees the old one or the new one, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_tensors(temporary, {name: _copy(tensor) for name, tensor in tensors.items()}, metadata)
        with temporary.open("r+b") as file:
            os.fsync(file.fileno())  # or a loss of power could leave the name without the content
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def content(tensor: Tensor) -> bytes:
    """The values of a tensor, for a hash."""
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of the values of tensors, in the order of their names."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        found.update(content(tensors[name]))
    return found.hexdigest()


def read_config(directory: Path) -> dict[str, Any]:
    """The content of classifier.json, once it is known to be of a format this version reads."""
    missing = [name for name in (CONFIG, WEIGHTS) if not (directory / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"expected {CONFIG} and {WEIGHTS} in {directory}, found no {' and no '.join(missing)}; "
            "pass a folder written by Classifier.save"
        )
    path = directory / CONFIG
    try:
        config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON in {path}, got something else ({error}); save the classifier again") from error
    version = config.get("format") if isinstance(config, dict) else None
    if not isinstance(version, int):
        raise ValueError(f"expected an object with a format number in {path}, got format {version!r}; is it a classifier's?")
    if version > FORMAT:
        written = config.get("versions")
        raise ValueError(
            f"{path} has format {version} (written with {written}), this version of squareloss reads up to {FORMAT}; "
            "upgrade squareloss"
        )
    return config


def section(config: dict[str, Any], key: str, kinds: tuple[type, ...], directory: Path) -> Any:
    """One entry of the config, checked to be of one of `kinds`."""
    value = config.get(key)
    if not isinstance(value, kinds):
        names = " or ".join("null" if kind is type(None) else kind.__name__ for kind in kinds)
        raise ValueError(f"expected {key!r} to be {names} in {directory / CONFIG}, got {value!r}; save the classifier again")
    return value


def read_tensors(directory: Path, config: dict[str, Any]) -> dict[str, Tensor]:
    """All tensors by name, those that share memory under each of their names."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = directory / WEIGHTS
    weights = section(config, "weights", (dict,), directory)
    if _digest(path) != weights.get("sha256"):
        raise ValueError(
            f"{path} is not the file that {CONFIG} describes (its SHA-256 differs): it is damaged, or comes from another "
            "save; save the classifier again"
        )
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise ValueError(f"expected safetensors in {path}, got something else ({error}); save the classifier again") from error
    for name, source in section(weights, "shared", (dict,), directory).items():
        if not isinstance(source, str) or source not in tensors:
            raise ValueError(f"{CONFIG} says {name!r} shares its tensor with {source!r}, which is not in {path}")
        tensors[name] = tensors[source]
    return tensors


def restore(module: nn.Module, tensors: dict[str, Tensor], origin: str) -> None:
    """Put the tensors into the module, whose own take the dtypes of the file; on any mismatch raise and change nothing."""
    own = module.state_dict(keep_vars=True)
    lazy = [name for name, tensor in own.items() if is_lazy(tensor)]
    if lazy:
        raise ValueError(
            f"expected a network that knows its shapes, got {', '.join(lazy[:_SHOWN])}{_more(lazy)} uninitialised; "
            "run the network once, on inputs as when it was saved, before it is loaded"
        )
    compare(own, tensors, origin)
    for name, tensor in own.items():
        if tensor.dtype != tensors[name].dtype:
            tensor.data = tensor.data.to(tensors[name].dtype)
    module.load_state_dict(tensors)


def compare(own: dict[str, Tensor], saved: dict[str, Tensor], origin: str) -> None:
    """Raise unless a module's own tensors, which may have no values yet, are named and shaped as the saved ones."""
    common = [name for name in own if name in saved]
    differing = {
        "missing from the file": [name for name in own if name not in saved],
        "in the file only": [name for name in saved if name not in own],
        "of another shape or kind": [_difference(name, own, saved) for name in common if not _alike(own[name], saved[name])],
    }
    lines = [f"  {what}: {', '.join(names[:_SHOWN])}{_more(names)}" for what, names in differing.items() if names]
    if lines:
        raise ValueError(
            "\n".join([f"expected a network with the tensors saved in {origin}, got another one.", *lines])
            + "\nBuild the network and the preprocessing as they were when saved."
        )


def _alike(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and a.is_floating_point() == b.is_floating_point()


def _difference(name: str, own: dict[str, Tensor], saved: dict[str, Tensor]) -> str:
    file, module = saved[name], own[name]
    return f"{name} (file {tuple(file.shape)} {file.dtype}, network {tuple(module.shape)} {module.dtype})"


def _more(names: list[str]) -> str:
    return f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""


def _unshare(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Copies on the CPU, each tied tensor once, and the other names of tied ones."""
    unique: dict[str, Tensor] = {}
    shared: dict[str, str] = {}
    first: dict[Any, str] = {}
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"expected a network whose state is tensors, got {type(tensor).__name__} at {name!r}; store it as a buffer"
            )
        place = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if tensor.numel() and place in first:
            shared[name] = first[place]
        else:
            first[place] = name
            unique[name] = _copy(tensor)
    return unique, shared


def _copy(tensor: Tensor) -> Tensor:
    """On the CPU, with memory of its own: safetensors refuses what tied weights share."""
    return tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
