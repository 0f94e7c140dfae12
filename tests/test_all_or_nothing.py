"""A fit that is refused or interrupted leaves the model from before, to the last bit, or none; RidgeProbe has its own file."""

import itertools
import pickle

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from squareloss._mlp_training import Trainer
from squareloss.estimators import SquareLossClassifier
from squareloss.ntk import NTKClassifier, classifier


def samples(n=90, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 3))
    return x, np.digitize(x[:, 0], [-0.5, 0.5])


def network(**options):
    return SquareLossClassifier(**{"hidden": (8,), "max_epochs": 5, "batch_size": 30, "random_state": 0, **options})


def state(model):
    """All attributes but the options, as bytes."""
    return {name: pickle.dumps(value) for name, value in vars(model).items() if name not in model.get_params()}


def interrupt(monkeypatch, owner, name, call):
    """Ctrl-C at the end of such a call of the function."""
    original, count = getattr(owner, name), itertools.count(1)

    def method(*arguments, **options):
        answer = original(*arguments, **options)
        if next(count) == call:
            raise KeyboardInterrupt
        return answer

    monkeypatch.setattr(owner, name, method)


REFUSED = [  # options, y, error
    ({"learning_rate": 1e30}, None, "expected a finite training loss"),
    ({"validation_fraction": 0.999, "early_stopping": True}, None, "expected validation_fraction to leave samples"),
    ({"class_weight": {0: 0.0}}, None, "expected positive class weights"),
    ({}, np.zeros(90), "expected two classes or more"),
]


@pytest.mark.parametrize(("options", "labels", "message"), REFUSED)
@pytest.mark.parametrize("begun", ["", "fit", "partial_fit"])
def test_a_network_that_is_refused_is_the_one_from_before(begun, options, labels, message):
    x, y = samples()
    model = network()
    if begun:
        getattr(model, begun)(x, y, **{"classes": [0, 1, 2]} if begun == "partial_fit" else {})
    before = state(model)
    with pytest.raises(ValueError, match=message):
        model.set_params(**options).fit(2 * x[:, :2] + 5, y if labels is None else labels)
    assert state(model) == before
    if not begun:
        with pytest.raises(NotFittedError):
            model.score(x, y)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(("step", "call"), [("step", 1), ("step", 3), ("epoch", 1), ("write_back", 1)])
def test_a_network_that_is_interrupted_is_the_one_from_before(monkeypatch, method, step, call):
    x, y = samples()
    classes = {"classes": [0, 1, 2]} if method == "partial_fit" else {}
    fresh, model, same = network(), *(network().partial_fit(x, y, classes=[0, 1, 2]) for _ in range(2))
    for interrupted in (fresh, model):
        before = state(interrupted)
        with monkeypatch.context() as patch:
            interrupt(patch, Trainer, step, call)
            with pytest.raises(KeyboardInterrupt):
                getattr(interrupted, method)(x, y, **classes)
        assert state(interrupted) == before
    with pytest.raises(NotFittedError):
        fresh.predict(x)
    one, other = (m.partial_fit(x, y) for m in (model, same))  # Adam goes on as if nothing had been
    for p, q in zip(one.network_.parameters(), other.network_.parameters(), strict=True):
        assert torch.equal(p, q)
    assert one.loss_curve_ == other.loss_curve_


@pytest.mark.parametrize("begun", [False, True])
def test_a_partial_fit_that_diverges_is_refused_as_a_whole(begun):
    x, y = samples()
    model = network()
    if begun:
        model.partial_fit(x, y, classes=[0, 1, 2])
    before = state(model)
    with pytest.raises(ValueError, match="expected a finite training loss"):
        model.set_params(learning_rate=1e30).partial_fit(x, y, classes=[0, 1, 2])
    assert state(model) == before


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    ("options", "labels", "error"),
    [
        ({}, ["other"] * 90, ValueError),
        ({"memory_gb": 1e-9}, None, MemoryError),
        ({"memory_gb": 1e-9, "solver": "iterative", "random_state": 7}, None, MemoryError),
        ({"mu": 0.0}, None, ValueError),  # rows are repeated
        ({"kernel": "none"}, None, TypeError),
    ],
)
def test_a_kernel_fit_that_is_refused_is_the_one_from_before(begun, options, labels, error):
    x, y = samples()
    model = NTKClassifier(1.0)
    if begun:
        model.fit(x, y)
    before = state(model)
    other = np.repeat(100 * x[:45, :2] + 5, 2, axis=0)
    with pytest.raises(error):
        model.set_params(**options).fit(other, y[::-1] + 3 if labels is None else labels)
    assert state(model) == before
    if not begun:
        with pytest.raises(NotFittedError):
            model.predict(x)


@pytest.mark.parametrize("begun", [False, True])
def test_a_kernel_fit_that_is_interrupted_is_the_one_from_before(monkeypatch, begun):
    x, y = samples()
    model = NTKClassifier(1.0)
    if begun:
        model.fit(x, y)
    before = state(model)
    interrupt(monkeypatch, classifier, "fit_curve", 1)  # the last thing it does
    with pytest.raises(KeyboardInterrupt):
        model.fit(x[::-1], y)
    assert state(model) == before
