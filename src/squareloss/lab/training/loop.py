"""The visible loop: one network, one device, nothing hidden. `captured.py` does the same on a GPU, faster."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any

import torch
from torch import Tensor, nn

from squareloss.lab.training import checkpoint
from squareloss.lab.training.adversarial import attacked, perturb, start_keys
from squareloss.lab.training.batches import Batches, Rows
from squareloss.lab.training.recipes import Recipe
from squareloss.losses import Loss


class Diverged(RuntimeError):
    """The loss was no longer finite. Carries where: `epoch`, `step` within it, `lr`, and the `curve` so far."""

    def __init__(self, epoch: int, step: int, lr: float, curve: list[Epoch]) -> None:
        self.epoch, self.step, self.lr, self.curve = epoch, step, lr, curve
        super().__init__(
            f"the loss was not finite at epoch {epoch}, step {step}, learning rate {lr:.3g}; use a smaller learning rate, "
            "a warm-up, or a smaller scale of the loss (the paper's own lr 0.1, batch 128 diverges on ResNets)"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return Diverged, (self.epoch, self.step, self.lr, self.curve)  # or it could not leave a worker process


@dataclass(frozen=True)
class Epoch:
    """One row of a training curve: means over the epoch's steps; `seconds` of training since the start of the run."""

    epoch: int
    lr: float
    loss: float
    train_accuracy: float
    seconds: float


@dataclass
class Run:
    """A network to train and what goes with it; for the loop and for the captured engine.

    Arguments:
        network: outputs (N, width) of preprocessed inputs; trained in place.
        loss: called on outputs and labels; its link reads classes.
        recipe, seed: how to train, and what to draw.
        x, y: training samples, (N, C, H, W) bytes or (N, d) floats, and labels (N,).
        preprocess: between inputs (images in [0, 1]) and the network, such as `Standardize`.
        path: a checkpoint file, written every `save_every` epochs and on Ctrl-C, and gone on from if it is there.
        on_epoch: called with each finished `Epoch`.
    """

    network: nn.Module
    loss: Loss
    recipe: Recipe
    seed: int
    x: Tensor
    y: Tensor
    preprocess: nn.Module = field(default_factory=nn.Identity)
    path: Path | None = None
    save_every: int = 10
    on_epoch: Callable[[Epoch], None] | None = None

    def __post_init__(self) -> None:
        for name, value, kind, such in (
            ("loss", self.loss, Loss, "a loss of squareloss, such as SquareLoss() or CrossEntropy()"),
            ("recipe", self.recipe, Recipe, 'a Recipe, such as RECIPES["fast"]'),
            ("path", self.path, (Path, NoneType), "a pathlib.Path"),
        ):
            if not isinstance(value, kind):
                raise TypeError(f"expected {name} to be {such}, got {value!r}")

    def batches(self, device: torch.device) -> Batches:
        """The training data on a device."""
        recipe = self.recipe
        return Batches(self.x, self.y, batch_size=recipe.batch_size, seed=self.seed, augment=recipe.augment, device=device)

    @cached_property
    def fingerprint(self) -> str:
        """Of everything that must agree for this run to go on from a checkpoint."""
        spec = getattr(self.network, "spec", str(self.network))
        shapes = {name: tuple(tensor.shape) for name, tensor in self.network.state_dict().items()}
        others = [str(self.loss), self.loss.ignore_index, str(self.preprocess), self.recipe.plain(), self.seed]
        tensors = [self.x, self.y, *self.loss.buffers(), *self.preprocess.state_dict().values()]
        return checkpoint.fingerprint([spec, shapes, *others], tensors)

    def describe(self) -> str:
        """The run in words, for messages."""
        name = getattr(self.network, "spec", {}).get("name", type(self.network).__name__)
        return f"{name}, {self.loss}, seed {self.seed}"


@dataclass
class State:
    """How far a run is: the next epoch and step, the loss and hits of this epoch, seconds spent, and the curve."""

    epoch: int = 0
    step: int = 0
    totals: Tensor = field(default_factory=lambda: torch.zeros(2, dtype=torch.float64))
    seconds: float = 0.0
    curve: list[Epoch] = field(default_factory=list)

    def finish_epoch(self, lr: float, steps: int, batch_size: int) -> Epoch:
        """Close the epoch: its row of the curve."""
        loss, hits = self.totals.tolist()
        self.curve.append(Epoch(self.epoch, lr, loss / steps, hits / (steps * batch_size), self.seconds))
        self.epoch, self.step, self.totals = self.epoch + 1, 0, torch.zeros(2, dtype=torch.float64)
        return self.curve[-1]


def train(run: Run, device: torch.device | str = "cpu") -> list[Epoch]:
    """Train `run.network` in place and return its curve. Ctrl-C writes a checkpoint and raises KeyboardInterrupt."""
    device, recipe, loss = torch.device(device), run.recipe, run.loss.to(device)
    network = run.network.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    preprocess, batches = run.preprocess.to(device), run.batches(device)
    optimiser = make_optimiser(network, recipe)

    def forward(x: Tensor) -> Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=recipe.precision == "bfloat16"):
            return network(preprocess(x))  # type: ignore[no-any-return]

    with seeded(run.seed, device), interruptible() as interrupted:
        state = load_state(run, optimiser)
        started = time.perf_counter() - state.seconds
        while state.epoch < recipe.epochs:
            rows, lrs = batches.epoch(state.epoch), recipe.lrs(state.epoch, batches.steps)
            while state.step < batches.steps:
                for group in optimiser.param_groups:
                    group["lr"] = lrs[state.step]
                outputs, y, value = _objective(forward, run, batches, rows.step(state.step), state)
                optimiser.zero_grad(set_to_none=True)
                value.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                hits = (loss.link.predict(outputs.detach()) == y).sum()
                state.totals += torch.stack([value.detach().double(), hits.double()]).cpu()
                if not torch.isfinite(state.totals[0]):
                    raise Diverged(state.epoch, state.step, lrs[state.step], state.curve)
                state.step, state.seconds = state.step + 1, time.perf_counter() - started
                if interrupted.is_set():
                    save_state(run, optimiser, state)
                    raise KeyboardInterrupt
            row = state.finish_epoch(lrs[-1], batches.steps, recipe.batch_size)
            if state.epoch % run.save_every == 0 or state.epoch == recipe.epochs:
                save_state(run, optimiser, state)
            if run.on_epoch:
                run.on_epoch(row)
        if interrupted.is_set():  # after the last step: the checkpoint has all
            raise KeyboardInterrupt
    network.eval()
    return state.curve


def _objective(
    forward: Callable[[Tensor], Tensor], run: Run, batches: Batches, rows: Rows, state: State
) -> tuple[Tensor, Tensor, Tensor]:
    """Outputs, labels and loss of a batch: attacked first, or mixed with itself reversed, if the recipe says so."""
    recipe, (x, y) = run.recipe, batches.take(rows)
    if recipe.adversary is not None:
        keys = start_keys(run.seed, state.epoch, rows.sample)
        with attacked(run.network, recipe.adversary.mode):
            x = perturb(forward, run.loss.link, recipe.adversary, x, y, keys)
    if not recipe.mixup:
        outputs = forward(x)
        return outputs, y, run.loss(outputs, y)
    part = _mixing(recipe.mixup, run.seed, state.epoch * batches.steps + state.step)
    outputs = forward(part * x + (1 - part) * x.flip(0))
    return outputs, y, part * run.loss(outputs, y) + (1 - part) * run.loss(outputs, y.flip(0))


def _mixing(alpha: float, seed: int, step: int) -> float:
    """A draw from Beta(alpha, alpha), by seed and step."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step)
    gamma = torch._standard_gamma(torch.full((2,), alpha, dtype=torch.float64), generator=generator)
    return float(gamma[0] / gamma.sum())


def make_optimiser(network: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """The recipe's optimiser over all parameters of a network."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    if recipe.optimiser == "rmsprop":
        return torch.optim.RMSprop(parameters, recipe.lr, weight_decay=recipe.weight_decay)
    return torch.optim.SGD(parameters, recipe.lr, recipe.momentum, weight_decay=recipe.weight_decay, nesterov=recipe.nesterov)


@torch.no_grad()
def outputs_of(
    network: nn.Module,
    x: Tensor,
    *,
    preprocess: nn.Module | None = None,
    batch: int = 1000,
    progress: Callable[[float], None] = lambda share: None,
) -> Tensor:
    """Outputs (N, width) in float32 of samples (N, ...), bytes or floats, on the device of the network; in eval mode.

    `progress` is called with the share that is done, after every batch.
    """
    device, training = next(network.parameters()).device, network.training
    network.eval()
    parts = []
    for part in torch.split(x, batch):
        moved = floats(part.to(device))
        parts.append(network(moved if preprocess is None else preprocess(moved)).float())
        progress(min(1.0, len(parts) * batch / len(x)))
    network.train(training)
    return torch.cat(parts)


def floats(x: Tensor) -> Tensor:
    """Images of bytes as floats in [0, 1]; what is not bytes as it is."""
    return x.float() / 255 if x.dtype == torch.uint8 else x


def save_state(run: Run, optimiser: torch.optim.Optimizer, state: State) -> None:
    """Write the run's checkpoint, if it has a path."""
    if run.path is None:
        return
    tensors = {f"network.{name}": value for name, value in run.network.state_dict().items()}
    tensors |= checkpoint.optimiser_tensors(optimiser) | {"totals": state.totals, "rng.cpu": torch.get_rng_state()}
    if next(run.network.parameters()).is_cuda:
        tensors["rng.cuda"] = torch.cuda.get_rng_state()
    facts = {"epoch": state.epoch, "step": state.step, "seconds": state.seconds, "curve": [asdict(e) for e in state.curve]}
    checkpoint.save(run.path, tensors, {**facts, "fingerprint": run.fingerprint, "run": run.describe()})


def load_state(run: Run, optimiser: torch.optim.Optimizer) -> State:
    """Put network, optimiser and generators back as the run's checkpoint has them; a fresh state if there is none."""
    if run.path is None or not run.path.exists():
        return State()
    tensors, facts = checkpoint.load(run.path, run.fingerprint)
    run.network.load_state_dict({name[8:]: value for name, value in tensors.items() if name.startswith("network.")})
    checkpoint.restore_optimiser(optimiser, tensors)
    torch.set_rng_state(tensors["rng.cpu"])
    if "rng.cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["rng.cuda"])
    curve = [Epoch(**row) for row in facts["curve"]]
    return State(facts["epoch"], facts["step"], tensors["totals"], facts["seconds"], curve)


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """Turn the first Ctrl-C into an event that a loop looks at between steps; a second one interrupts as usual."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handler(signum: int, frame: Any) -> None:
        event.set()
        signal.signal(signal.SIGINT, previous)

    previous = signal.signal(signal.SIGINT, handler)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's global generators for layers that use them, such as dropout, and put them back afterwards."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
