"""Checkpoints of a run in progress: one safetensors file, replaced atomically, with all that is needed to go on exactly."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from squareloss._checkpoint import content, replace_tensors

FORMAT = 2


def fingerprint(facts: list[Any], tensors: Iterable[Tensor]) -> str:
    """A hash of what must be the same for a run to go on from a checkpoint: facts for JSON, and values."""
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    for tensor in tensors:
        digest.update(str((tensor.dtype, tuple(tensor.shape))).encode())
        digest.update(content(tensor))
    return digest.hexdigest()[:16]


def save(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write a checkpoint: tensors, and facts as JSON in the header. A reader sees the old file or the new one, never half."""
    replace_tensors(path, tensors, {"facts": json.dumps({"format": FORMAT, **facts})})


def load(path: Path, expected: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint back; an error if it is damaged or belongs to another run."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads(file.metadata()["facts"])
            version, found = facts["format"], facts.get("fingerprint")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118, not a dict
    except (SafetensorError, KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"expected a checkpoint in {path}, got a damaged file ({error}); delete it to start anew") from error
    if version != FORMAT:
        raise ValueError(
            f"expected a checkpoint of format {FORMAT} in {path}, got {version}, of another version of squareloss; "
            "use that version, or delete the file to start anew"
        )
    if found != expected:
        raise ValueError(
            f"expected a checkpoint of this run in {path}, got one of {facts.get('run')}; "
            "the network, loss, recipe, seed or data differ: use another folder, or delete the file to start anew"
        )
    return tensors, facts


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state, flat: "optimiser.<parameter>.<name>"."""
    state = optimiser.state_dict()["state"]
    return {f"optimiser.{i}.{name}": value for i, slots in state.items() for name, value in slots.items() if value is not None}


def restore_optimiser(optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Put the state back that `optimiser_tensors` gave."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        if name.startswith("optimiser."):
            _, i, slot = name.split(".", 2)
            state.setdefault(int(i), {})[slot] = value
    optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
