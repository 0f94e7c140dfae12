"""The README's figure: reliability of the same network on digits under both losses, with and without temperature.

    python docs/figures/digits.py       # about two minutes; writes digits.svg and results/digits.json

MLP 64-128-10, SGD with momentum .9, batch 64, 30 epochs, standardised inputs; ten seeds, each with its own split: a tenth held
out for the temperature and the learning rate (for each loss that of the best Brier score after the temperature; the largest
is .3, since at 1 neither loss learns), a fifth for testing. The figure pools the test points of all seeds. The values of each
seed are kept as well: paired, they say which differences can be told.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from squareloss import CrossEntropy, SquareLoss, Standardize, metrics
from squareloss.calibrators import Temperature
from squareloss.lab.data import Dataset, load
from squareloss.lab.training.loop import Run, outputs_of, train
from squareloss.lab.training.recipes import Recipe
from squareloss.losses import Loss
from squareloss.metrics import plots
from squareloss.models import MLP

HERE, SEEDS, RATES = Path(__file__).resolve().parent, 10, (0.01, 0.03, 0.1, 0.3)
SETTINGS = {
    "epochs": 30,
    "batch_size": 64,
    "schedule": "constant",
    "weight_decay": 0.0,
    "augment": False,
    "precision": "float32",
}


def candidate(data: Dataset, loss: Loss, lr: float, seed: int) -> tuple[float, dict[str, torch.Tensor]]:
    """Of a network trained at a learning rate: the Brier score held out, and probabilities of the test points by their kind."""
    preprocess = Standardize(data.mean, data.std)
    network = MLP(64, (128,), 10, generator=torch.Generator().manual_seed(seed))
    train(Run(network, loss, Recipe(lr=lr, **SETTINGS), seed, data.train.x, data.train.y, preprocess))
    held_out, outputs = (outputs_of(network, s.x, preprocess=preprocess) for s in (data.validation, data.test))
    scores = loss.link.scores(held_out)
    temperature = Temperature().fit(scores, data.validation.y)
    brier = metrics.brier(temperature.transform(scores), data.validation.y)
    return float(brier), {
        "": loss.link.probabilities(outputs),
        " + temperature": temperature.transform(loss.link.scores(outputs)),
    }


def main() -> None:
    """Train eighty networks, print the table, write the figure."""
    torch.set_num_threads(1)  # so that every machine adds in the same order
    pooled: dict[str, list[torch.Tensor]] = {}
    table: dict[str, list[dict[str, float]]] = {}
    chosen: dict[str, list[float]] = {}
    labels = []
    for seed in range(SEEDS):
        data = load("digits", seed=seed, validation=0.1, test=0.2)
        labels.append(data.test.y)
        for name, loss in (("cross-entropy", CrossEntropy()), ("square loss", SquareLoss())):
            tried = {lr: candidate(data, loss, lr, seed) for lr in RATES}
            lr = min(RATES, key=lambda lr: tried[lr][0])
            chosen.setdefault(name, []).append(lr)
            for kind, p in tried[lr][1].items():
                pooled.setdefault(name + kind, []).append(p)
                row = {"accuracy": metrics.accuracy(p, data.test.y), "ece": metrics.ece(p, data.test.y)}
                row["brier"] = metrics.brier(p, data.test.y)
                table.setdefault(name + kind, []).append({key: float(value) for key, value in row.items()})
    summary = {}
    for kind, rows in table.items():
        values = {key: torch.tensor([row[key] for row in rows]) for key in rows[0]}
        summary[kind] = {key: {"mean": v.mean().item(), "std": v.std().item()} for key, v in values.items()}
        print(f"{kind:28s}" + "  ".join(f"{k} {v['mean']:.4f} ({v['std']:.4f})" for k, v in summary[kind].items()))
    facts = {
        "command": "python docs/figures/digits.py",
        "torch": torch.__version__,
        "seeds": SEEDS,
        "recipe": SETTINGS,
        "rates": RATES,
    }
    found = {**facts, "rows": summary, "by_seed": table, "lr_by_seed": chosen}
    (HERE.parents[1] / "results" / "digits.json").write_text(json.dumps(found, indent=1) + "\n")
    figure = plots.reliability_diagram({kind: torch.cat(p) for kind, p in pooled.items()}, torch.cat(labels))
    plots.save(figure, HERE / "digits.svg")


if __name__ == "__main__":
    main()
