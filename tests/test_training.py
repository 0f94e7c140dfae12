"""The visible loop: its batches, its recipes, its curve."""

import dataclasses
import pickle

import pytest
import torch
from torch import nn

from squareloss import SquareLoss
from squareloss.lab.training import captured, loop
from squareloss.lab.training.batches import PAD, Batches
from squareloss.lab.training.loop import Diverged, Run
from squareloss.lab.training.recipes import MODES, RECIPES, Adversary, Recipe
from squareloss.models import MLP
from training_runs import SMALL, images, run, tiny


def test_batches_are_crops_and_flips_of_zero_padded_images():
    x, y = images(20)
    batches = Batches(x, y, batch_size=10, seed=3, augment=True, device="cpu")
    rows = batches.epoch(4)
    got, labels = batches.take(rows.step(1))
    padded = nn.functional.pad(x, (PAD,) * 4)
    for i in range(10):
        sample, top, left, flip = (int(table[1, i]) for table in rows)
        want = padded[sample, :, top : top + 8, left : left + 8]
        want = want.flip(-1) if flip else want
        torch.testing.assert_close(got[i], want.float() / 255)
        assert labels[i] == y[sample]
    assert got.is_contiguous(memory_format=torch.channels_last)


def test_an_epoch_takes_each_sample_once_and_differs_between_epochs_and_seeds():
    x, y = images(40)
    batches = Batches(x, y, batch_size=10, seed=3, augment=True, device="cpu")
    assert sorted(batches.epoch(0).sample.flatten().tolist()) == list(range(40))
    assert not torch.equal(batches.epoch(0).sample, batches.epoch(1).sample)
    assert not torch.equal(batches.epoch(0).sample, batches.reordered(batches.batch_size, 4).epoch(0).sample)
    assert not torch.equal(batches.epoch(1).sample, batches.reordered(batches.batch_size, 4).epoch(0).sample)
    assert torch.equal(batches.epoch(1).sample, batches.reordered(batches.batch_size, 3).epoch(1).sample)
    larger = batches.reordered(16, 3)
    assert (batches.steps, batches.batch_size) == (4, 10) and larger.steps == 2
    assert torch.equal(larger.epoch(1).sample.flatten(), batches.epoch(1).sample.flatten()[:32])
    assert batches.reordered(40, 3).epoch(0).sample.shape == (1, 40)
    with pytest.raises(ValueError, match="batch_size <= 40"):
        batches.reordered(41, 3)
    rows = batches.epoch(0)
    for ours, theirs in zip(rows.step(torch.tensor([2])), rows.step(2), strict=True):  # the step as a tensor, for a GPU
        assert torch.equal(ours, theirs)
    assert 0.3 < batches.epoch(0).flip.double().mean() < 0.7


def test_rmsprop_is_torch_s_with_the_weight_decay_of_the_recipe():
    recipe = dataclasses.replace(SMALL, optimiser="rmsprop", lr=0.003, weight_decay=0.7)
    weight, expected = (nn.Linear(3, 2, bias=False) for _ in range(2))
    expected.load_state_dict(weight.state_dict())
    theirs = torch.optim.RMSprop(expected.parameters(), lr=0.003, weight_decay=0.7)
    for network, optimiser in ((weight, loop.make_optimiser(weight, recipe)), (expected, theirs)):
        for _ in range(3):
            optimiser.zero_grad()
            network(torch.ones(4, 3)).square().sum().backward()
            optimiser.step()
    torch.testing.assert_close(weight.weight, expected.weight)


def test_the_loop_equals_plain_torch():
    # the loop without augmentation, beside the dozen lines everyone writes
    recipe = dataclasses.replace(SMALL, augment=False, nesterov=True, schedule="cosine")
    one = run(recipe=recipe)
    curve = loop.train(one)
    net, loss, (x, y) = tiny().to(memory_format=torch.channels_last), SquareLoss(), images()
    optimiser = torch.optim.SGD(net.parameters(), 0.05, 0.9, weight_decay=5e-4, nesterov=True)
    batches, losses = Batches(x, y, batch_size=16, seed=0, augment=False, device="cpu"), []
    for epoch in range(2):
        for step, sample in enumerate(batches.epoch(epoch).sample):
            optimiser.param_groups[0]["lr"] = recipe.lr_at(epoch + (step + 0.5) / batches.steps)
            value = loss(net(x[sample].float() / 255), y[sample])
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
            losses.append(value.item())
    for a, b in zip(one.network.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert curve[1].loss == pytest.approx(sum(losses[batches.steps :]) / batches.steps, rel=1e-5)
    assert curve[1].lr == optimiser.param_groups[0]["lr"]


def test_it_learns_and_the_curve_says_so():
    recipe = dataclasses.replace(SMALL, epochs=20)
    curve = loop.train(run(recipe=recipe))
    assert curve[-1].loss < 0.5 * curve[0].loss
    assert curve[-1].train_accuracy > 0.9


@pytest.mark.parametrize("option", [{"mixup": 0.4}, {"optimiser": "rmsprop", "lr": 0.001}, {"precision": "bfloat16"}])
def test_options_train(option):
    curve = loop.train(run(recipe=dataclasses.replace(SMALL, epochs=4, **option)))
    assert curve[-1].loss < curve[0].loss


def test_mixup_is_the_loss_of_both_labels_on_the_mixture():
    one = run(recipe=dataclasses.replace(SMALL, mixup=0.4, augment=False))
    batches, network = one.batches(torch.device("cpu")), one.network.eval()
    rows, part = batches.epoch(1).step(2), loop._mixing(0.4, one.seed, batches.steps + 2)
    x, y = batches.take(rows)
    outputs, labels, value = loop._objective(network, one, batches, rows, loop.State(epoch=1, step=2))
    torch.testing.assert_close(outputs, network(part * x + (1 - part) * x.flip(0)))
    torch.testing.assert_close(value, part * one.loss(outputs, y) + (1 - part) * one.loss(outputs, y.flip(0)))
    assert torch.equal(labels, y) and not torch.equal(y, y.flip(0)) and 0 < part < 1


def test_mixup_draws_anew_in_every_step(monkeypatch):
    drawn = []
    monkeypatch.setattr(loop, "_mixing", lambda alpha, seed, step: drawn.append(step) or 0.5)
    loop.train(run(recipe=dataclasses.replace(SMALL, mixup=0.4)))
    assert len(drawn) == len(set(drawn)) == 12


def test_mixtures_are_draws_from_a_beta_distribution_by_seed_and_step():
    drawn = torch.tensor([[loop._mixing(0.4, seed, step) for step in range(1000)] for seed in (3, 4)])
    assert float(drawn.mean()) == pytest.approx(0.5, abs=0.03) and abs(float(torch.corrcoef(drawn)[0, 1])) < 0.1
    assert float(drawn.var()) == pytest.approx(1 / (4 * (2 * 0.4 + 1)), rel=0.06)


def test_a_row_of_the_curve_is_means():
    state = loop.State(step=4, totals=torch.tensor([2.0, 12.0], dtype=torch.float64), seconds=3.0)
    row = state.finish_epoch(0.1, steps=4, batch_size=5)
    assert (row.epoch, row.loss, row.train_accuracy, row.seconds) == (0, 0.5, 12 / 20, 3.0)
    assert (state.epoch, state.step, state.totals.tolist()) == (1, 0, [0.0, 0.0])


def test_schedules():
    paper = RECIPES["paper"]
    assert [paper.lr_at(e) for e in (0, 49.99, 50, 100, 199)] == pytest.approx([0.01, 0.01, 0.001, 1e-4, 1e-5])
    linear = Recipe(epochs=10, batch_size=1, lr=1.0, schedule="linear", warmup=2)
    assert [linear.lr_at(e) for e in (0, 1, 2, 6, 10)] == pytest.approx([0, 0.5, 1, 0.5, 0])
    cosine = Recipe(epochs=10, batch_size=1, lr=1.0, schedule="cosine")
    assert [cosine.lr_at(e) for e in (0, 5, 10)] == pytest.approx([1, 0.5, 0], abs=1e-12)


def test_recipes_are_checked_and_the_papers_is_the_papers():
    paper, other = RECIPES["paper"], RECIPES["paper_128"]
    assert (paper.epochs, paper.batch_size, paper.lr, paper.momentum, paper.weight_decay) == (200, 32, 0.01, 0.9, 5e-4)
    assert (paper.optimiser, paper.schedule, paper.step_size, paper.gamma) == ("sgd", "step", 50, 0.1)
    assert paper.augment and not (paper.nesterov or paper.warmup or paper.mixup or paper.adversary)
    assert dataclasses.replace(paper, batch_size=128, lr=0.1) == other
    for name in ("optimiser", "schedule", "precision"):
        with pytest.raises(ValueError, match=f"Unknown {name} 'none'"):
            dataclasses.replace(paper, **{name: "none"})
    for name in ("epochs", "batch_size", "lr"):
        with pytest.raises(ValueError, match=f"expected {name} > 0, got 0"):
            dataclasses.replace(paper, **{name: 0})
    assert Adversary(steps=7) == Adversary(7, eps=8 / 255, step_size=2 / 255)
    with pytest.raises(ValueError, match="Unknown mode 'Eval'. Available: train, eval"):
        Adversary(3, mode="Eval")
    for wrong in ({"steps": -2}, {"steps": 3, "eps": 8}, {"steps": 3, "eps": 0}, {"steps": 3, "step_size": -1}):
        with pytest.raises(ValueError, match="a radius of 8 levels is 8/255"):
            Adversary(**wrong)


def test_a_loss_that_is_not_finite_stops_with_step_and_advice():
    with pytest.raises(Diverged, match="smaller learning rate") as caught:
        loop.train(run(recipe=dataclasses.replace(SMALL, lr=1e6, epochs=9)))
    assert caught.value.epoch * 6 + caught.value.step > 0
    assert captured.train([run(recipe=dataclasses.replace(SMALL, lr=1e6, epochs=9))], "cpu")[0].step == caught.value.step


def test_training_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    loop.train(run())
    assert torch.equal(before, torch.get_rng_state())


def test_checkpoints_know_a_recipe_from_before_attacks_had_a_mode():
    made = [run(recipe=dataclasses.replace(SMALL, adversary=Adversary(3, mode=mode))) for mode in MODES]
    assert "mode" not in made[0].recipe.plain()["adversary"] and made[1].recipe.plain()["adversary"]["mode"] == "eval"
    assert made[0].fingerprint != made[1].fingerprint


def test_a_loss_that_becomes_infinite_ends_the_run_where_it_did_so():
    class Explodes(SquareLoss):
        calls = 0

        def forward(self, outputs, target):
            self.calls += 1
            return super().forward(outputs, target) * (float("inf") if self.calls == 9 else 1.0)

    falling = dataclasses.replace(SMALL, schedule="linear")
    with pytest.raises(loop.Diverged) as found:
        loop.train(run(loss=Explodes(), recipe=falling))
    steps, rates = 100 // 16, falling.lrs(1, 100 // 16)
    assert (found.value.epoch, found.value.step, found.value.lr) == (1, 8 - steps, rates[8 - steps])
    assert [row.epoch for row in found.value.curve] == [0]
    copied = pickle.loads(pickle.dumps(found.value))  # as it leaves a worker process
    assert vars(copied) == vars(found.value) and str(copied) == str(found.value)


def test_frozen_parameters_stay_as_they_are():
    one = run()
    first = next(one.network.parameters()).requires_grad_(False)
    before = first.clone()
    loop.train(one)
    assert torch.equal(first, before)


def test_a_run_says_what_it_is_made_of():
    with pytest.raises(TypeError, match=r"expected loss to be a loss of squareloss, .* got CrossEntropyLoss\(\)"):
        run(loss=nn.CrossEntropyLoss())
    with pytest.raises(TypeError, match=r"expected recipe to be a Recipe, such as RECIPES\[\"fast\"\], got 'fast'"):
        run(recipe="fast")
    with pytest.raises(TypeError, match=r"expected path to be a pathlib\.Path, got 'a\.safetensors'"):
        run(path="a.safetensors")


def test_outputs_of_bytes_in_eval_mode():
    net, (x, _) = tiny().train(), images()
    got = loop.outputs_of(net, x, batch=30)
    assert net.training
    torch.testing.assert_close(got, net.eval()(x.float() / 255), rtol=1e-4, atol=1e-5)
    assert loop.outputs_of(nn.Linear(5, 2).bfloat16(), torch.rand(4, 5).bfloat16()).dtype == torch.float32


def test_mlp_on_tables_trains():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(200, 5, generator=g)
    y = (x[:, 0] > 0).long()
    one = Run(MLP(5, (16,), 2, generator=g), SquareLoss(), dataclasses.replace(SMALL, epochs=20), 0, x, y)
    assert loop.train(one)[-1].train_accuracy > 0.95
