"""From the lines of the paper's image tables to cells: which network, on what, by which loss, trained how, measured how."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from squareloss._checks import choose
from squareloss.codings import OneHot, Simplex
from squareloss.lab.report.views.paper_images import LEVELS, STDS
from squareloss.lab.runs import Cell
from squareloss.lab.studies.images.costs import measuring, training
from squareloss.lab.training.recipes import FAST, MODES, PAPER, PAPER_128, Adversary, Recipe
from squareloss.losses import CrossEntropy, Loss, SquareLoss, Squentropy

Spec = dict[str, Any]

# from cheap to dear: the order in which a network is measured
KINDS = ("clean", "readings", "beyond", "transfer", "worst", "pgd", "autoattack")
TABLE = ("clean", "worst", "pgd", "autoattack")  # what Table 1 needs
CLASSES = {"cifar10": 10, "cifar100": 100}

# the losses of the tables, from the number of classes; plain values, so that they can stand in a spec
LOSSES: dict[str, Callable[[int], Spec]] = {
    "CE": lambda classes: {"name": "ce"},
    "SL": lambda classes: {"name": "simplex", "radius": classes},
    "SLr1": lambda classes: {"name": "simplex", "radius": 1},
    "OH1": lambda classes: {"name": "one_hot", "k": 1, "M": 1},
    "OH5": lambda classes: {"name": "one_hot", "k": 5, "M": 15},
    "OHK": lambda classes: {"name": "one_hot", "k": classes / 5, "M": 5, "scale": 0.5},  # ours: `scaled_one_hot`
    "CEsmooth": lambda classes: {"name": "ce", "smoothing": 0.1},
    "squentropy": lambda classes: {"name": "squentropy"},
}


def make_loss(spec: Mapping[str, Any]) -> Loss:
    """The loss of a spec. Square losses are plain means over samples and outputs, as the paper's are read, or have a scale."""
    if spec["name"] == "ce":
        return CrossEntropy(label_smoothing=spec.get("smoothing", 0.0))
    if spec["name"] == "squentropy":
        return Squentropy()
    if spec["name"] == "simplex":
        return SquareLoss(Simplex(radius=float(spec["radius"])), scale=1.0)
    return SquareLoss(OneHot(k=float(spec["k"]), M=float(spec["M"])), scale=spec.get("scale", 1.0))


# the paper's schedule, four times shorter: for networks that take long to train
SHORT, SHORT_128 = (replace(recipe, epochs=48, step_size=12) for recipe in (PAPER, PAPER_128))
RECIPES: dict[str, dict[int, Recipe]] = {
    "paper": {32: PAPER, 128: PAPER_128},
    "short": {32: SHORT, 128: SHORT_128},
    "fast": {32: FAST, 128: FAST},
}
ADVERSARIES = {3: Adversary(3, step_size=4 / 255), 7: Adversary(7, step_size=2 / 255)}


@dataclass(frozen=True)
class Line:
    """A network of a table, and what is measured of it.

    Arguments:
        network: "resnet18", "resnet50" or "wrn16_10".
        data: "cifar10" or "cifar100".
        loss: a name in `LOSSES`.
        batch: 32 for the paper's (lr .01, batch 32), 128 for its (.1, 128).
        adversary: steps of PGD in adversarial training, 3 or 7; 0 is none.
        kinds: which of `KINDS`.
        levels: radii of attacks in 255ths.
        sources: losses of the networks whose adversarial examples are tried on this one, for "transfer".
    """

    network: str
    data: str
    loss: str
    batch: int = 32
    adversary: int = 0
    kinds: tuple[str, ...] = TABLE
    levels: tuple[int, ...] = LEVELS
    sources: tuple[str, ...] = ()

    def name(self, recipe: str = "paper") -> str:
        """Such as "resnet18-cifar10-SL", "-b128" if trained at batch 128, "-adv7" if adversarially."""
        batch = f"-b{self.batch}" if self.batch != 32 and recipe != "fast" else ""
        return f"{self.network}-{self.data}-{self.loss}{batch}" + (f"-adv{self.adversary}" if self.adversary else "")


@dataclass(frozen=True)
class Scale:
    """How large everything is at a scale.

    Arguments:
        networks: of which lines only these are run; all if empty.
        width: of the small ResNet that stands in for them; 0 for the networks themselves.
        data: spec of each data set.
        shrink: by which epochs are divided; 1 leaves the recipe as it is.
        points: test images that are attacked. steps: of PGD. autoattack: which parts of it.
        largest: attack at the largest radius of a line alone.
    """

    networks: tuple[str, ...] = ()
    width: int = 0
    data: Mapping[str, Spec] = field(default_factory=lambda: {name: {"name": name} for name in CLASSES})
    shrink: int = 1
    points: int = 10_000
    steps: int = 100
    autoattack: tuple[str, ...] = ("apgd-ce", "apgd-t", "fab-t", "square")
    largest: bool = False


def _part(name: str) -> Spec:
    return {"name": name, "train": 2000, "test": 1000}


def _stand_in(classes: int, seed: int) -> Spec:
    return {"name": "stand-in", "classes": classes, "train": 160, "test": 100, "seed": seed}


SCALES = {
    "smoke": Scale(
        networks=("resnet18",), width=8, data={"cifar10": _stand_in(10, 0), "cifar100": _stand_in(20, 1)}, shrink=50,
        points=8, steps=3, autoattack=("apgd-ce",), largest=True,
    ),
    "laptop": Scale(
        networks=("resnet18",), width=16, data={"cifar10": _part("cifar10"), "cifar100": _part("cifar100")}, shrink=10,
        points=100, steps=10, autoattack=("apgd-ce", "apgd-t"), largest=True,
    ),
    "paper": Scale(),
}  # fmt: skip


def cells_of(line: Line, scale: str, recipe: str, attack: str) -> list[Cell]:
    """The cells of a line: one per kind of measurement, and per source of transferred examples."""
    size, network = SCALES[scale], network_spec(line, scale, recipe, attack)
    paper = scale == "paper"
    steps = f"-adv{line.adversary}" if line.adversary else ""
    alike = f"{line.network}-{line.data}-{network['recipe']['epochs']}{steps}"  # what may train side by side
    group = alike if paper else line.name(recipe)
    found = []
    for kind in (kind for kind in KINDS if kind in line.kinds):
        for suffix, measure in _measures(line, kind, size).items():
            name, spec = f"{line.name(recipe)}-{suffix}", {**network, "measure": measure}
            seconds = measuring(spec) + (training(spec) if kind == "clean" else 0.0)
            found.append(Cell(name, spec, group, gpus=1 if paper else 0, weight=seconds))
    return found


def network_spec(line: Line, scale: str, recipe: str, attack: str) -> Spec:
    """Everything that determines a trained network but its seed; `attack` is the mode of its adversary, if it has one."""
    size = SCALES[scale]
    data = size.data[line.data]
    classes = data.get("classes", CLASSES[line.data])
    chosen = RECIPES[choose("recipe", recipe, RECIPES)][line.batch]
    if size.shrink > 1:
        chosen = _shrunk(chosen, size.shrink)
    if line.adversary:
        chosen = replace(chosen, adversary=replace(ADVERSARIES[line.adversary], mode=choose("attack", attack, MODES)))
    return {
        "task": "images",
        "network": _architecture(line.network, classes, size.width),
        "data": data,
        "loss": LOSSES[line.loss](classes),
        "recipe": chosen.plain(),
    }


def make_recipe(spec: Mapping[str, Any]) -> Recipe:
    """The recipe of a spec."""
    adversary = spec["adversary"]
    return Recipe(**{**spec, "adversary": Adversary(**adversary) if adversary else None})


def _shrunk(recipe: Recipe, by: int) -> Recipe:
    """Fewer epochs, smaller batches and float32, for a CPU."""
    epochs = max(2, recipe.epochs // by)
    return replace(
        recipe, epochs=epochs, step_size=-(-recipe.step_size // by), batch_size=min(recipe.batch_size // 2, 32),
        warmup=min(recipe.warmup, epochs / 4), precision="float32",
    )  # fmt: skip


def _architecture(network: str, classes: int, width: int) -> Spec:
    if width:
        return {"name": "resnet8", "outputs": classes, "width": width, "channels": 3}
    if network == "wrn16_10":
        return {"name": "wide_resnet", "outputs": classes, "depth": 16, "widen": 10, "channels": 3}
    return {"name": network, "outputs": classes, "width": 64, "channels": 3}


def _measures(line: Line, kind: str, size: Scale) -> dict[str, Spec]:
    """What "measure" says in the specs of a kind, by the end of the cell's name."""
    attack = {"kind": kind, "levels": [max(line.levels)] if size.largest else list(line.levels), "points": size.points}
    if kind == "clean":
        return {kind: {"kind": kind, "noise": list(STDS)}}
    if kind == "readings":
        return {kind: {"kind": kind}}
    if kind == "beyond":
        other = "cifar100" if line.data == "cifar10" else "cifar10"
        return {kind: {"kind": kind, "outside": size.data[other]}}
    if kind == "transfer":
        classes = size.data[line.data].get("classes", CLASSES[line.data])
        found = {source: LOSSES[source](classes) for source in line.sources}
        return {f"from-{name}": {**attack, "steps": min(size.steps, 20), "source": loss} for name, loss in found.items()}
    if kind == "worst":
        return {kind: attack}
    return {kind: {**attack, "steps": size.steps} if kind == "pgd" else {**attack, "attacks": list(size.autoattack)}}
