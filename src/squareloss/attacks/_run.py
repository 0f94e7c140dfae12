"""How every attack runs: stages of rounds over the points that still stand.

A round is one try at the points left: one restart, one target class. All points of a round advance together, one step at a
time; those that break leave at once and the rest close ranks, so every pass is full. Steps search with the fast copy of the
network; a point is broken only when the model itself, in float32, errs on an example inside the ball and the box.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor, nn

from squareloss._progress import duration
from squareloss._warnings import warn
from squareloss.attacks import _save
from squareloss.attacks._abreast import abreast, count_lanes, gradients
from squareloss.attacks._common import (
    batches,
    check_inputs,
    column,
    distance,
    inside,
    norm_name,
    relative_margin,
    true_margin,
)
from squareloss.attacks._network import prepare
from squareloss.attacks._progress import Progress, to_come
from squareloss.attacks._random import PerExample, Published
from squareloss.attacks._rounds import Advancing, Options, Plan, Problem, Stage, State
from squareloss.attacks.results import AttackResult, Ledger

SAVE_SECONDS = 20.0  # between saves, and so many times what the last one took if that was more than a second
_ROUNDING = 1e-3  # of the largest score: float32 scores of a point differ by less between batches, whatever the algorithms
_PASS = 256  # points times rounds that run at once
_STUCK = (
    "the gradient was exactly zero for {} of the {} points that stand: no step along it could move them, which is no "
    "robustness. Does the model round, clip or saturate? What may break them: pgd or apgd with loss='margin' or a smaller "
    "scale=, or square_attack, which needs no gradient"
)
_WAVE_BYTES = 1 << 28  # of one image-shaped tensor: larger evaluations run in waves


def attack(
    model: nn.Module, x: Tensor, y: Tensor, eps: float, plan: Plan, options: Options,
    remarks: Callable[[int], list[str]] = lambda num_classes: [],
) -> AttackResult:  # fmt: skip
    """Run the plan on every point and return the record, with what there is to remark for so many classes."""
    norm = norm_name(options.get("norm", "linf"))
    check_inputs(model, x, y, eps, norm)
    eps = float(eps)
    parity, seed = options.get("parity", False), options.get("seed", 0)
    network = prepare(model, x, y, batch_size=options.get("batch_size"), precision=options.get("precision"), plain=parity)
    stages, notes = plan(network.num_classes), remarks(network.num_classes)
    for stage in stages:
        for round_ in stage.rounds:
            round_.check(network.num_classes)
    problem = Problem(network, eps, norm, Published(seed) if parity else PerExample(seed))
    evaluation = Evaluation(problem, x.detach(), y.long(), stages, options)
    try:
        ledger = evaluation.run()
    except BaseException:  # Ctrl-C too: what is said next has a line of its own
        evaluation.progress.end_line()
        raise
    if count := len(ledger.stuck()):
        note = _STUCK.format(count, len(ledger.standing()))
        warn(note)
        notes = [*notes, note]
    return ledger.result(eps, norm, evaluation.seconds(), notes)


class Evaluation:
    """An evaluation under way: where it is, the records, and the state of the current round."""

    def __init__(self, problem: Problem, x: Tensor, y: Tensor, stages: list[Stage], options: Options) -> None:
        self.problem, self.x, self.y, self.stages = problem, x, y.to(x.device), stages
        self.ledger = Ledger(x, [(r.attack, r.loss) for s in stages for r in s.rounds])
        self.progress = Progress(options.get("progress", False))
        self.wave_size = max(problem.network.batch_size, _WAVE_BYTES // (x[0].numel() * x.element_size()))
        if problem.draws.shared:
            self.wave_size = problem.network.batch_size  # the published batches
        self.stage = self.wave = self.round = self.step = 0
        self.pool: Tensor | None = None  # the points of this stage
        self.state: State = {}  # of this round, empty between rounds
        save = options.get("save")
        self.path = None if save is None else Path(save)
        self.mark = "" if self.path is None else self._fingerprint()
        self._began, self._before, self._saved = time.monotonic(), 0.0, time.monotonic()
        self._took = 0.0  # the last save

    def run(self) -> Ledger:
        """Everything, from where the saved file stops if there is one."""
        if not self._load():
            self._clean()
        while self.stage < len(self.stages):
            self._run_stage()
            self.stage, self.wave, self.pool = self.stage + 1, 0, None
            self._write_if_due()
        self._write()  # so that a table of several attacks, begun again, does not repeat this one
        self._last_look()
        self.progress.close(f"{int(self.ledger.standing().numel())} of {len(self.x)} stand, {duration(self.seconds())}")
        return self.ledger

    def seconds(self) -> float:
        """Spent on it so far, over all sessions."""
        return self._before + time.monotonic() - self._began

    def _clean(self) -> None:
        """The model's verdict without an attack, and the order of the classes, which targets are chosen by."""
        scores = self.problem.network.clean(self.x, self.wave_size)
        self.ledger.tensors["order"] = scores.sort(1).indices
        self.ledger.tensors["clean"] = relative_margin(scores, self.y)
        self.ledger.tensors["least"] = self.ledger.tensors["clean"].clone()
        self.ledger.tensors["forwards"] += 1
        self.ledger.clean_errors((scores.argmax(1) != self.y).nonzero().squeeze(1))
        standing = self.ledger.standing()
        for targets in self._targets():
            if own := int((targets.to(self.y.device)[standing] == self.y[standing]).sum()):
                raise ValueError(
                    f"expected targets other than the labels, got {own} of {len(standing)} points aimed at their own class, "
                    "which is no attack; leave those out, or aim them at another"
                )

    def _run_stage(self) -> None:
        if self.pool is None:
            self.pool = self.ledger.standing()
        waves = batches(self.pool, self.wave_size)
        while self.wave < len(waves):
            if self.round == 0 and not self.state:
                self.problem.draws.restart()
            while self.round < len(self.stages[self.stage].rounds):
                self.round, self.state = self.round + self._run_round(waves[self.wave]), {}
            self.wave, self.round = self.wave + 1, 0

    def _run_round(self, wave: Tensor) -> int:
        """The next round, or several at once; returns how many."""
        bar = self.stages[self.stage].rounds[self.round].bar
        ids = self.state["id"] if self.state else self._worth(self.ledger.standing(wave), bar)
        if len(ids) == 0:
            return 1
        this, count = self._at_once(len(ids))
        self.progress.pause()
        if not self.state:
            self.state, self.step = self._fresh(ids), 0
            this.start(self.problem, self.state)
            self._book_slope(self.state)
            self._settle(this)
        every = this.every if self.problem.network.cuda else 1
        while self.step < this.steps and len(self.state["id"]):
            this.step(self.problem, self.state, self.step)
            self.step += 1
            if self.step % every == 0 or self.step == this.steps:
                self._settle(this)
            self._tick(this, count)
        self._end(this)
        return count

    def _number(self) -> int:
        """Of this round, in the whole plan."""
        return sum(len(stage.rounds) for stage in self.stages[: self.stage]) + self.round

    def _at_once(self, points: int) -> tuple[Advancing, int]:
        """The next round, or as many of the next ones as make a full pass of so many points, and how many that is.

        One by one if the search rounds: then float32 looks at the closest example of every round.
        """
        rounds, network = self.stages[self.stage].rounds[self.round :], self.problem.network
        if self.state:  # resumed in the middle
            count = count_lanes(self.state)
        elif network.rounds or self.problem.draws.shared:
            count = 1
        else:
            count = min(len(rounds), _PASS // points)
        together = abreast(rounds[:count]) if count > 1 else None
        return (rounds[0], 1) if together is None else (together, count)

    def _worth(self, ids: Tensor, bar: float) -> Tensor:
        """Those of the points that the round is for."""
        clean, least = self.ledger.tensors["clean"][ids], self.ledger.tensors["least"][ids]
        return ids if bar == torch.inf else ids[least <= bar * clean]

    def _fresh(self, ids: Tensor) -> State:
        t, device = self.ledger.tensors, self.problem.network.device
        state = {"id": ids, "x": self.x[ids], "y": self.y[ids], "order": t["order"][ids], "least": t["least"][ids]}
        state = {key: value.to(device) for key, value in state.items()}
        state["refuted"] = torch.full_like(state["least"], torch.inf)
        if self.problem.network.rounds:
            state["closest"], state["nearness"] = state["x"], state["refuted"]
        return state

    def _settle(self, this: Advancing) -> None:
        """Confirm the points that seem lost, and let them go."""
        state = self.state
        state["least"] = torch.minimum(state["margin"], state["least"])
        if "closest" in state:
            closer = state["margin"] < state["nearness"]
            state["nearness"] = torch.minimum(state["margin"], state["nearness"])
            state["closest"] = torch.where(column(closer, state["x"]), state["tried"], state["closest"])
        lost = (state["margin"] <= 0) & (state["margin"] < state["refuted"])  # a refuted example comes back only when lower
        if bool(lost.any()):
            rows = lost.nonzero().squeeze(1)
            self._confirm(this, rows, state["tried"][rows])

    def _confirm(self, this: Advancing, rows: Tensor, tried: Tensor) -> None:
        """Let float32 decide on the examples `tried` of the points in those rows."""
        state, problem = self.state, self.problem
        x = state["x"][rows]
        wrong = problem.network.exact(tried).argmax(1) != state["y"][rows]
        self.ledger.spend(state["id"][rows].to(self.x.device), 1)
        sure = wrong & inside(tried, x, problem.eps, problem.norm)
        state["refuted"][rows[~sure]] = torch.minimum(state["margin"], state["refuted"])[rows[~sure]]
        if "hit" in state:
            state["hit"][rows[~sure]] = -1  # the step that counts is that of an example that stands
        if not bool(sure.any()):
            return
        gone, adv = rows[sure], tried[sure]
        now = torch.full_like(gone, self.step)
        step = torch.where(state["hit"][gone] < 0, now, state["hit"][gone]) if "hit" in state else now
        self.ledger.record(state["id"][gone], adv, distance(adv - x[sure], problem.norm), self._number(), step)
        self._leave(this, gone)

    def _leave(self, this: Advancing, gone: Tensor) -> None:
        """Those rows leave the round; their passes are booked."""
        state = self.state
        f0, b0, f, b = this.costs
        ids = state["id"][gone].to(self.x.device)
        self.ledger.spend(ids, f0 + f * self.step, b0 + b * self.step)
        self.ledger.tensors["least"][ids] = state["least"][gone].to(self.x.device)
        if "skipped" in state:
            self.ledger.tensors["forwards"][ids] -= state["skipped"][gone].to(self.x.device)
        stays = torch.ones(len(state["id"]), dtype=torch.bool, device=gone.device)
        stays[gone] = False
        kept = stays.nonzero().squeeze(1)
        for key in state:
            state[key] = state[key][kept]

    def _end(self, this: Advancing) -> None:
        """The round is over: with a search that rounds, let float32 look at the closest examples; then all leave."""
        state = self.state
        if "closest" in state and len(state["id"]):
            self._confirm(this, torch.arange(len(state["id"]), device=state["id"].device), state["closest"])
        self._book_slope(state)
        self._leave(this, torch.arange(len(state["id"]), device=state["id"].device))

    def _book_slope(self, state: State) -> None:
        """How large the gradients are, when a try begins and ends: a point that the first one does not move stays there."""
        if (found := gradients(state)) is not None and len(found):
            self.ledger.climbed(state["id"].to(self.x.device), found.flatten(1).abs().amax(1))

    def _last_look(self) -> None:
        """Every example found lies in the ball and the box and fools the model; anything else is a bug and must not pass."""
        t, network = self.ledger.tensors, self.problem.network
        for ids in batches((t["by"] >= 0).nonzero().squeeze(1), self.wave_size):
            adv = t["adv"][ids].to(network.device)
            scores = network.exact(adv).to(self.x.device)
            # another batch rounds otherwise: what is lost by less than that may seem right now, which is no bug
            right = true_margin(scores, self.y[ids]) > _ROUNDING * scores.abs().amax(1)
            fair = inside(t["adv"][ids], self.x[ids], self.problem.eps, self.problem.norm)
            for name, bad in {"fools the model": right, "lies in the ball and the box": ~fair}.items():
                if bool(bad.any()):
                    raise RuntimeError(
                        f"expected that every example found {name}, but {int(bad.sum())} of {len(ids)} do not; "
                        "is the model deterministic, and the same for any batch?"
                    )

    def _tick(self, this: Advancing, count: int) -> None:
        """Progress, and a save if it is time."""
        if self.progress.tick(len(self.state["id"]) * sum(this.costs[2:])):
            stage = self.stages[self.stage]
            place = f"{stage.name} {self.round + 1}/{len(stage.rounds)} step {self.step}/{this.steps}"
            text = f"{place}: {len(self.ledger.standing())} of {len(self.x)} stand"
            self.progress.tell(text, self._left(this, count))
        self._write_if_due()

    def _left(self, this: Advancing, count: int) -> float:
        """About how many passes of points are to come, if they go on breaking as they did.

        The points of the stage are in three places: in waves that are through it, in this one, and in waves that wait.
        """
        assert self.pool is not None
        costs, before = self._passes()
        now = self._number()
        first = now - self.round
        begin, end = before[first], before[first + len(self.stages[self.stage].rounds)]  # of the stage
        here = before[now + count] - count * costs[now] * (this.steps - self.step)
        through, wave, waiting = self.pool.tensor_split([self.wave * self.wave_size, (self.wave + 1) * self.wave_size])
        seen, behind = (here, waiting) if self.wave == 0 else (end, torch.cat([wave, waiting]))
        known = self.ledger.tensors["by"] != -2
        known[behind] = False  # only those that have come as far as any
        fell = self._fell(costs, before)[known]
        groups = (self.ledger.standing(through), end), (self.ledger.standing(wave), here), (waiting, begin)
        return sum(len(ids) * to_come(fell, since, seen, before[-1]) for ids, since in groups if len(ids))

    def _passes(self) -> tuple[list[float], list[float]]:
        """Of a point, on average over those that stand: what a step of each round costs; the sum before each, and of all."""
        rounds, standing = [r for s in self.stages for r in s.rounds], self.ledger.standing()
        worth = {bar: len(self._worth(standing, bar)) / max(1, len(standing)) for bar in {r.bar for r in rounds}}
        costs = [sum(r.costs[2:]) * worth[r.bar] for r in rounds]
        return costs, [0, *accumulate(cost * r.steps for cost, r in zip(costs, rounds, strict=True))]

    def _fell(self, costs: list[float], before: list[float]) -> Tensor:
        """After how many passes an attack broke each point (N,), by what `_passes` says; infinite if none did."""
        by, step = self.ledger.tensors["by"], self.ledger.tensors["step"]
        begun, cost = (torch.tensor(v, dtype=torch.float64, device=by.device)[by.clamp(min=0)] for v in (before, costs))
        return torch.where(by < 0, torch.inf, begun + cost * step)

    def _fingerprint(self) -> str:
        p = self.problem
        kind = f"{type(p.draws).__name__} {p.draws.seed} {p.network.precision} {self.wave_size}"
        settings = f"{self.stages!r} {p.eps!r} {p.norm} {kind}"
        return _save.fingerprint(p.network.model, self.x, self.y, settings, self._targets())

    def _targets(self) -> list[Tensor]:
        """The classes (N,) that rounds aim at, of those to which they are given."""
        return [t for s in self.stages for r in s.rounds if isinstance(t := getattr(r, "targets", None), Tensor)]

    def _write_if_due(self) -> None:
        if time.monotonic() - self._saved >= SAVE_SECONDS * max(1.0, self._took):
            self._write()

    def _write(self) -> None:
        if self.path is None:
            return
        tensors = {f"ledger.{k}": v for k, v in self.ledger.tensors.items()}
        tensors |= {f"state.{k}": v for k, v in self.state.items()}
        drawn = self.problem.draws.state()
        tensors |= {k: v for k, v in {"pool": self.pool, "draws": drawn}.items() if v is not None}
        where = {"stage": self.stage, "wave": self.wave, "round": self.round, "step": self.step}
        begun = time.monotonic()
        _save.write(self.path, tensors, {"fingerprint": self.mark, "seconds": self.seconds(), **where})
        self._saved = time.monotonic()
        self._took = self._saved - begun

    def _load(self) -> bool:
        """Go to where the saved file stops; False if there is none."""
        found = None if self.path is None else _save.read(self.path, self.mark)
        if found is None:
            return False
        tensors, header = found
        self.stage, self.wave, self.round, self.step = (header[k] for k in ("stage", "wave", "round", "step"))
        self._before = header["seconds"]
        self.ledger.tensors |= {k: v.to(self.x.device) for k, v in _under("ledger.", tensors).items()}
        device = self.problem.network.device
        self.state = {k: v.to(device) for k, v in _under("state.", tensors).items()}
        self.pool = tensors["pool"].to(self.x.device) if "pool" in tensors else None
        self.problem.draws.restore(tensors.get("draws"))
        return True


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
