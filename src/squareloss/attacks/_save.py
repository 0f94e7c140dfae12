"""An evaluation on disk: one safetensors file, replaced as a whole, that knows which evaluation it belongs to."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from squareloss._checkpoint import content, digest_of, replace_tensors


def fingerprint(model: nn.Module, x: Tensor, y: Tensor, settings: str, targets: Iterable[Tensor] = ()) -> str:
    """A hash of the model as it prints, its weights, points, labels, settings and the classes aimed at, if they are given.

    Weights alone would not do: two models may read the same outputs as other scores.
    """
    digest = hashlib.sha256(re.sub("0x[0-9a-fA-F]+", "", f"{model} {settings}").encode())  # no addresses
    for tensor in [x, y, *targets, *model.state_dict().values()]:
        digest.update(content(tensor))
    return digest.hexdigest()


def write(path: Path, tensors: dict[str, Tensor], header: dict[str, Any]) -> None:
    """Replace the file at `path`; if interrupted, the old one stays."""
    tensors = {key: tensor.cpu() for key, tensor in tensors.items()}
    replace_tensors(path, tensors, {"header": json.dumps({**header, "sha256": digest_of(tensors)})})


def read(path: Path, mark: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Tensors and header of the file at `path`; None if there is none. Raises if it belongs to another evaluation."""
    if not path.exists():
        return None
    if path.is_dir():
        raise ValueError(f"expected a file to save the evaluation in, got the folder {path}; pass {path / 'run.safetensors'}")
    from safetensors import safe_open

    try:
        with safe_open(path, "pt") as file:
            header = json.loads((file.metadata() or {})["header"])
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        theirs = header["fingerprint"]
        sound = header.get("sha256") in (None, digest_of(tensors))  # a file of an earlier version has none
    except Exception as error:
        raise ValueError(f"expected a saved evaluation at {path}, but it can't be read ({error!r}); delete it") from error
    if not sound:
        raise ValueError(f"expected {path} as it was saved, but its tensors are others (SHA-256): it is damaged; delete it")
    if theirs != mark:
        raise ValueError(
            f"expected {path} to hold this evaluation, but it was saved with another model, other points or other settings; "
            "delete it or save elsewhere"
        )
    return tensors, header
