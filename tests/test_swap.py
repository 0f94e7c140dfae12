"""Square loss at the learning rate tuned for cross-entropy: the small tasks of benchmarks/swap.py, trained again."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parent.parent
ROWS = json.loads((ROOT / "results" / "benchmarks" / "swap.json").read_text())["rows"]


@pytest.fixture
def swap(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("swap")


@pytest.mark.parametrize("name", ["digits", *(pytest.param(name, marks=pytest.mark.slow) for name in ("10", "100"))])
def test_square_loss_keeps_up_at_cross_entropys_learning_rate(name: str, swap: Any) -> None:
    task = swap.TASKS[name]
    (rate,) = {row["rate"] for row in ROWS if row["data"] == name}
    data, accuracy = swap.load(task), {}
    for label in ("cross-entropy", "SquareLoss()"):
        loss = swap.LOSSES[label](task.classes)
        accuracy[label] = swap.accuracy(swap.train(data, loss, rate, task, 0), loss, data.test)
    assert accuracy["SquareLoss()"] > accuracy["cross-entropy"] - 1


def test_training_with_square_loss_is_plain_training(swap: Any) -> None:
    """The benchmark's network, data and schedule do depend on the seed and on nothing global."""
    task = swap.Task(classes=4, per_class=20, noise=1.0, epochs=1, seeds=1)
    weights = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        network = swap.train(swap.load(task), swap.LOSSES["SquareLoss()"](4), 0.1, task, 0)
        weights.append(network.layers[0].weight)
    assert torch.equal(*weights)
