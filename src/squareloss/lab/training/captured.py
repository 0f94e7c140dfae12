"""Image networks as CUDA graphs: a whole training step replayed with one launch, several runs side by side on one GPU.

A small batch leaves a large chip idle and a Python loop leaves it waiting. Here the step (batch, augmentation, attack, forward,
backward, update, curve) is compiled, captured once, and replayed; the batch it takes is chosen by a counter on the device, so
that nothing crosses from the host between the steps of an epoch. Several runs have a stream each and fill the chip together.
Numbers are those of `loop.train`: the same batches, the same operations; only layers that draw, such as dropout, draw others.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from squareloss.classifier import Standardize
from squareloss.lab.training import loop, overlap
from squareloss.lab.training.adversarial import perturb, start_keys
from squareloss.lab.training.batches import Batches, Rows, cut
from squareloss.lab.training.flat import FlatWeights, sgd
from squareloss.lab.training.loop import Diverged, Epoch, Run
from squareloss.models import MLP, OneHidden, ResNet, WideResNet

WARM_UP = 3  # steps before capture, so that compilation and the choice of algorithms lie behind it


def train(runs: Sequence[Run], device: torch.device | str = "cuda", *, compiled: bool = True) -> list[list[Epoch] | Diverged]:
    """Train several runs side by side, each network in place; a curve each, or the `Diverged` that ended it.

    They may differ in anything: data, architecture, loss, seed, recipe. On a CPU, with mixup or with another optimiser than
    SGD, they go through `loop.train` one after the other.
    """
    device = torch.device(device)
    if device.type != "cuda" or any(run.recipe.mixup or run.recipe.optimiser != "sgd" for run in runs):
        return [_one_by_one(run, device) for run in runs]
    with loop.seeded(runs[0].seed, device), loop.interruptible() as interrupted, _fast_convolutions():
        overlapped = len(runs) <= 2  # more fill the chip without it
        captured = [
            _Captured(run, device, batches, compiled, overlapped, urgent)
            for run, batches, urgent in zip(runs, shared_batches(runs, device), urgencies(runs), strict=True)
        ]
        active = [one for one in captured if one.state.epoch < one.run.recipe.epochs]
        while active:
            for one in active:
                one.begin_epoch()
            while (behind := furthest_behind(active)).left:
                behind.replay()
                if interrupted.is_set():
                    for one in active:
                        one.pause()
                    raise KeyboardInterrupt
            active = [one for one in active if one.end_epoch()]
        if interrupted.is_set():  # after the last step: the checkpoints have all
            raise KeyboardInterrupt
    return [one.finish() for one in captured]


def _one_by_one(run: Run, device: torch.device) -> list[Epoch] | Diverged:
    try:
        return loop.train(run, device)
    except Diverged as diverged:
        return diverged


def shared_batches(runs: Sequence[Run], device: torch.device) -> list[Batches]:
    """The training data of each run; those that several runs have are on the device once."""
    there: dict[tuple[int, int, bool], Batches] = {}
    found = []
    for run in runs:
        key = id(run.x), id(run.y), run.recipe.augment
        if key not in there:
            there[key] = run.batches(device)
        found.append(there[key].reordered(run.recipe.batch_size, run.seed))
    return found


def furthest_behind(runs: Sequence[_Captured]) -> _Captured:
    """The run with the largest part of its epoch left, the first of several: so runs of different batch sizes end together."""
    return max(runs, key=lambda one: one.left / one.batches.steps)


def urgencies(runs: Sequence[Run]) -> list[bool]:
    """Which runs go first on the chip: those of the smallest batches, if others have larger ones.

    Their kernels are many and short. Behind the long ones of a larger batch each would wait for longer than it takes; before
    them it keeps a part of the chip for a moment, and the long ones have the rest.
    """
    sizes = [run.recipe.batch_size for run in runs]
    return [size == min(sizes) < max(sizes) for size in sizes]


class Step:
    """One step of a run: the batch's loss and hits, with the weights moved."""

    def __init__(self, run: Run, batches: Batches, compiled: bool, overlapped: bool = False) -> None:
        self.run, self.batches, self.overlapped = run, batches, overlapped
        self.weights = FlatWeights(run.network, run.recipe)
        module = nn.Sequential(run.preprocess, run.network)
        fixed = {name: p for name, p in module.named_parameters() if name.removeprefix("1.") not in self.weights.leaves}
        self.arguments = fixed | {f"1.{name}": leaf for name, leaf in self.weights.leaves.items()}
        self.frozen = {name: w.detach() for name, w in self.arguments.items()}
        self.buffers = dict(module.named_buffers())
        how = (run.recipe.precision == "bfloat16", compiled, overlapped)
        self.call = _call(module, *how, training=True)
        if run.recipe.adversary is not None:
            training = run.recipe.adversary.mode == "train"
            self.attacked = _call(module, *how, training)
            # in training mode batch norm writes its statistics, which must not be the network's; in eval mode it reads those
            self.statistics = {name: b.clone() for name, b in self.buffers.items()} if training else self.buffers
        self.compile = _compiled if compiled else lambda function: function
        self.cut, self.sgd, self.note = self.compile(cut), self.compile(sgd), self.compile(note)

    def gradients(self, rows: Rows, epoch: Tensor) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
        """Loss, hits (a boolean each) and gradients by the leaves, of the batch `rows` in the epoch of that number."""
        run = self.run
        x, y = self.batches.take(rows, self.cut)
        if run.recipe.adversary is not None:
            keys = start_keys(run.seed, epoch, rows.sample)
            forward = lambda x: self.attacked(self.frozen, self.statistics, x)
            x = perturb(forward, run.loss.link, run.recipe.adversary, x, y, keys, compiled=self.compile)
        outputs = self.call(self.arguments, self.buffers, x)
        value = run.loss(outputs, y)
        gradients = torch.autograd.grad(value, list(self.weights.leaves.values()))
        if self.overlapped and value.is_cuda:
            overlap.join()
        return value.detach(), run.loss.link.predict(outputs.detach()) == y, gradients

    def __call__(self, rows: Rows, epoch: Tensor, lr: Tensor, record: Tensor, counter: Tensor) -> None:
        """Move the weights; loss and hits go into the record's row `counter`, which then counts on."""
        value, hits, gradients = self.gradients(rows, epoch)
        self.weights.update(gradients, lr, self.sgd)
        self.note(record, counter, value, hits)


def note(record: Tensor, counter: Tensor, value: Tensor, hits: Tensor) -> None:
    """record[counter] = (loss, number of hits), and counter + 1, round the end of the record."""
    row = torch.stack([value.double(), hits.sum().double()]).unsqueeze(0)
    record.index_copy_(0, counter, row)
    counter.copy_((counter + 1) % len(record))


class _Captured:
    """One run: its tensors, its graph and its stream."""

    def __init__(
        self, run: Run, device: torch.device, batches: Batches, compiled: bool, overlapped: bool, urgent: bool
    ) -> None:  # fmt: skip
        self.run, self.batches = run, batches
        run.network.to(device, memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        run.loss.to(device)
        run.preprocess.to(device)
        self.step = Step(run, batches, compiled, overlapped)
        self.optimiser = loop.make_optimiser(run.network, run.recipe)  # holds the momentum, for checkpoints
        self.state = loop.load_state(run, self.optimiser)
        self._adopt_momentum()
        self.diverged: Diverged | None = None
        steps = batches.steps
        self.rows = batches.epoch(0)  # static tables, refilled every epoch
        self.lrs = torch.zeros(steps, device=device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)
        self.epoch = torch.zeros((), dtype=torch.int64, device=device)
        self.record = torch.zeros(steps, 2, dtype=torch.float64, device=device)  # loss and hits of each step
        self.stream = torch.cuda.Stream(device, priority=-1 if urgent else 0)  # type: ignore[no-untyped-call]
        self.graph = self._capture()

    def _adopt_momentum(self) -> None:
        """Let the optimiser's momentum be views of the flat buffer, with the values that a checkpoint brought."""
        for p, view in self.step.weights.momentum().items():
            saved = self.optimiser.state[p].get("momentum_buffer")
            if saved is not None:
                view.copy_(saved)
            if self.run.recipe.momentum:
                self.optimiser.state[p]["momentum_buffer"] = view
        self.step.weights.refresh()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Capture one step; what the warm-up steps changed is put back."""
        touched = [*self.run.network.state_dict().values(), *self.step.weights.momentum().values()]
        kept = [t.clone() for t in touched]
        torch.cuda.synchronize()  # all that was laid out so far was laid out on another stream
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                self._step()
            self.stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                self._step()
            for tensor, value in zip(touched, kept, strict=True):
                tensor.copy_(value)
            self.step.weights.refresh()
        self.stream.synchronize()
        return graph

    def _step(self) -> None:
        """Take the batch that the counter points at, move the weights, note loss and hits, and count on."""
        lr = self.lrs.index_select(0, self.counter).squeeze(0)
        self.step(self.rows.step(self.counter), self.epoch, lr, self.record, self.counter)

    def begin_epoch(self) -> None:
        """Lay out the next epoch's batches and learning rates."""
        lrs = torch.tensor(self.run.recipe.lrs(self.state.epoch, self.batches.steps))
        with torch.cuda.stream(self.stream):  # the new tables too, or their memory could be another's before they are copied
            for table, new in zip(self.rows, self.batches.epoch(self.state.epoch), strict=True):
                table.copy_(new)
            self.lrs.copy_(lrs)
            self.counter.fill_(self.state.step)
            self.epoch.fill_(self.state.epoch)
        self.first_step, self.left = self.state.step, self.batches.steps - self.state.step
        self.started = time.perf_counter()

    def replay(self) -> None:
        """One more step of this epoch."""
        with torch.cuda.stream(self.stream):
            self.graph.replay()
        self.left -= 1

    def _read(self) -> None:
        """Add what the steps since the last look recorded."""
        self.stream.synchronize()
        self.state.seconds += time.perf_counter() - self.started
        self.state.step = self.batches.steps - self.left
        self.state.totals += self.record[self.first_step : self.state.step].sum(0).cpu()

    def pause(self) -> None:
        """Write a checkpoint in the middle of an epoch."""
        self._read()
        loop.save_state(self.run, self.optimiser, self.state)

    def end_epoch(self) -> bool:
        """Note the epoch in the curve, write a checkpoint if one is due; whether there is another epoch."""
        self._read()
        recipe = self.run.recipe
        lrs = recipe.lrs(self.state.epoch, self.batches.steps)
        if not torch.isfinite(self.state.totals[0]):
            bad = (~self.record[self.first_step :, 0].cpu().isfinite()).nonzero()
            step = self.first_step + (int(bad[0]) if len(bad) else -1)  # or before it was interrupted
            self.diverged = Diverged(self.state.epoch, step, lrs[step], self.state.curve)
            return False
        row = self.state.finish_epoch(lrs[-1], self.batches.steps, recipe.batch_size)
        if self.state.epoch % self.run.save_every == 0 or self.state.epoch == recipe.epochs:
            loop.save_state(self.run, self.optimiser, self.state)
        if self.run.on_epoch:
            self.run.on_epoch(row)
        return self.state.epoch < recipe.epochs

    def finish(self) -> list[Epoch] | Diverged:
        """Let the network go, with weights of its own, and tell how it went."""
        self.step.weights.release()
        self.run.network.eval()
        return self.diverged or self.state.curve


_CALLS: dict[tuple[str | bool, ...], Callable[..., Tensor]] = {}


def _call(module: nn.Sequential, autocast: bool, compiled: bool, overlapped: bool, training: bool) -> Callable[..., Tensor]:
    """module(x) as a function of its weights and buffers; compiled once for all networks of the same architecture.

    That is known of networks of ours, whose text tells all that they hold; others are compiled each time.
    """
    ours = type(module[0]) in (Standardize, nn.Identity) and type(module[1]) in (MLP, OneHidden, ResNet, WideResNet)
    key = (str(module), autocast, compiled, overlapped, training)
    if ours and key in _CALLS:
        return _CALLS[key]
    template = copy.deepcopy(module).train(training)
    # the compiler must not reuse memory that the second stream still reads; the allocator knows of it, the compiler does not
    options: dict[str, Any] = {"allow_buffer_reuse": False, "inplace_buffers": False} if overlapped else {}
    if overlapped:
        overlap.overlap(template)

    def call(weights: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=autocast, cache_enabled=False):
            return torch.func.functional_call(template, (weights, buffers), (x,))  # type: ignore[no-any-return]

    made: Callable[..., Tensor] = torch.compile(call, dynamic=False, options=options) if compiled else call
    if ours:
        _CALLS[key] = made
    return made


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


@contextmanager
def _fast_convolutions() -> Iterator[None]:
    """Let cuDNN try its algorithms and keep the fastest, unless deterministic algorithms are asked for."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before
