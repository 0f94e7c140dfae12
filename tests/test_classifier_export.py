"""Classifier.export and export_onnx: the probabilities of the exported program are those of the module, at any batch size."""

import importlib.util
import os

import numpy as np
import pytest
import torch
from torch import nn

from squareloss import OneHot, Simplex, Softmax, models
from squareloss.classifier import Classifier, Standardize

EXPORTED = [Simplex(), Simplex(reduced=True), OneHot(k=5, M=15), OneHot(k=2.0, M=5.0), Softmax()]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def inputs(n=7, seed=1):
    return 4 * torch.randn(n, 8, generator=generator(seed))


def make(link):
    g = generator()
    network = models.MLP(8, (16,), 4 if getattr(link, "reduced", False) else 5, generator=g)
    with torch.no_grad():
        network.layers[-1].weight.mul_(8)  # outputs large enough that eta leaves the simplex
    return Classifier(network, link, Standardize(torch.rand(8, generator=g), torch.rand(8, generator=g) + 0.5))


@pytest.mark.parametrize("link", EXPORTED, ids=str)
def test_export_equals_eager_at_every_batch_size(link):
    classifier = make(link).train()
    program = classifier.export(inputs(1))
    assert classifier.training
    for n in (1, 2, 33):
        torch.testing.assert_close(program.module()(inputs(n)), classifier.probabilities(inputs(n)), atol=1e-6, rtol=0)


@pytest.mark.parametrize("link", EXPORTED, ids=str)
def test_onnx_equals_eager_at_every_batch_size(link, tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    classifier = make(link)
    classifier.export_onnx(tmp_path / "model.onnx", inputs(4))
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    assert os.listdir(tmp_path) == ["model.onnx"]
    for n in (1, 4, 65):
        (out,) = session.run(["probabilities"], {"x": inputs(n).numpy()})
        expected = classifier.probabilities(inputs(n)).detach().numpy()
        np.testing.assert_allclose(out, expected, atol=1e-6, rtol=0)
        np.testing.assert_allclose(out.sum(1), 1, atol=1e-6)
    if link != Softmax():
        assert (expected == 0).any(), "the projection had nothing to do"


def test_onnx_of_a_convolutional_network_on_images(tmp_path):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    images = torch.rand(6, 3, 8, 8, generator=generator())
    layers = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)]
    classifier = Classifier(nn.Sequential(*layers), Simplex(), Standardize.from_data(images))
    classifier(images)  # batch statistics
    classifier.export_onnx(tmp_path / "model.onnx", images)
    session = runtime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    for n in (1, 5):
        (out,) = session.run(None, {"x": images[:n].numpy()})
        expected = classifier.eval().probabilities(images[:n]).detach().numpy()
        np.testing.assert_allclose(out, expected, atol=1e-6, rtol=0)


def test_export_is_in_eval_mode_and_gives_each_mode_back():
    network = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    network[2].eval()  # a frozen layer in a network that trains, with batch statistics
    classifier = Classifier(network, Simplex())
    program = classifier.export(inputs(4))
    assert classifier.training
    assert network[1].training
    assert not network[2].training
    torch.testing.assert_close(program.module()(inputs(9)), classifier.eval().probabilities(inputs(9)))


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_onnx_without_its_packages_names_the_extra(package, monkeypatch, tmp_path):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == package else find(name, *rest))
    with pytest.raises(ImportError, match=rf"export_onnx needs {package}; install with: pip install 'squareloss\[onnx\]'"):
        make(Simplex()).export_onnx(tmp_path / "model.onnx", inputs(2))


def test_an_array_is_refused_as_by_the_classifier_itself(tmp_path):
    pytest.importorskip("onnxscript")
    classifier = make(Simplex())
    with pytest.raises(TypeError) as called:
        classifier(inputs(2).numpy())
    for export in (classifier.export, lambda x: classifier.export_onnx(tmp_path / "model.onnx", x)):
        for n in (1, 2):
            with pytest.raises(TypeError) as exported:
                export(inputs(n).numpy())
            assert str(exported.value) == str(called.value)
    assert os.listdir(tmp_path) == []
