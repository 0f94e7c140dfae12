"""What attacks refuse: models, points, keywords and values that can't be, each with a word on what to do."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from attack_nets import cnn
from squareloss import attacks
from squareloss.attacks._common import check_scores, norm_name

RUN, PROGRESS, APGD, ABREAST = (sys.modules[f"squareloss.attacks.{name}"] for name in ("_run", "_progress", "apgd", "_abreast"))


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
    for give in (lambda f: f[:, 0], lambda f: f[:, :, None]):
        with pytest.raises(ValueError, match=r"expected scores of shape \(32, K\)"):
            attacks.pgd(nn.Sequential(net, Gives(give)).eval(), x, y, 0.1)
    with pytest.raises(ValueError, match="expected finite scores"):
        attacks.pgd(nn.Sequential(net, Broken()).eval(), x, y, 0.1)
    with pytest.raises(TypeError, match="expected a float32 model"):
        attacks.pgd(nn.Sequential(net, Half()).eval(), x, y, 0.1)
    with pytest.raises(ValueError, match="use square_attack"):
        attacks.pgd(nn.Sequential(net, Detached()).eval(), x, y, 0.1)
    attacks.square_attack(nn.Sequential(net, Detached()).eval(), x, y, 0.1, queries=2)
    for give, kind in ((lambda f: (f, f.mean()), "tuple"), (lambda f: {"logits": f}, "dict")):
        with pytest.raises(TypeError, match=f"as a tensor, got {kind}; wrap it in a module"):
            attacks.pgd(nn.Sequential(net, Gives(give)).eval(), x, y, 0.1)


@pytest.mark.parametrize("parity", [False, True])
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")  # torch.compile's imports
def test_modules_that_have_a_length_can_be_attacked(net, points, parity):
    expected = attacks.pgd(net, *points, 0.1, steps=2, parity=parity)
    for wrapped in (Long(net), torch.compile(Long(net), backend="eager"), torch.compile(Gives(net), backend="eager")):
        result = attacks.pgd(wrapped.eval(), *points, 0.1, steps=2, parity=parity)
        assert torch.equal(result.broken, expected.broken)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning", "ignore:`torch.jit:FutureWarning")  # torch 2.15
def test_torchscript_can_be_attacked(net, points):
    traced = torch.jit.trace(net, points[0][:2])
    expected = attacks.pgd(net, *points, 0.1, steps=2)
    for model in (traced, torch.jit.freeze(traced)):  # a frozen one knows no mode
        assert torch.equal(attacks.pgd(model, *points, 0.1, steps=2).broken, expected.broken)


def test_what_is_said_after_an_interruption_has_a_line_of_its_own(net, points, capsys, monkeypatch):
    def loss(scores, labels):
        if "\r" in (said := capsys.readouterr().err):
            before.append(said)
            raise KeyboardInterrupt
        return nn.functional.cross_entropy(scores, labels, reduction="none")

    before: list[str] = []
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with pytest.raises(KeyboardInterrupt):
        attacks.pgd(net, *points, 0.1, loss=loss, progress=True)
    assert not before[0].endswith("\n")
    assert capsys.readouterr().err == "\n"


def test_a_loss_averaged_over_points_is_refused(net, points):
    for attack in (attacks.pgd, attacks.apgd):
        with pytest.raises(ValueError, match=r"one value per point, shape \(\d+,\), got \(\); .* reduction='none'"):
            attack(net, *points, 0.1, loss=nn.functional.cross_entropy)


def test_where_gradients_are_off_it_is_said(net, points):
    with torch.no_grad():  # that is no matter
        attacks.pgd(net, *points, 0.1, steps=1)
    with torch.inference_mode(), pytest.raises(ValueError, match=r"inside torch\.inference_mode\(\): attack outside of it"):
        attacks.pgd(net, *points, 0.1, steps=1)


def test_points_may_require_gradients(net, points):
    x, y = points
    result = attacks.pgd(net, x.clone().requires_grad_(), y, 0.1, steps=1)  # warnings are errors
    assert torch.equal(result.x_adv, attacks.pgd(net, x, y, 0.1, steps=1).x_adv)
    assert not result.x_adv.requires_grad


class Long(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x)

    def __len__(self):
        return 0


class Gives(nn.Module):
    def __init__(self, give):
        super().__init__()
        self.give = give

    def forward(self, f):
        return self.give(f)


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


@pytest.mark.parametrize("attack", [attacks.pgd, attacks.gaussian_noise, attacks.autoattack, attacks.masking_report])
def test_probabilities_are_warned_about_at_the_line_that_attacks(net, points, attack):
    model = nn.Sequential(net, nn.Softmax(1)).eval()
    with pytest.warns(UserWarning, match="the scores are probabilities") as told:
        attack(model, points[0][:5], points[1][:5], [0.1] if attack is attacks.gaussian_noise else 0.1)
    assert {warning.filename for warning in told} == {__file__}


@pytest.mark.parametrize("attack", [attacks.pgd, attacks.apgd])
def test_a_gradient_of_exactly_zero_is_told(net, points, attack):
    model = nn.Sequential(net, Rounded()).eval()
    with pytest.warns(UserWarning, match=r"exactly zero for (\d+) of the \1 points that stand.*square_attack") as said:
        result = attack(model, *points, 0.01, steps=3, restarts=2)
    assert len(said) == 1 and result.notes == [str(said[0].message)] and "exactly zero" in str(result)
    assert attack(net, *points, 0.01, steps=3, restarts=2).notes == []


def test_a_gradient_that_another_try_has_is_not_called_zero(net, points, tmp_path):
    model, x, y = nn.Sequential(net, Gives(lambda f: 1000 * f)).eval(), *points  # cross-entropy saturates, DLR does not
    ours = {"attacks": ["apgd-ce"], "save": tmp_path / "ce.safetensors"}
    with pytest.warns(UserWarning, match="exactly zero for"):
        first = attacks.autoattack(model, x, y, 0.01, **ours)
    with pytest.warns(UserWarning, match="exactly zero for"):  # said again of what the file has
        assert attacks.autoattack(model, x, y, 0.01, **ours).notes == first.notes
    assert attacks.autoattack(model, x, y, 0.01, attacks=["apgd-ce", "apgd-dlr"]).notes == []


def test_points_that_came_to_the_bottom_are_not_said_to_have_stood_still():
    def scores(x):  # the margin falls to 1 and no further: these points do stand
        return torch.stack([1 + torch.relu(x[:, 0] - 0.4), *torch.tensor([0.0, -1.0, -2.0]).unsqueeze(1).expand(3, len(x))], 1)

    x, y = torch.full((20, 3), 0.5), torch.zeros(20, dtype=torch.int64)
    for attack in (attacks.pgd, attacks.apgd):  # nearly all of the starts are on the slope
        result = attack(Gives(scores).eval(), x, y, 0.11, restarts=3, loss="margin")
        assert result.robust_accuracy == 1 and result.notes == []


def test_gradients_of_a_surrogate_say_nothing_of_the_model(net, points):
    model = nn.Sequential(net, Rounded()).eval()
    with pytest.warns(UserWarning, match="exactly zero for"):
        attacks.worst_case(model, *points, 0.01, surrogate=net, report=False)


class Rounded(nn.Module):
    def forward(self, f):
        return f.round() + 0 * f


def test_bad_points_are_refused(net, points):
    x, y = points
    with pytest.raises(ValueError, match=r"expected inputs in \[0, 1\], got values from -\d.*standardisation inside the model"):
        attacks.pgd(net, (x - 0.5) / 0.3, y, 0.1)
    with pytest.raises(ValueError, match=r"expected inputs in \[0, 1\]"):
        attacks.pgd(net, x * float("nan"), y, 0.1)
    with pytest.raises(TypeError, match=r"expected float32 inputs .* got torch\.uint8 .*; use x / 255 of bytes"):
        attacks.pgd(net, (x * 255).byte(), y, 0.1)
    with pytest.raises(TypeError, match=r"expected float32 inputs \(N, ...\) .* of shape \(60,\)"):
        attacks.pgd(net, x[:, 0, 0, 0], y, 0.1)
    with pytest.raises(ValueError, match="one point or more"):
        attacks.pgd(net, x[:0], y[:0], 0.1)
    with pytest.raises(ValueError, match=r"expected integer labels of shape \(60,\)"):
        attacks.pgd(net, x, y.float(), 0.1)
    with pytest.raises(ValueError, match=r"expected labels in \[0, 10\)"):
        attacks.pgd(net, x, y + 5, 0.1)
    for eps in (8, 0, float("nan")):
        with pytest.raises(ValueError, match=r"expected eps > 0 and at most 1.*8/255, not 8"):
            attacks.pgd(net, x, y, eps)
    with pytest.raises(ValueError, match="expected eps > 0, got inf"):
        attacks.pgd(net, x, y, float("inf"), norm="l2")
    for run in (attacks.pgd, attacks.evaluate):
        with pytest.raises(TypeError, match="expected eps as a number, got '8/255'"):
            run(net, x, y, "8/255")
    with pytest.raises(TypeError, match=r"expected y as a tensor, got list; use torch.as_tensor\(y\)"):
        attacks.pgd(net, x, y.tolist(), 0.1)
    with pytest.raises(ValueError, match="Unknown norm 'l1'. Available: linf, l2"):
        attacks.pgd(net, x, y, 0.1, norm="l1")


@pytest.mark.parametrize(("norm", "name"), [(2, "l2"), (2.0, "l2"), ("L_2", "l2"), (float("inf"), "linf"), ("Linf", "linf")])
def test_norms_by_any_of_their_names(norm, name):
    assert norm_name(norm) == name


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_scores_that_differ_are_told_by_their_size(scale):
    scores, y = scale * torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(5, dtype=torch.int64)
    assert check_scores(scores, scores * (1 + 1e-5), 5, y) == 3
    with pytest.raises(ValueError, match="expected a deterministic model, .* differ by 0.01 of their size"):
        check_scores(scores, scores * 1.01, 5, y)


EVERY = [
    attacks.pgd, attacks.apgd, attacks.apgd_targeted, attacks.fab_targeted, attacks.square_attack, attacks.autoattack,
    attacks.worst_case, attacks.masking_report, attacks.evaluate,
]  # fmt: skip


@pytest.mark.parametrize("run", EVERY)
def test_keywords_that_no_attack_has_are_refused(net, points, run):
    name = run.__name__
    with pytest.raises(TypeError, match=f"Unknown keyword 'sead' of {name}. Available: .*norm, seed, .*; did you mean 'seed'?"):
        run(net, *points, 0.1, sead=1)
    for wrong, error in ((0, ValueError), (-3, ValueError), (2.5, TypeError)):
        with pytest.raises(error, match=f"expected batch_size to be (1 or more|a whole number), got {wrong}"):
            run(net, *points, 0.1, batch_size=wrong)
    with pytest.raises(ValueError, match="Unknown precision 'fp16'. Available: float32, bfloat16"):
        run(net, *points, 0.1, precision="fp16")


@pytest.mark.parametrize(
    ("run", "keywords", "message"),
    [
        (attacks.pgd, {"num_steps": 3}, "Unknown keyword 'num_steps' of pgd.*; did you mean 'steps'?"),
        (attacks.pgd, {"restart": 7}, "did you mean 'restarts'?"),
        (attacks.worst_case, {"transfer": None}, "Unknown keyword 'transfer' of worst_case. Available: surrogate, scales"),
        (attacks.evaluate, {"steps": 3, "attacks": ["pgd-ce"]}, "Unknown keyword 'steps' of evaluate"),
        (attacks.pgd, {"steps": 1.5}, "expected steps to be a whole number, got 1.5"),
        (attacks.pgd, {"step_size": "large"}, "expected step_size to be a number, got 'large'"),
    ],
)
def test_misspelt_keywords_and_kinds_are_type_errors(net, points, run, keywords, message):
    with pytest.raises(TypeError, match=message):
        run(net, *points, 0.1, **keywords)


@pytest.mark.parametrize(
    ("run", "keywords"),
    [
        *((run, {"steps": n}) for run in EVERY[:4] for n in (0, -5)),
        *((run, {"restarts": n}) for run in EVERY[:5] for n in (0, -2)),
        *((attacks.pgd, {"step_size": size}) for size in (0.0, -1.0, float("nan"))),
        (attacks.apgd, {"rho": 1.5}),
        *((run, {"targets": 0}) for run in (attacks.apgd_targeted, attacks.fab_targeted)),
        *((attacks.square_attack, one) for one in ({"queries": 0}, {"p": 0.0}, {"p": 2.0})),
        *((attacks.worst_case, one) for one in ({"restarts": -1}, {"scales": (3.0, 0.0)})),
        *((attacks.masking_report, one) for one in ({"points": 0}, {"queries": 0})),
    ],
)
def test_values_that_mean_nothing_are_refused(net, points, run, keywords):
    with pytest.raises(ValueError, match=f"expected {next(iter(keywords))} .*, got"):
        run(net, *points, 0.1, **keywords)


def test_dlr_is_refused_for_few_classes(points):
    x = points[0]
    for classes, run, name in ((2, attacks.apgd, "dlr"), (3, attacks.apgd_targeted, "dlr_targeted")):
        model = cnn(classes=classes).eval()
        with pytest.raises(ValueError, match=rf"expected {classes + 1} classes or more for the loss '{name}', got {classes}"):
            run(model, x, torch.zeros(60, dtype=torch.int64), 0.1, loss="dlr")
