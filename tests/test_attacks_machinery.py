"""What attacks rest on: folding, saving and resuming, bad input, the worst case and its masking report."""

from __future__ import annotations

import json
import sys

import pytest
import torch
from torch import nn

from attack_nets import cnn, digits, train, trained
from squareloss import Simplex, SquareLoss, attacks
from squareloss._precision import strict_float32
from squareloss.attacks import _fold, _network
from squareloss.models import build

RUN = sys.modules["squareloss.attacks._run"]


@pytest.fixture(scope="module")
def net():
    return trained("adversarial")


@pytest.fixture(scope="module")
def points():
    return digits()[2][:60], digits()[3][:60]


# folding and the fast copy


def shaken(model: nn.Module) -> nn.Module:
    """Batch norms with statistics of their own, so that folding them matters."""
    g = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            with torch.no_grad():
                module.running_mean.normal_(0, 0.3, generator=g)
                module.running_var.uniform_(0.5, 2, generator=g)
                module.weight.uniform_(0.5, 2, generator=g)
                module.bias.normal_(0, 0.3, generator=g)
    return model.eval()


def count(model: nn.Module) -> int:
    return sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())


@pytest.mark.parametrize("name", ["resnet8", "resnet50"])
def test_batch_norm_is_folded_into_residual_networks(name):
    model = shaken(build({"name": name, "outputs": 10, "width": 4}))
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    before = count(model)
    folded = attacks.fold_batch_norm(model, x[:2])
    assert count(folded) == 0 < before == count(model)
    with torch.no_grad():
        torch.testing.assert_close(folded(x), model(x), rtol=1e-3, atol=1e-3)
    assert not any(p.requires_grad for p in folded.parameters())


class Branching(nn.Module):
    """The convolution's output goes to the norm and around it: folding would be wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.linear = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4 * 36, 10)

    def forward(self, x):
        a = self.conv(x)
        return self.linear((self.norm(a) + a).flatten(1))


def test_a_fold_that_changes_the_scores_is_not_used(points):
    model = shaken(Branching())
    with pytest.warns(UserWarning, match="could not be folded"):
        copy = attacks.fold_batch_norm(model, points[0][:4])
    assert count(copy) == 1
    with torch.no_grad():
        torch.testing.assert_close(copy(points[0]), model(points[0]))


def test_ends_stay_in_float32(net, points):
    copy = _fold.keep_ends(_fold.frozen_copy(net), points[0][:2])
    assert isinstance(copy[0], _fold.Float32)
    assert isinstance(copy[-1], _fold.Float32)
    with torch.autocast("cpu", torch.bfloat16):
        scores = copy(points[0])
    assert scores.dtype == torch.float32
    assert not torch.equal(scores, net(points[0]))  # the middle is rounded
    with torch.autocast("cpu", torch.bfloat16):
        assert copy[0](points[0]).dtype == torch.bfloat16  # computed in float32, rounded once
    assert torch.equal(copy[0](points[0]), net[0](points[0]))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 100, 450, 1000, 1001])
def test_padded_sizes_are_close_and_few(n):
    for binary, waste, most in ((1, 3 / 2, 13), (3, 9 / 8, 40)):
        assert n <= _network._round_up(n, binary) <= max(n + 15, n * waste)
        assert len({_network._round_up(k, binary) for k in range(1, 1025)}) <= most


def test_coarse_sizes_are_captured_soon_and_fine_ones_where_it_pays(net, points, recorded, monkeypatch):
    x, y = (t.repeat_interleave(2, 0)[:100] for t in points)
    network = _network.Network(net, x, y, batch_size=100)
    network.scores(x)
    assert recorded == [100]  # no larger than a batch
    for _ in range(_network._PATIENCE[1]):
        network.scores(x[:60])
    assert recorded == [100, 64]
    for _ in range(_network._PATIENCE[3]):
        network.scores(x[:70])
    assert recorded == [100, 64, 96, 80]
    torch.testing.assert_close(network.scores(x[:70]), network.scores(x)[:70])


@pytest.fixture
def recorded(monkeypatch):
    """Networks that record their steps, as on CUDA: replaying runs the step again on the same buffers. Gives the sizes."""
    sizes = []

    def record(step, inputs, pool):
        outputs = step(*inputs)
        sizes.append(len(inputs[0]))

        def replay():
            for kept, new in zip(outputs, step(*inputs), strict=True):
                kept.copy_(new)

        return replay, outputs

    made = _network.Network.__init__

    def captured(self, *args, **options):
        made(self, *args, **options)
        self.captured = True

    monkeypatch.setattr(_network, "_record", record)
    monkeypatch.setattr(_network.Network, "__init__", captured)
    return sizes


def test_recorded_steps_with_padding_change_nothing(net, points, request):
    x, y = points
    plain = attacks.autoattack(net, x, y, 0.15, attacks=["apgd-ce", "apgd-dlr"], batch_size=40)
    sizes = request.getfixturevalue("recorded")
    padded = attacks.autoattack(net, x, y, 0.15, attacks=["apgd-ce", "apgd-dlr"], batch_size=40)
    assert torch.equal(plain.broken, padded.broken)
    torch.testing.assert_close(plain.x_adv, padded.x_adv, atol=1e-3, rtol=0)
    assert set(sizes) <= {16, 32, 40}
    assert len(sizes) <= 6


def test_prepared_models_share_their_steps_and_give_the_same_results(net, points, recorded):
    x, y = points
    losses, radii = ("ce", "residual"), (0.05, 0.1, 0.15)

    def run():
        made = [attacks.pgd(net, x, y, e, loss=loss, steps=5, coding=Simplex(radius=2.0)) for e in radii for loss in losses]
        return [*made, *(attacks.worst_case(net, x, y, e, report=False).result for e in radii)]

    apart = run()
    each = len(recorded)
    recorded.clear()
    with attacks.Prepared():
        together = run()
    assert len(recorded) < 0.6 * each
    for a, b in zip(apart, together, strict=True):
        assert torch.equal(a.broken, b.broken)
        torch.testing.assert_close(a.x_adv, b.x_adv, atol=1e-3, rtol=0)
    assert _network._kept.get() is None


def test_a_prepared_model_whose_weights_change_is_prepared_anew(points):
    x, y = points
    model = shaken(cnn())
    with attacks.Prepared() as outer, attacks.Prepared():
        first = _network.prepare(model, x, y)
        assert _network.prepare(model, x, y) is first
        with torch.no_grad():
            model[0].weight.mul_(2)
        second = _network.prepare(model, x, y)
        assert second is not first
        assert not torch.equal(second.scores(x), first.scores(x))
        with pytest.raises(ValueError, match=r"expected labels in \[0, 10\)"):
            attacks.pgd(model, x, y + 9, 0.1, steps=1)
    with outer:
        assert _network.prepare(model, x, y) is second


def test_clean_scores_are_kept_for_the_same_points_alone(net, points):
    x, y = points[0].clone(), points[1]
    model = Limited(net, None)
    with attacks.Prepared():
        network = _network.prepare(model, x, y)
        first = network.clean(x, 20)
        calls = model.counter.calls
        assert torch.equal(network.clean(x.detach(), 20), first)
        assert model.counter.calls == calls
        assert torch.equal(network.clean(x[10:], 20), network.exact(x[10:]))
        x.mul_(0.5)
        assert torch.equal(network.clean(x, 20), torch.cat([network.exact(part) for part in x.split(20)]))


def test_weights_are_rounded_once_to_what_autocast_would_round_them_to(net, points):
    model = shaken(build({"name": "resnet8", "outputs": 10, "width": 4}))
    x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    cast, lowered = (_fold.keep_ends(attacks.fold_batch_norm(model, x), x) for _ in range(2))
    _fold.lower(lowered)
    assert {p.dtype for p in lowered.parameters()} == {torch.float32, torch.bfloat16}
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(cast(x), lowered(x))


# saving and resuming


class Counted:
    """How many forward calls a run makes, copies of the model included."""

    def __init__(self) -> None:
        self.calls = 0

    def __deepcopy__(self, memo):
        return self


class Limited(nn.Module):
    """As `Interrupted`, with a counter that copies of the module share."""

    def __init__(self, model: nn.Module, limit: int | None) -> None:
        super().__init__()
        self.model, self.limit, self.counter = model, limit, Counted()
        self.eval()

    def forward(self, x):
        self.counter.calls += 1
        if self.limit is not None and self.counter.calls > self.limit:
            raise KeyboardInterrupt
        return self.model(x)


SUITES = {
    "autoattack": lambda m, x, y, **k: attacks.autoattack(m, x, y, k.pop("eps"), attacks=["apgd-ce", "apgd-dlr"], **k),
    "fab": lambda m, x, y, **k: attacks.fab_targeted(m, x, y, k.pop("eps"), steps=10, targets=3, **k),
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
    x, y = points[0][:30], points[1][:30]
    options = {"norm": norm, "parity": parity, "batch_size": 20, "eps": {"linf": 0.15, "l2": 0.75}[norm]}
    whole = Limited(net, None)
    expected = SUITES[suite](whole, x, y, **options)
    for share in (0.3, 0.8):
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


def test_a_finished_file_is_read_and_a_strange_one_refused(net, points, tmp_path):
    x, y = points
    file = tmp_path / "run" / "pgd.safetensors"
    first = attacks.pgd(net, x, y, 0.1, steps=3, save=file)
    again = attacks.pgd(net, x, y, 0.1, steps=3, save=file)
    assert torch.equal(first.x_adv, again.x_adv)
    with pytest.raises(ValueError, match="other points or other settings"):
        attacks.pgd(net, x, y, 0.2, steps=3, save=file)
    with pytest.raises(ValueError, match="saved with another model"):
        attacks.pgd(trained("normal"), x, y, 0.1, steps=3, save=file)
    file.write_bytes(b"nonsense")
    with pytest.raises(ValueError, match="can't be read"):
        attacks.pgd(net, x, y, 0.1, steps=3, save=file)


def test_progress_has_an_estimate(net, points, capsys):
    attacks.square_attack(net, *points, 0.75, norm="l2", queries=400, progress=True)
    written = capsys.readouterr().err
    assert "square 1/1 step" in written
    assert "left" in written
    assert "of 60 stand" in written.splitlines()[-1]
    attacks.pgd(net, *points, 0.1, steps=2)
    assert capsys.readouterr().err == ""


# bad input


def test_bad_models_are_refused(net, points):
    x, y = points
    training = cnn()
    with pytest.raises(ValueError, match=r"expected a model in eval mode.*call model.eval\(\)"):
        attacks.pgd(training, x, y, 0.1)
    part = cnn().eval()
    part[1].train()
    with pytest.raises(ValueError, match="'1' is in training mode"):
        attacks.autoattack(part, x, y, 0.1)
    with pytest.raises(TypeError, match="expected an nn.Module"):
        attacks.pgd(lambda x: x, x, y, 0.1)
    with pytest.raises(ValueError, match="expected a deterministic model"):
        attacks.pgd(nn.Sequential(AlwaysDropout(), net).eval(), x, y, 0.1)
    with pytest.raises(ValueError, match=r"expected scores of shape \(32, K\)"):
        attacks.pgd(nn.Sequential(net, nn.Linear(10, 1)).eval(), x, y, 0.1)
    with pytest.raises(ValueError, match="expected finite scores"):
        attacks.pgd(nn.Sequential(net, Broken()).eval(), x, y, 0.1)
    with pytest.raises(TypeError, match="expected a float32 model"):
        attacks.pgd(nn.Sequential(net, Half()).eval(), x, y, 0.1)
    with pytest.raises(ValueError, match="use square_attack"):
        attacks.pgd(nn.Sequential(net, Detached()).eval(), x, y, 0.1)
    attacks.square_attack(nn.Sequential(net, Detached()).eval(), x, y, 0.1, queries=2)


class AlwaysDropout(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.2, training=True)


class Broken(nn.Module):
    def forward(self, f):
        return f / 0


class Half(nn.Module):
    def forward(self, f):
        return f.half()


class Detached(nn.Module):
    def forward(self, f):
        return f.detach()


def test_probabilities_are_warned_about(net, points):
    with pytest.warns(UserWarning, match="the scores are probabilities"):
        attacks.pgd(nn.Sequential(net, nn.Softmax(1)).eval(), *points, 0.1, steps=1)


def test_bad_points_are_refused(net, points):
    x, y = points
    with pytest.raises(ValueError, match=r"expected inputs in \[0, 1\], got values from -\d.*standardisation inside the model"):
        attacks.pgd(net, (x - 0.5) / 0.3, y, 0.1)
    with pytest.raises(ValueError, match=r"expected inputs in \[0, 1\]"):
        attacks.pgd(net, x * float("nan"), y, 0.1)
    with pytest.raises(TypeError, match="expected float32 inputs"):
        attacks.pgd(net, (x * 255).byte(), y, 0.1)
    with pytest.raises(ValueError, match="one point or more"):
        attacks.pgd(net, x[:0], y[:0], 0.1)
    with pytest.raises(ValueError, match=r"expected integer labels of shape \(60,\)"):
        attacks.pgd(net, x, y.float(), 0.1)
    with pytest.raises(ValueError, match=r"expected labels in \[0, 10\)"):
        attacks.pgd(net, x, y + 5, 0.1)
    for eps in (8, 0, float("nan")):
        with pytest.raises(ValueError, match=r"expected eps > 0 and at most 1.*8/255, not 8"):
            attacks.pgd(net, x, y, eps)
    with pytest.raises(ValueError, match="Unknown norm 'l1'. Available: linf, l2"):
        attacks.pgd(net, x, y, 0.1, norm="l1")


def test_dlr_is_refused_for_few_classes(points):
    x = points[0]
    for classes, run, name in ((2, attacks.apgd, "dlr"), (3, attacks.apgd_targeted, "dlr_targeted")):
        model = cnn(classes=classes).eval()
        with pytest.raises(ValueError, match=rf"expected {classes + 1} classes or more for the loss '{name}', got {classes}"):
            run(model, x, torch.zeros(60, dtype=torch.int64), 0.1, loss="dlr")


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


# square loss


@pytest.fixture(scope="module", params=[1.0, 10.0], ids=["radius 1", "radius K"])
def square_net(request):
    x, y, _, _ = digits()
    coding = Simplex(radius=request.param)
    return train(cnn(), x, y, epochs=15, loss=SquareLoss(coding, scale=1.0 if request.param > 1 else 20.0)), coding


def test_the_worst_case_is_no_weaker_than_autoattack_at_a_tenth_of_its_passes(square_net):
    model, coding = square_net
    x, y = digits()[2][:60], digits()[3][:60]
    worst = attacks.worst_case(model, x, y, 0.05, report=False).result
    auto = attacks.autoattack(model, x, y, 0.05, attacks=["apgd-ce", "apgd-t"])
    stands = int((~auto.broken).sum())
    assert stands > 5
    assert int((~worst.broken).sum()) <= stands + 1  # one point is within the luck of random starts
    assert worst.passes < 0.1 * (auto.passes + (2700 + 5000) * stands)  # what FAB and Square Attack would add
    residual = attacks.pgd(model, x, y, 0.05, loss="residual", coding=coding, steps=40)
    assert worst.robust_accuracy < residual.robust_accuracy


def test_the_worst_case_transfers_from_another_network(net, points):
    x, y = points
    model = trained("normal")
    with_other = attacks.worst_case(net, x, y, 0.15, surrogate=model, report=False).result
    without = attacks.worst_case(net, x, y, 0.15, report=False).result
    assert abs(int(with_other.broken.sum()) - int(without.broken.sum())) <= 2
    with pytest.raises(ValueError, match="expected a surrogate with 10 classes, got 12"):
        attacks.worst_case(net, x, y, 0.15, surrogate=cnn(classes=12).eval(), report=False)


class Scaled(nn.Module):
    def __init__(self, model: nn.Module, factor: float) -> None:
        super().__init__()
        self.model, self.factor = model, factor
        self.eval()

    def forward(self, x):
        return self.model(x) * self.factor


class Collapsed(nn.Module):
    """Scores pulled towards the nearest vertex of the simplex: runners-up tie."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, x):
        f = self.model(x)
        return torch.where(f == f.amax(1, keepdim=True), f, 0.01 * f)


def test_the_masking_report_tells_a_hidden_gradient_from_none(net, points):
    x, y = points
    honest = attacks.masking_report(net, x, y, 0.1, queries=200)
    assert honest.accuracy_by_eps[-1] == 0
    assert honest.eps[-1] == 1
    assert all(a >= b for a, b in zip(honest.accuracy_by_eps, honest.accuracy_by_eps[1:], strict=False))
    assert honest.small_gradient["ce"] == 0
    assert not any("gradient" in sign or "stays" in sign for sign in honest.signs())
    saturated = attacks.masking_report(Scaled(net, 1000.0), x, y, 0.1, queries=50)
    assert saturated.zero_gradient["ce"] > 0.5
    assert saturated.small_gradient["margin"] == 0
    assert any("gradient of ce is nearly zero" in sign for sign in saturated.signs())
    collapsed = attacks.masking_report(Collapsed(net), x, y, 0.1, queries=50)
    assert collapsed.tied > 0.5 > honest.tied
    assert any("DLR is blind" in sign for sign in collapsed.signs())
    json.dumps(collapsed.to_dict())
    assert "masking report on 60 points" in collapsed.summary()


def test_masking_is_seen_when_only_the_black_box_gets_through(points):
    model = trained("normal")
    report = attacks.masking_report(Staircase(model), *points, 0.2, queries=400)
    assert report.only_black_box > 0.05
    assert any("black box" in sign for sign in report.signs())


class Staircase(nn.Module):
    """Inputs rounded on the way in, with a gradient that leads nowhere."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.eval()

    def forward(self, x):
        return self.model((x * 10).round() / 10) + 1e-6 * x.flatten(1)[:, :10]


def test_scores_can_be_attacked_on_the_scale_of_eta(square_net, points):
    model, coding = square_net
    table = attacks.evaluate(
        model, *points, 0.05, attacks=["apgd-ce", "apgd-ce@eta", "apgd-softmax_probability"], coding=coding
    )
    eta, softmax = (table.results[name, 0.05] for name in ("apgd-ce@eta", "apgd-softmax_probability"))
    assert float((eta.broken == softmax.broken).float().mean()) > 0.97  # the same loss by two ways
    assert table.minimum(0.05) <= min(r.robust_accuracy for r in table.results.values())


def precisions() -> tuple[str, ...]:
    cudnn = torch.backends.cudnn
    return cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision, torch.backends.cuda.matmul.fp32_precision


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="torch 2.9 has names to read it by")
@pytest.mark.parametrize("names", ["old", "new"])
def test_strict_float32_leaves_the_settings_as_they_were(names, monkeypatch):
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    try:
        torch.set_float32_matmul_precision("medium")
        if names == "new":
            cudnn.conv.fp32_precision, matmul.fp32_precision = "tf32", "ieee"  # mixed: the old names can't be read any more
        before = precisions()
        with strict_float32():
            assert "tf32" not in precisions()
        assert precisions() == before
    finally:
        torch.set_float32_matmul_precision("highest")
        cudnn.allow_tf32 = True
