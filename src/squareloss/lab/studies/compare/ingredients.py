"""What `compare` is made of: losses and networks by name, data split by seed, and the recipe that fits the data."""

from __future__ import annotations

import functools
import hashlib
import importlib
import math
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from squareloss import models
from squareloss._checks import choose
from squareloss.codings import OneHot, one_hot_15, scaled_one_hot
from squareloss.lab.data import NAMES, Dataset, load
from squareloss.lab.data.dataset import SplitPlan, assemble
from squareloss.lab.data.images import SUFFIXES
from squareloss.lab.report.words import READINGS
from squareloss.lab.training.recipes import RECIPES, Recipe
from squareloss.losses import CrossEntropy, Focal, Loss, SoftmaxBrier, SquareLoss, Squentropy

# by name, from the number of classes. one_hot is half the sum of squares, so that its gradient is as large as cross-entropy's
LOSSES: dict[str, Callable[[int], Loss]] = {
    "ce": lambda classes: CrossEntropy(),
    "simplex": lambda classes: SquareLoss(),
    "one_hot": lambda classes: SquareLoss(OneHot(), scale=classes / 2),
    "one_hot_15": lambda classes: SquareLoss(one_hot_15(classes), scale=1.0),
    "scaled_one_hot": lambda classes: SquareLoss(scaled_one_hot(classes)),
    "squentropy": lambda classes: Squentropy(),
    "ce_smoothed": lambda classes: CrossEntropy(label_smoothing=0.1),
    "focal": lambda classes: Focal(),
    "brier": lambda classes: SoftmaxBrier(),
}
MODELS = ("auto", "mlp", "resnet8", "resnet18", "wrn16_10")

# for data that a laptop trains on in seconds to minutes; no augmentation, since a flipped digit is another sign
SMALL = Recipe(
    epochs=30, batch_size=64, lr=0.1, nesterov=True, schedule="linear", warmup=2.0, augment=False, precision="float32"
)
ALL_RECIPES = {"small": SMALL, **RECIPES}

_CALLED = "a network of your own is made by function(shape, outputs); it takes (N, *shape) and gives (N, outputs)"


def _photographs(data: Dataset) -> bool:
    """Images of 24 pixels and more, which get networks, noise and radii for photographs; smaller ones get those for digits."""
    return data.kind == "image" and min(data.shape[1:]) >= 24


@dataclass(frozen=True)
class Source:
    """Where the data come from. A seed draws the splits that the data do not bring themselves.

    Arguments:
        data: a name or a path, as `lab.data.load` takes it.
        target: the column to predict, of a table.
        size: bring images of a folder to size x size.
    """

    data: str
    target: str | None = None
    size: int | None = None

    def read(self, seed: int) -> Dataset:
        """The data with the splits of a seed; the last ones read are kept."""
        return _read(self.data, self.target, self.size, seed)

    def draws_test(self) -> bool:
        """Whether the test split is drawn anew by each seed; not where the data have one of their own."""
        return not _whole(self.data, self.target, self.size).test.n

    def fingerprint(self) -> str:
        """Of the content, so that results of a file that has changed are not taken for those of the new one."""
        if self.data in NAMES:
            return self.data
        path, digest = Path(self.data), hashlib.sha256()
        for file in _seen(path) if path.is_dir() else [path]:
            if path.is_dir():
                digest.update(f"{file.relative_to(path).as_posix()} {file.stat().st_size}\n".encode())
            with file.open("rb") as stream:  # sizes would not do: images without compression all have the same
                while block := stream.read(2**20):
                    digest.update(block)
        return digest.hexdigest()[:12]


def _seen(folder: Path) -> list[Path]:
    """The images of a folder where `lab.data` looks for them, in links to folders too; if it has none, all files there.

    Hidden ones are not read and come and go (.DS_Store).
    """
    found = (path for depth in ("*", "*/*", "*/*/*") for path in folder.glob(depth) if path.is_file())
    seen = sorted(path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts))
    return [path for path in seen if path.suffix.lower() in SUFFIXES] or seen


@functools.lru_cache(maxsize=2)
def _read(data: str, target: str | None, size: int | None, seed: int) -> Dataset:
    whole = _whole(data, target, size)
    # a tenth to validate on; a fifth of small data, where a tenth would tell learning rates apart by single samples
    validation = 0.2 if whole.train.n < 10_000 else 0.1
    if whole.kind == "table":
        split = load(data, target, seed=seed, validation=validation)  # what is filled in depends on the training rows
    else:
        given = {part: getattr(whole, part) if getattr(whole, part).n else None for part in ("validation", "test")}
        split = assemble(whole.name, whole.kind, whole.classes, SplitPlan(validation, seed=seed), whole.train, **given)
    for part in ("validation", "test"):
        if not getattr(split, part).n:
            raise ValueError(f"{data}: expected samples for {part}, got none of {whole.train.n}; add samples")
    return split


@functools.lru_cache(maxsize=1)
def _whole(data: str, target: str | None, size: int | None) -> Dataset:
    """All samples in the training split, but for splits that the data bring; images are decoded once for all seeds."""
    return load(data, target, size=size, validation=0.0, test=0.0, progress=sys.stderr.isatty())


def split_losses(text: str) -> list[str]:
    """The names in "ce,ce+temperature,simplex", checked; each is a loss, perhaps with "+temperature" or "+asinh"."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ValueError(f"expected one loss or more, got none. Available: {', '.join(LOSSES)}")
    for name in names:
        loss, plus, reading = name.partition("+")
        choose("loss", loss, LOSSES, 'any of them with "+temperature" or "+asinh"')
        if plus:
            choose(f"reading of {loss!r}", f"+{reading}", [f"+{known}" for known in READINGS])
    return list(dict.fromkeys(names))


def network_spec(model: str, data: Dataset, *, quick: bool = False, cuda: bool = False) -> dict[str, Any]:
    """Which network: plain values that `build` makes it from. Large ones are chosen by themselves only where there is CUDA."""
    outputs, flat = data.num_classes, math.prod(data.shape)
    if ":" in model:
        return {"name": model, "source": _source_of(model)}
    choose("model", model, MODELS, "package.module:function, called with (shape, outputs), for a network of your own")
    if model == "auto":
        tiny = data.kind == "table" or min(data.shape[1:]) < 8
        model = "mlp" if tiny else "resnet18" if _photographs(data) and cuda and not quick else "resnet8"
    if model == "mlp":
        return {"name": "mlp", "inputs": flat, "hidden": [64, 64] if quick else [256, 256], "outputs": outputs}
    if data.kind == "table":
        raise ValueError(f"expected images for the model {model!r}, got the table {data.name!r}; use --model mlp")
    if model == "wrn16_10":
        return {"name": "wide_resnet", "outputs": outputs, "depth": 16, "widen": 10, "channels": data.shape[0]}
    width = 64 if model == "resnet18" else 8 if quick else 16
    return {"name": model, "outputs": outputs, "width": width, "channels": data.shape[0]}


def build(spec: dict[str, Any], shape: tuple[int, ...], outputs: int, seed: int) -> nn.Module:
    """The network of a spec with the initial weights of a seed, the same for every loss."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # networks of users draw from the global generator
        return _own(spec["name"], shape, outputs) if ":" in spec["name"] else models.build(spec)


def _own(name: str, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """A network of the user's."""
    function = _function(name)
    with _blamed(f"{name}{shape, outputs} failed"):
        network = function(shape, outputs)
    if not isinstance(network, nn.Module):
        raise ValueError(f"expected {name} to return an nn.Module, got {type(network).__name__}; {_CALLED}")
    lazy = next((place for place, parameter in network.named_parameters() if is_lazy(parameter)), None)
    if lazy is not None:
        raise ValueError(
            f"expected {name} to return a network with all its parameters, got {lazy!r} uninitialised; "
            "run network(torch.zeros(2, *shape)) before returning it"
        )
    return network


def check_network(spec: dict[str, Any], data: Dataset) -> int:
    """How many parameters the network has; raises unless it takes inputs of the data and gives one output per class."""
    name, inputs = spec["name"], (2, *data.shape)
    network = build(spec, data.shape, data.num_classes, seed=0)
    with torch.no_grad(), _blamed(f"{name} failed on inputs of shape {inputs}"):
        found = network.eval()(torch.zeros(inputs))
    shape = tuple(getattr(found, "shape", ()))
    if shape != (2, data.num_classes):
        raise ValueError(
            f"expected {name} to give outputs (2, {data.num_classes}) for inputs {inputs}, "
            f"got {shape or type(found).__name__}; {_CALLED}"
        )
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise ValueError(f"expected {name} to have parameters to train, got none with requires_grad; {_CALLED}")
    return sum(p.numel() for p in network.parameters())


@contextmanager
def _blamed(what: str, advice: str = _CALLED) -> Iterator[None]:
    """Whatever a user's code raises, as a ValueError that says what was tried."""
    try:
        yield
    except Exception as error:
        raise ValueError(f"{what}: {type(error).__name__}: {error}; {advice}") from error


def _function(name: str) -> Callable[[tuple[int, ...], int], nn.Module]:
    """The function that "package.module:function" names; modules in the working directory are found too."""
    module_name, _, attribute = name.partition(":")
    advice = "expected package.module:function, with the module in the working directory or installed"
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        with _blamed(f"could not import {module_name!r} for the model {name!r}", advice):
            module = importlib.import_module(module_name)
    finally:
        sys.path.remove(here)
    functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
    found: Callable[[tuple[int, ...], int], nn.Module] = getattr(
        module, choose(f"function of {module_name}", attribute, functions)
    )
    return found


def _source_of(name: str) -> str:
    """A hash of the file that a user's network comes from: other code is another network."""
    file = getattr(sys.modules[_function(name).__module__], "__file__", None)  # None for what is built into Python
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12] if file else ""


def fit_recipe(
    name: str | None,
    data: Dataset,
    *,
    quick: bool = False,
    epochs: int | None = None,
    batch_size: int | None = None,
    augment: bool | None = None,
    cuda: bool = False,
) -> Recipe:
    """The recipe for the data: "fast" for many photographs, "small" else, unless one is asked for."""
    many = _photographs(data) and data.train.n >= 20_000
    name = choose("recipe", name or ("fast" if many else "small"), ALL_RECIPES)
    recipe = ALL_RECIPES[name]
    if name == "small" and data.kind == "table":
        recipe = replace(recipe, lr=0.03)  # no batch norm there: larger ones overfit or diverge
    if quick and epochs is None:
        epochs = min(recipe.epochs, 15)
    size = batch_size or recipe.batch_size
    while batch_size is None and size > 8 and data.train.n < 10 * size:
        size //= 2  # of few samples, ten steps an epoch at least
    if batch_size is None and size > data.train.n:
        raise ValueError(f"{data.name}: expected 8 training samples or more, got {data.train.n}; compare needs more data")
    if size > data.train.n:
        raise ValueError(f"expected a batch size of at most {data.train.n}, the training samples, got {size}")
    return replace(
        recipe,
        epochs=epochs or recipe.epochs,
        warmup=min(recipe.warmup, (epochs or recipe.epochs) / 5),
        batch_size=size,
        augment=data.name in ("cifar10", "cifar100") if augment is None else augment,
        precision="bfloat16" if cuda and data.kind == "image" else "float32",
    )


def learning_rates(recipe: Recipe, quick: bool) -> list[float]:
    """The grid: a third of the recipe's, the recipe's, three times it; half and twice it if quick."""
    factors = (0.5, 2.0) if quick else (1 / 3, 1.0, 3.0)
    return [float(f"{factor * recipe.lr:.3g}") for factor in factors]


def noise_levels(data: Dataset) -> list[float]:
    """Standard deviations in standardised space at which accuracies differ: the paper's for photographs, larger ones else."""
    return [0.1, 0.2, 0.3, 0.4] if _photographs(data) else [0.25, 0.5, 0.75, 1.0]


def radii(data: Dataset, quick: bool) -> list[float]:
    """l_inf radii at which standard networks differ; none for tables."""
    if data.kind == "table":
        return []
    if _photographs(data):
        return [0.5 / 255, 1 / 255, 2 / 255]
    return [0.05, 0.1] if quick else [0.025, 0.05, 0.1]
