"""How every attack runs: saving and resuming, progress, the last look."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import dataclass
from itertools import count
from typing import ClassVar

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from attack_nets import Counted, Limited, trained
from squareloss import attacks

RUN, PROGRESS, APGD, ABREAST = (sys.modules[f"squareloss.attacks.{name}"] for name in ("_run", "_progress", "apgd", "_abreast"))


# saving and resuming


SUITES = {
    "autoattack": lambda m, x, y, **k: attacks.autoattack(m, x, y, k.pop("eps"), attacks=["apgd-ce", "apgd-dlr"], **k),
    "fab": lambda m, x, y, **k: attacks.fab_targeted(m, x, y, k.pop("eps"), steps=40, targets=3, **k),
    "square": lambda m, x, y, **k: attacks.square_attack(m, x, y, k.pop("eps"), queries=100, **k),
    "worst_case": lambda m, x, y, **k: attacks.worst_case(m, x, y, k.pop("eps"), report=False, **k).result,
}


@pytest.mark.parametrize(
    ("suite", "norm", "parity"),
    [("autoattack", "linf", False), ("autoattack", "l2", True), ("square", "linf", False), ("square", "l2", True),
     ("square", "linf", True), ("fab", "l2", False), ("worst_case", "linf", False)],
)  # fmt: skip
def test_an_interrupted_evaluation_resumes_to_the_same_result(net, points, tmp_path, monkeypatch, suite, norm, parity):
    monkeypatch.setattr(RUN, "SAVE_SECONDS", 0.0)
    x, y = points[0][:15], points[1][:15]
    options = {"norm": norm, "parity": parity, "batch_size": 10, "eps": {"linf": 0.15, "l2": 0.75}[norm]}
    whole = Limited(net, None)
    expected = SUITES[suite](whole, x, y, **options)
    for share in (0.3, 0.8) if suite != "worst_case" else (0.6,):  # which has many steps
        file = tmp_path / f"{share}.safetensors"
        with pytest.raises(KeyboardInterrupt):
            SUITES[suite](Limited(net, int(share * whole.counter.calls)), x, y, save=file, **options)
        again = Limited(net, None)
        resumed = SUITES[suite](again, x, y, save=file, **options)
        assert again.counter.calls < 0.95 * whole.counter.calls
        for name in ("broken", "step", "norm", "forwards", "backwards", "x_adv"):
            assert torch.equal(getattr(resumed, name), getattr(expected, name)), name
        assert resumed.attack == expected.attack
        assert resumed.loss == expected.loss


@pytest.mark.parametrize(("took", "saves"), [(0.5, 10), (5.0, 2)])
def test_saving_takes_a_twentieth_of_the_time_at_most(tmp_path, monkeypatch, took, saves):
    """200 steps of a second each; the last save is the end's."""
    clock, written = Clock(), []

    def write(*arguments):
        clock.now += took
        written.append(clock.now)

    monkeypatch.setattr("squareloss.attacks._run.time.monotonic", lambda: clock.now)
    monkeypatch.setattr(RUN._save, "write", write)
    stages = [RUN.Stage("one", (Falling(clock, 0.0, 200),))]
    x, y = torch.full((100, 1), 0.6), torch.zeros(100, dtype=torch.int64)
    RUN.attack(Threshold(), x, y, 0.2, lambda classes: stages, {"save": tmp_path / "a.safetensors"})
    assert len(written) - 1 == saves


# rounds at once


TARGETED = {"apgd": attacks.apgd_targeted, "fab": attacks.fab_targeted}


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("attack", TARGETED)
def test_rounds_at_once_break_the_same_points_in_fewer_calls(net, points, tmp_path, monkeypatch, attack, norm):
    """Seven points and nine targets: as nine rounds, as one, and as one that is interrupted."""
    x, y = points[0][:7], points[1][:7]
    eps = {"linf": 0.12, "l2": 0.6}[norm]
    run = lambda model, **options: TARGETED[attack](model, x, y, eps, steps=20, norm=norm, **options)
    at_once = run(model := Limited(net, None))
    with monkeypatch.context() as patched:
        patched.setattr(RUN, "_PASS", 0)
        alone = run(sequential := Limited(net, None))
    assert 0 < int(alone.broken.sum()) < 7
    assert alone.attack == at_once.attack and alone.loss == at_once.loss
    for name in ("broken", "step", "norm", "x_adv"):
        torch.testing.assert_close(getattr(alone, name), getattr(at_once, name))
    assert model.counter.calls < 0.6 * sequential.counter.calls
    assert torch.equal(alone.backwards[~alone.broken], at_once.backwards[~alone.broken])
    assert (at_once.backwards % 9 == 0).all()
    if attack == "apgd":  # beside its gradients: the clean pass, the engine's check, and a check for each class that won
        won = [at_once.forwards - at_once.backwards - 2, alone.forwards - alone.backwards - 2]
        broken = alone.step >= 0
        assert (won[0][broken] >= 1).all() and (won[1][broken] == 0).all()

    monkeypatch.setattr(RUN, "SAVE_SECONDS", 0.0)
    with pytest.raises(KeyboardInterrupt):
        run(Limited(net, int(0.7 * model.counter.calls)), save=tmp_path / "run.safetensors")
    again = Limited(net, None)
    resumed = run(again, save=tmp_path / "run.safetensors")
    assert again.counter.calls < 0.9 * model.counter.calls
    for name in ("broken", "step", "forwards", "backwards", "x_adv"):
        assert torch.equal(getattr(resumed, name), getattr(at_once, name)), name


def test_as_many_rounds_run_at_once_as_make_a_pass(net, points, monkeypatch):
    calls = {}
    for rows in (10, 20, 30, 90):
        monkeypatch.setattr(RUN, "_PASS", rows)
        model = Limited(net, None)
        attacks.apgd_targeted(model, points[0][:10], points[1][:10], 0.001, steps=5)
        calls[rows] = model.counter.calls
    assert calls[10] > calls[20] > calls[30] > calls[90]


def test_only_rounds_that_differ_in_class_and_start_run_at_once():
    made = lambda **changes: APGD.APGDRound(attacks.losses.objective("ce"), 10, **changes)
    assert ABREAST.abreast([made(), made(rank=1), made(restart=1)]).costs == (3, 3, 3, 3)
    assert ABREAST.abreast([made(), made(rank=1), made(rho=0.5)]) is None
    assert ABREAST.abreast([made(bar=0.5), made(rank=1, bar=0.5)]) is None  # who is worth the second is known after the first
    shrinking = sys.modules["squareloss.attacks.shrinking"].ShrinkRound(attacks.losses.objective("margin"), 10)
    assert ABREAST.abreast([shrinking, shrinking]) is None


class Addressed(nn.Identity):
    def extra_repr(self):
        return object.__repr__(self)


def test_a_finished_file_is_read_and_a_strange_one_refused(net, points, tmp_path):
    x, y = points
    file = tmp_path / "run" / "pgd.safetensors"
    first = attacks.pgd(net, x, y, 0.1, steps=3, step_size=0.04, save=file)
    again = attacks.pgd(net, x, y, 0.1, steps=3, step_size=0.04, save=file)
    assert torch.equal(first.x_adv, again.x_adv)
    for changes in (
        {"eps": 0.2}, {"steps": 4}, {"step_size": 0.05}, {"loss": "margin"}, {"restarts": 2}, {"norm": "l2"}, {"seed": 1},
        {"precision": "bfloat16"}, {"parity": True}, {"y": (y + 1) % 10}, {"x": 1 - x},
    ):  # fmt: skip
        with pytest.raises(ValueError, match="other points or other settings"):
            attacks.pgd(net, **{"x": x, "y": y, "eps": 0.1, "steps": 3, "step_size": 0.04, "save": file, **changes})
    for other in (trained("normal"), nn.Sequential(net, nn.Sigmoid()).eval()):  # the second has the same weights
        with pytest.raises(ValueError, match="saved with another model"):
            attacks.pgd(other, x, y, 0.1, steps=3, step_size=0.04, save=file)
    file = tmp_path / "address.safetensors"
    for _ in range(2):  # what it prints differs from process to process
        attacks.pgd(nn.Sequential(net, Addressed()).eval(), x, y, 0.1, steps=3, save=file)
    aimed = tmp_path / "aimed.safetensors"
    attacks.pgd(net, x, y, 0.1, steps=3, targets=(y + 1) % 10, save=aimed)
    with pytest.raises(ValueError, match="other settings"):
        attacks.pgd(net, x, y, 0.1, steps=3, targets=(y + 2) % 10, save=aimed)
    file.write_bytes(aimed.read_bytes()[:-100] + b"\xff" * 100)
    with pytest.raises(ValueError, match="damaged; delete it"):  # or -1 in the record would break every point
        attacks.pgd(net, x, y, 0.1, steps=3, targets=(y + 1) % 10, save=file)
    save_file({"x": x}, file, {"header": "{}"})
    for nonsense in (file.read_bytes(), b"nonsense"):
        file.write_bytes(nonsense)
        with pytest.raises(ValueError, match="can't be read"):
            attacks.pgd(net, x, y, 0.1, steps=3, save=file)
    with pytest.raises(ValueError, match="expected a file to save the evaluation in, got the folder"):
        attacks.pgd(net, x, y, 0.1, steps=3, save=tmp_path)


def test_the_seconds_of_an_evaluation_are_those_of_all_its_sessions(net, points, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(RUN.time, "monotonic", lambda: clock.now)

    def slow(scores, labels):
        clock.now += 100
        if clock.now == 400 and stops:
            raise KeyboardInterrupt
        return attacks.losses.ce(scores, labels)

    run = lambda: attacks.pgd(net, *points, 0.1, steps=5, loss=slow, save=tmp_path / "run.safetensors", batch_size=60)
    stops = True
    with pytest.raises(KeyboardInterrupt):  # in the third step: what was saved last are 300 s, of the start and two steps
        run()
    stops, clock.now = False, 10_000
    assert run().seconds == 600


def test_a_save_that_fails_leaves_nothing_half_written(net, points, tmp_path, monkeypatch):
    def full(path, tensors, metadata):
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("squareloss._checkpoint.write_tensors", full)
    with pytest.raises(OSError, match="no space left"):
        attacks.pgd(net, *points, 0.1, steps=3, save=tmp_path / "run.safetensors")
    assert not list(tmp_path.iterdir())


# who takes part, and what float32 looks at


class Told:
    """What the rounds below share."""

    attack, loss, every, costs = "told", "none", 1, (0, 0, 0, 0)

    def check(self, num_classes):
        pass


@dataclass(frozen=True)
class Lowering(Told):
    """A round that brings the margin of each point to a share of the clean one, and says whom it was for."""

    shares: tuple[float, ...]
    bar: float
    told: list[list[int]]
    steps: ClassVar[int] = 1

    def start(self, problem, state):
        self.told.append(state["id"].tolist())
        state["tried"] = state["x"]
        state["margin"] = torch.tensor(self.shares)[state["id"]] * (2 * state["x"][:, 0] - 1)  # that of `Threshold`

    def step(self, problem, state, i):
        pass


def test_a_round_with_a_bar_is_for_points_that_ever_came_below_that_share_of_their_clean_margin():
    x, told = torch.tensor([[0.6], [0.7], [0.8], [0.9]]), []
    shares = (0.9, 0.6, 0.4, 0.2), (1.0, 1.0, 0.7, 0.7), (0.1,) * 4, (1.0,) * 4
    rounds = [Lowering(*each, told) for each in zip(shares, (torch.inf, 0.7, 0.3, 0.5), strict=True)]
    stages = [RUN.Stage("two", tuple(rounds[:2])), RUN.Stage("more", tuple(rounds[2:]))]
    RUN.attack(Threshold(), x, torch.zeros(4, dtype=torch.int64), 0.05, lambda classes: stages, {})
    assert told == [[0, 1, 2, 3], [1, 2, 3], [3], [2, 3]]


@dataclass(frozen=True)
class Guessing(Told):
    """A round that tries given examples, one after the other, with the margins that a search takes them to have."""

    examples: list[float]
    margins: list[float]
    steps: ClassVar[int] = 2
    bar: ClassVar[float] = torch.inf

    def start(self, problem, state):
        self.step(problem, state, -1)

    def step(self, problem, state, i):
        state["tried"] = torch.full_like(state["x"], self.examples[i + 1])
        state["margin"] = torch.full_like(state["x"][:, 0], self.margins[i + 1])


@pytest.mark.parametrize(
    ("examples", "margins", "broken"),
    [
        ([0.45, 0.55, 0.55], [0.01, 0.2, 0.1], True),  # class 1 begins below .5
        ([0.55, 0.45, 0.55], [0.2, 0.01, 0.1], True),
        ([0.55, 0.55, 0.45], [0.2, 0.1, 0.01], True),
        ([0.55, 0.45, 0.55], [0.01, 0.2, 0.1], False),  # the closest by the search is none, and the only one looked at
        ([0.55, 0.45, 0.55], [-0.1, -0.2, 0.1], True),  # the first seemed lost and was not; the second is lower
        ([0.55, 0.45, 0.55], [-0.2, -0.1, 0.1], False),
    ],
)
def test_of_a_search_that_rounds_float32_looks_at_the_closest_example(examples, margins, broken):
    x, y, stages = (
        torch.full((3, 1), 0.6),
        torch.zeros(3, dtype=torch.int64),
        [RUN.Stage("one", (Guessing(examples, margins),))],
    )
    result = RUN.attack(Threshold(), x, y, 0.2, lambda classes: stages, {"precision": "bfloat16"})
    assert result.broken.tolist() == [broken] * 3
    assert torch.equal(result.x_adv, torch.full((3, 1), 0.45 if broken else 0.6))


@pytest.mark.parametrize(("example", "eps", "broken"), [(0.45, 0.2, True), (0.45, 0.1, False), (-0.1, 1.0, False)])
def test_an_example_outside_of_the_ball_or_the_box_does_not_count(example, eps, broken):
    x, y, stages = (
        torch.full((3, 1), 0.6),
        torch.zeros(3, dtype=torch.int64),
        [RUN.Stage("one", (Guessing([example] * 3, [-1.0] * 3),))],
    )
    result = RUN.attack(Threshold(), x, y, eps, lambda classes: stages, {})
    assert result.broken.tolist() == [broken] * 3


# progress


def test_progress_has_an_estimate(net, points, capsys, monkeypatch):
    clock = count()
    monkeypatch.setattr("squareloss.attacks._progress.time.monotonic", lambda: next(clock))
    attacks.square_attack(net, *points, 0.75, norm="l2", queries=400, progress=True)
    written = capsys.readouterr().err
    assert "square 1/1 step" in written
    assert re.search(r"stand, \d+ s, about \d+ (s|min) left", written)
    assert "of 60 stand" in written.splitlines()[-1]
    attacks.pgd(net, *points, 0.1, steps=2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("terminal", "over", "ends"), [(True, 21, 1), (False, 0, 4)])
def test_a_terminal_has_one_line_and_a_file_one_now_and_then(monkeypatch, capsys, terminal, over, ends):
    clock = Clock()
    monkeypatch.setattr("squareloss.attacks._progress.time.monotonic", lambda: clock.now)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    progress = PROGRESS.Progress(True)
    for step in range(40):  # 0.3 s each
        clock.now = 100 + 0.3 * step
        if progress.tick(1.0):
            progress.tell(f"step {step}", 1.0)
    progress.close("the end")
    written = capsys.readouterr().err
    assert (written.count("\r"), written.count("\n")) == (over, ends)
    assert written.endswith("\n") and "the end" in written.splitlines()[-1]


def test_a_notebook_has_one_line_as_a_terminal_has(monkeypatch):
    stream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()  # says that it is no terminal
    monkeypatch.setattr(sys, "stderr", stream)
    assert PROGRESS.every() == 0.5 and PROGRESS.put("a line", 9) == 6
    assert stream.getvalue() == "\ra line   "


@pytest.mark.parametrize(
    ("power", "warm_up", "waves"), [(0.0, 500.0, 1), (0.3, 0.0, 1), (0.3, 500.0, 4), (0.6, 0.0, 4), (0.6, 500.0, 1)]
)
def test_the_time_left_is_about_right_however_points_break(monkeypatch, capsys, power, warm_up, waves):
    """Of 1000 points 1000 / passes^power stand; a pass of one takes 10 ms, and the first start takes longer."""
    clock = Clock()
    monkeypatch.setattr("squareloss.attacks._progress.time.monotonic", lambda: clock.now)
    monkeypatch.setattr(PROGRESS, "duration", str)
    short = (Falling(clock, power, 50, warm_up=warm_up), Falling(clock, power, 50, before=50))
    stages = [RUN.Stage("short", short), RUN.Stage("long", (Falling(clock, power, 900, before=100),))]
    x, y = torch.full((1000, 1), 0.6), torch.zeros(1000, dtype=torch.int64)
    options = {"progress": True} | ({} if waves == 1 else {"parity": True, "batch_size": 1000 // waves})
    result = RUN.attack(Threshold(), x, y, 0.2, lambda classes: stages, options)
    assert result.robust_accuracy == pytest.approx(1000**-power, abs=2e-3)
    told = [(float(now), float(left)) for now, left in re.findall(r"stand, (\S+), about (\S+) left", capsys.readouterr().err)]
    late = [left / (clock.now - now) for now, left in told if 0.1 * clock.now <= now < clock.now]
    assert len(late) > 50
    assert 1 / 3 < min(late) and max(late) < 3  # if all were to stand, 12 at first for power 0.6, 40 with the warm-up


def test_rounds_that_no_point_is_worth_take_no_time(monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr("squareloss.attacks._progress.time.monotonic", lambda: clock.now)
    monkeypatch.setattr(PROGRESS, "duration", str)
    rounds = (Falling(clock, 0.0, 100), Falling(clock, 0.0, 5000, before=100, bar=0.5))  # none comes below half of its margin
    x, y = torch.full((1000, 1), 0.6), torch.zeros(1000, dtype=torch.int64)
    RUN.attack(Threshold(), x, y, 0.2, lambda classes: [RUN.Stage("both", rounds)], {"progress": True})
    told = [(float(now), float(left)) for now, left in re.findall(r"stand, (\S+), about (\S+) left", capsys.readouterr().err)]
    assert clock.now == pytest.approx(1000) and len(told) > 90
    assert all(left == pytest.approx(clock.now - now, rel=0.1, abs=1) for now, left in told)


def test_the_rate_is_that_of_late_steps_without_the_first_of_a_round(monkeypatch, capsys):
    clock = Clock()
    monkeypatch.setattr("squareloss.attacks._progress.time.monotonic", lambda: clock.now)
    progress = PROGRESS.Progress(True)
    progress.tick(1.0)
    progress.tell("none yet", 10.0)
    assert "left" not in capsys.readouterr().err
    for pace in (1.0, 5.0):
        progress.pause()
        clock.now += 5000.0
        for _ in range(1000):
            progress.tick(1.0)
            clock.now += pace
        progress.tell("now", 10.0)
        assert f"about {10 * pace:.0f} s left" in capsys.readouterr().err


def test_the_passes_to_come_are_finite_and_never_negative():
    everyone, nobody = torch.full((10,), torch.inf), torch.ones(10)
    assert PROGRESS.to_come(everyone, 5, 5, 100) == pytest.approx(95)
    assert PROGRESS.to_come(everyone, 0, 5, 100) == pytest.approx(100)
    assert PROGRESS.to_come(everyone, 100, 100, 100) == 0
    assert 0 < PROGRESS.to_come(nobody, 1, 1, 100) < 99
    assert 0 < PROGRESS.to_come(nobody[:0], 1, 1, 100) <= 99
    assert PROGRESS.to_come(torch.tensor([10.0, 30.0, torch.inf]), 20, 100, 100) == pytest.approx((10 + 80 + 80) / 3)


class Clock:
    """Stands still until it is moved."""

    now = 0.0


class Threshold(nn.Module):
    """Class 0 above one half, class 1 below."""

    def __init__(self) -> None:
        super().__init__()
        self.eval()

    def forward(self, x):
        return torch.cat([x - 0.5, 0.5 - x], 1)


@dataclass(frozen=True)
class Falling:
    """A round that breaks points at a known rate and takes a known time."""

    clock: Clock
    power: float
    steps: int
    before: int = 0  # passes, in earlier rounds
    warm_up: float = 0.0  # seconds, in the first wave
    attack: ClassVar[str] = "falling"
    loss: ClassVar[str] = "none"
    costs: ClassVar[tuple[int, int, int, int]] = (0, 0, 1, 0)
    every: ClassVar[int] = 1
    bar: float = float("inf")

    def check(self, num_classes):
        pass

    def start(self, problem, state):
        self.clock.now += self.warm_up * bool((state["id"] == 0).any())
        self._try(state, self.before)

    def step(self, problem, state, i):
        self.clock.now += 0.01 * len(state["id"])
        self._try(state, self.before + i + 1)

    def _try(self, state, passes):
        lost = 617 * state["id"] % 1000 >= 1000 * max(passes, 1) ** -self.power
        state["tried"] = torch.where(lost.unsqueeze(1), 0.45, state["x"])
        state["margin"] = 1.0 - 2.0 * lost


class Moody(nn.Module):
    """Right again after a while: the last look at the examples must notice."""

    def __init__(self, model: nn.Module, patience: int) -> None:
        super().__init__()
        self.model, self.counter, self.patience = model, Counted(), patience
        self.eval()

    def forward(self, x):
        self.counter.calls += 1
        return self.model(x if self.counter.calls < self.patience else x.round())


def test_the_last_look_catches_what_does_not_hold(net, points):
    with pytest.raises(RuntimeError, match="expected that every example found fools the model, but"):
        attacks.pgd(Moody(net, 25), *points, 0.15, steps=20)
