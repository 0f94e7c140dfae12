"""The losses as modules: called as nn.CrossEntropyLoss is, without state, and each with the link that reads its outputs."""

import copy
import inspect
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import squareloss
from squareloss import CrossEntropy, Focal, OneHot, Simplex, Softmax, SoftmaxBrier, SquareLoss, Squentropy, functional
from squareloss.codings import Link
from squareloss.lab.studies.images import plan
from squareloss.losses import DEFAULTS
from squareloss.models import MLP

K = 5
LOSSES = {
    "square": (SquareLoss, functional.square_loss),
    "cross-entropy": (CrossEntropy, functional.cross_entropy),
    "squentropy": (Squentropy, functional.squentropy),
    "brier": (SoftmaxBrier, functional.softmax_brier),
    "focal": (Focal, functional.focal),
}
every_loss = pytest.mark.parametrize(("module", "function"), LOSSES.values(), ids=LOSSES.keys())


def batch(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(7, K, generator=generator, dtype=dtype), torch.randint(K, (7,), generator=generator)


def options():
    return {
        "weight": torch.linspace(0.5, 2, K),
        "ignore_index": 1,
        "label_smoothing": 0.1,
        "reduction": "sum",
        "validate": True,
    }


@every_loss
def test_a_module_is_its_function(module, function):
    f, labels = batch()
    labels[3] = -100  # torch's default for what to ignore
    assert_close(module()(f, labels), function(f, labels))
    assert_close(module()(f, labels), function(f[labels >= 0], labels[labels >= 0]))
    assert_close(module(**options())(f, labels.clamp_min(0)), function(f, labels.clamp_min(0), **options()))
    changed = module()
    changed.reduction = "none"  # read at each call, as torch's losses do
    assert_close(changed(f, labels), function(f, labels, reduction="none"))


@every_loss
def test_validate_reads_labels_where_they_are_else_left_alone(module, function):
    f, labels = batch()
    labels[2] = K
    with pytest.raises(ValueError, match="expected labels in"):
        torch.func.grad(lambda f: module(validate=True)(f, labels))(f)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):  # torch's own
        torch.func.grad(lambda f: module()(f, labels))(f)


def test_arguments_of_their_own():
    f, labels = batch()
    assert_close(SquareLoss(OneHot(5.0, 15.0), 2.0)(f, labels), functional.square_loss(f, labels, OneHot(5.0, 15.0), scale=2.0))
    assert_close(Focal(0.5)(f, labels), functional.focal(f, labels, gamma=0.5))


@every_loss
def test_every_keyword_of_torchs_cross_entropy(module, function):
    ours = set(inspect.signature(function).parameters)
    theirs = set(inspect.signature(nn.CrossEntropyLoss).parameters) - {"size_average", "reduce"}  # long deprecated
    assert theirs <= ours
    f, labels = batch()
    torchs = nn.CrossEntropyLoss(**{k: v for k, v in options().items() if k != "validate"})
    assert module(**options())(f, labels).shape == torchs(f, labels).shape
    if module is CrossEntropy:
        assert_close(module(**options())(f, labels), torchs(f, labels))


@every_loss
def test_no_parameters_and_no_state(module, function):
    loss = module(**options())
    assert not list(loss.parameters())
    assert not loss.state_dict()
    plain = module()
    plain.load_state_dict(loss.state_dict())  # checkpoints of a model that holds a loss stay the same
    holder = nn.Sequential(nn.Linear(3, K), loss)
    assert set(holder.state_dict()) == {"0.weight", "0.bias"}


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 1.0, 5.0])])
def test_a_checkpoint_that_held_a_weighted_cross_entropy_loads(weight):
    before = nn.Sequential(nn.Linear(2, 3), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))).state_dict()
    holder = nn.Sequential(nn.Linear(2, 3), SquareLoss(weight=weight))
    holder.load_state_dict(before)
    assert torch.equal(holder[0].weight, before["0.weight"]) and holder[1].weight is weight
    assert "1.weight" in before


@every_loss
def test_weights_move_with_the_module(module, function):
    loss = module(weight=torch.linspace(0.5, 2, K))
    assert loss.to(torch.float64).weight.dtype == torch.float64
    assert loss.to("meta").weight.device.type == "meta"


@every_loss
def test_weights_of_another_dtype(module, function):
    f, labels = batch()
    weight = torch.linspace(0.5, 2, K)
    expected = module(weight=weight)(f, labels)
    assert_close(module(weight=weight.double())(f, labels), expected)
    assert_close(module(weight=weight)(f.double(), labels).float(), expected)


@every_loss
def test_copies_and_pickles(module, function):
    f, labels = batch()
    loss = module(**options())
    for twin in (copy.deepcopy(loss), pickle.loads(pickle.dumps(loss))):
        assert_close(twin(f, labels), loss(f, labels))
        assert twin.link == loss.link


@every_loss
def test_links_read_the_outputs(module, function):
    loss = module(weight=torch.linspace(0.5, 2, K), label_smoothing=0.1)
    assert isinstance(loss.link, Link)
    f, _ = batch()
    p = loss.probabilities(f)
    assert_close(p, loss.link.probabilities(f, weight=loss.weight, label_smoothing=0.1))
    assert_close(p.sum(1), torch.ones(7))
    assert (p - loss.link.probabilities(f)).abs().max() > 0.01
    assert (loss.link == Softmax()) == (module is not SquareLoss)


def test_the_default_reads_as_promised():
    f, _ = batch()
    assert_close(SquareLoss().probabilities(f), squareloss.probabilities(f))
    assert SquareLoss().link == SquareLoss().coding == Simplex()


def test_they_show_what_they_are():
    assert repr(SquareLoss()) == "SquareLoss(Simplex(radius=None, reduced=False), scale=0.5)"
    every = "weight=(5,), ignore_index=1, label_smoothing=0.1, reduction='sum', validate=True"
    assert repr(CrossEntropy(**options())) == f"CrossEntropy(Softmax(), {every})"
    assert repr(Focal(1.5, **options())) == f"Focal(Softmax(), {every}, gamma=1.5)"


@every_loss
def test_losses_that_differ_in_an_option_show_it(module, function):
    for name, value in options().items():
        assert repr(module(**{name: value})) != repr(module())
        assert f"{name}=" in repr(module(**{name: value}))
    assert repr(module(**DEFAULTS)) == repr(module())


def test_texts_that_checkpoints_of_trainings_are_known_by():
    """Word for word what they were when those were written."""
    texts = {
        "CE": "CrossEntropy(Softmax())",
        "SL": "SquareLoss(Simplex(radius=10.0, reduced=False), scale=1.0)",
        "SLr1": "SquareLoss(Simplex(radius=1.0, reduced=False), scale=1.0)",
        "OH1": "SquareLoss(OneHot(k=1.0, M=1.0), scale=1.0)",
        "OH5": "SquareLoss(OneHot(k=5.0, M=15.0), scale=1.0)",
        "OHK": "SquareLoss(OneHot(k=2.0, M=5.0), scale=0.5)",
        "CEsmooth": "CrossEntropy(Softmax(), label_smoothing=0.1)",
        "squentropy": "Squentropy(Softmax())",
    }
    assert {name: str(plan.make_loss(spec(10))) for name, spec in plan.LOSSES.items()} == texts
    assert [str(loss) for loss in (Focal(), Focal(2), SoftmaxBrier())] == [*2 * ["Focal(Softmax())"], "SoftmaxBrier(Softmax())"]


@every_loss
def test_bad_options_are_refused_at_once(module, function):
    with pytest.raises(ValueError, match="Unknown reduction 'batchmean'. Available: mean, sum, none"):
        module(reduction="batchmean")
    with pytest.raises(ValueError, match="label_smoothing"):
        module(label_smoothing=1.5)
    with pytest.raises(TypeError, match="expected label_smoothing to be a number, got 'a'"):
        module(label_smoothing="a")
    with pytest.raises(TypeError, match=r"expected weight as a tensor \(K,\), got list; use torch.tensor\(weight\)"):
        module(weight=[1.0, 2.0])
    with pytest.raises(TypeError, match="expected ignore_index to be an integer, got None; to ignore nothing, leave it out"):
        module(ignore_index=None)
    assert torch.equal(module(ignore_index=np.int64(1))(*batch()), module(ignore_index=1)(*batch()))
    with pytest.raises(ValueError, match=r"expected weight of shape \(5,\), one per class, got \(3,\)"):
        module(weight=torch.ones(3))(*batch())


@pytest.mark.parametrize("coding", [torch.ones(3), 10, "simplex", Simplex, Softmax()])
def test_a_coding_must_be_one(coding):
    with pytest.raises(TypeError, match=r"expected a coding such as Simplex\(\) or OneHot\(k, M\), got"):
        SquareLoss(coding)


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf")])
def test_scale_must_be_positive(scale):
    with pytest.raises(ValueError, match="expected scale > 0 and finite"):
        SquareLoss(scale=scale)


def test_gamma_must_not_be_negative():
    with pytest.raises(ValueError, match="expected a finite gamma >= 0"):
        Focal(-1.0)


def test_training_with_the_swap():
    """One line changed in a plain loop, the learning rate kept: three blobs are learnt, and the probabilities are sharp."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    x = torch.randn(300, 2, generator=generator) + 6 * torch.eye(3, 2)[labels]
    fitted = {}
    for criterion in (nn.CrossEntropyLoss(), SquareLoss()):
        network = MLP(2, (16,), 3, generator=torch.Generator().manual_seed(1))
        optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
        for _ in range(100):
            optimiser.zero_grad()
            criterion(network(x), labels).backward()
            optimiser.step()
        fitted[type(criterion).__name__] = network(x).detach()
    for f in fitted.values():
        assert (f.argmax(1) == labels).float().mean() > 0.98
    p = squareloss.probabilities(fitted["SquareLoss"])
    assert (p - torch.eye(3)[labels]).square().sum(1).mean() < 0.1
