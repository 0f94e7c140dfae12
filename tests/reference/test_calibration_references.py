"""Metrics and calibrators against netcal, torchmetrics, scikit-learn, relplot and uncertainty-calibration.

They agree on valid probabilities away from the edges of bins; where they do not, closed forms decide.
"""

from __future__ import annotations

import numpy as np
import pytest
import sklearn
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.metrics import accuracy_score, brier_score_loss, log_loss

from squareloss import metrics
from squareloss.calibrators import Temperature

netcal_metrics = pytest.importorskip("netcal.metrics")
torchmetrics = pytest.importorskip("torchmetrics.functional.classification")

VERSION = tuple(int(part) for part in sklearn.__version__.split(".")[:2])
newer = pytest.mark.skipif(VERSION < (1, 8), reason="scikit-learn has it from 1.8 on")


def draw(samples, classes, *, seed=0, sharpness=1.3):
    g = torch.Generator().manual_seed(seed)
    z = torch.randn(samples, classes, generator=g, dtype=torch.float64) * 2
    labels = torch.multinomial(z.softmax(1), 1, generator=g).squeeze(1)
    return sharpness * z, labels


@pytest.mark.parametrize("bins", [5, 15])
@pytest.mark.parametrize("classes", [2, 10])
def test_ece_of_netcal_and_torchmetrics(classes, bins):
    z, y = draw(3000, classes)
    p = z.softmax(1)
    ours = float(metrics.ece(p, y, bins=bins))
    theirs = float(torchmetrics.multiclass_calibration_error(p, y, num_classes=classes, n_bins=bins))
    assert ours == pytest.approx(theirs, abs=1e-6)  # it computes in float32
    if classes > 2:  # of two columns netcal reads the second
        assert ours == pytest.approx(netcal_metrics.ECE(bins).measure(p.numpy(), y.numpy()), abs=1e-12)


def test_equal_mass_of_netcal():
    z, y = draw(3000, 10)  # divisible by the bins, no ties: its quantiles lie between our bins
    p = z.softmax(1)
    theirs = netcal_metrics.ECE(15, equal_intervals=False).measure(p.numpy(), y.numpy())
    assert metrics.ece_equal_mass(p, y) == pytest.approx(theirs, abs=1e-12)


def test_torchmetrics_puts_confidence_one_into_a_bin_of_its_own():
    p = torch.tensor([[1.0, 0.0], [0.96, 0.04]], dtype=torch.float64)
    y = torch.tensor([0, 1])
    theirs = torchmetrics.multiclass_calibration_error(p, y, num_classes=2, n_bins=15)
    assert float(theirs) == pytest.approx(0.96 / 2)  # |1 - 1| / 2 + |0 - .96| / 2
    assert metrics.ece(p, y) == pytest.approx(0.98 - 0.5)  # one bin (14/15, 1]: confidence .98, accuracy 1/2


def test_torchmetrics_softmaxes_raw_eta_and_we_do_not():
    eta = torch.tensor([[1.1, -0.1], [0.9, 0.1]], dtype=torch.float64)
    y = torch.tensor([0, 0])
    theirs = float(torchmetrics.multiclass_calibration_error(eta, y, num_classes=2, n_bins=15))
    softmax = float(torchmetrics.multiclass_calibration_error(eta.softmax(1), y, num_classes=2, n_bins=15))
    assert theirs == softmax > 0.2
    ours = metrics.ece(eta, y)
    assert (float(ours), ours.outside) == (pytest.approx(0.05), 0.5)


def test_scores_of_scikit_learn():
    z, y = draw(2000, 6)
    p = z.softmax(1)
    assert metrics.nll(p, y) == pytest.approx(log_loss(y, p), rel=1e-12)
    assert metrics.accuracy(p, y) == pytest.approx(accuracy_score(y, p.argmax(1)))
    binary = torch.stack([1 - p[:, 0], p[:, 0]], 1)
    hit = (y == 0).long()
    assert metrics.brier(binary, hit) == pytest.approx(2 * brier_score_loss(hit, p[:, 0]), rel=1e-12)
    assert metrics.nll(binary, hit) == pytest.approx(log_loss(hit, p[:, 0]), rel=1e-12)


@newer
def test_multiclass_brier_of_scikit_learn():
    z, y = draw(2000, 6)
    p = z.softmax(1)
    theirs = brier_score_loss(y, p, scale_by_half=False, labels=list(range(6)))
    assert metrics.brier(p, y) == pytest.approx(theirs, rel=1e-12)


def test_debiased_and_classwise_of_uncertainty_calibration():
    calibration = pytest.importorskip("calibration", reason="uncertainty-calibration is not installed")
    from calibration import utils

    z, y = draw(3000, 8)
    p = z.softmax(1)
    pn, yn = p.numpy(), y.numpy()
    theirs = calibration.lower_bound_scaling_top_ce(pn, yn, p=2, debias=True, num_bins=15, binning_scheme=utils.get_equal_bins)
    assert metrics.debiased_ece(p, y) == pytest.approx(theirs, abs=1e-12)
    theirs = calibration.lower_bound_scaling_ce(
        pn, yn, p=1, debias=False, num_bins=15, binning_scheme=utils.get_equal_prob_bins, mode="marginal"
    )
    assert metrics.classwise_ece(p, y) == pytest.approx(theirs, abs=1e-12)


@pytest.mark.parametrize("sharpness", [0.6, 1.0, 1.3, 3.0])
def test_smooth_ece_of_relplot(sharpness):
    relplot = pytest.importorskip("relplot")
    z, y = draw(4000, 5, sharpness=sharpness)
    p = 0.9 * z.softmax(1) + 0.1 / 5  # away from 1, see below
    confidence, correct = relplot.multiclass_logits_to_confidences(p.numpy(), y.numpy(), probs=True)
    ours = metrics.smooth_ece(p, y)
    assert ours == pytest.approx(relplot.smECE(confidence, correct), abs=1.5e-3)  # its bandwidth is a multiple of 1/1024
    assert ours == pytest.approx(relplot.smECE_sigma(confidence, correct, ours.details["bandwidth"]), rel=2e-3)


def test_relplot_loses_half_of_what_lies_at_one():
    relplot = pytest.importorskip("relplot")
    confidence = torch.tensor([1.0, 0.7], dtype=torch.float64).repeat_interleave(500)
    wrong = torch.zeros(1000, dtype=torch.long)
    wrong[:100] = wrong[500:650] = 1  # accuracies 0.8 at 1.0 and 0.7 at 0.7
    p = torch.stack([confidence, 1 - confidence], 1)
    # residuals of one sign: every kernel that keeps mass gives their mean
    assert metrics.smooth_ece(p, wrong) == pytest.approx(0.1, abs=1e-9)
    assert relplot.smECE(confidence.numpy(), 1.0 - wrong.numpy()) < 0.08


class Scores(ClassifierMixin, BaseEstimator):
    """A classifier of scikit-learn whose decision function is its input."""

    def fit(self, x, y):
        self.classes_ = np.unique(y)
        return self

    def decision_function(self, x):
        return x

    def predict(self, x):
        return self.classes_[x.argmax(1)]


@newer
def test_temperature_of_scikit_learn():
    z, y = draw(1000, 5, sharpness=2.0)
    x, labels = z.numpy(), y.numpy()
    theirs = CalibratedClassifierCV(FrozenEstimator(Scores().fit(x, labels)), method="temperature", cv=2).fit(x, labels)
    beta = theirs.calibrated_classifiers_[0].calibrators[0].beta_
    assert Temperature().fit(z, y).temperature_ == pytest.approx(1 / float(beta), rel=1e-4)


@pytest.mark.filterwarnings("ignore")  # of pyro, inside netcal
def test_temperature_of_netcal():
    from netcal.scaling import TemperatureScaling

    z, y = draw(2000, 5, sharpness=2.0)
    p = z.softmax(1)
    scaling = TemperatureScaling()
    scaling.fit(p.numpy(), y.numpy())
    theirs = scaling.transform(p.numpy())
    ours = Temperature().fit(z, y).transform(z)
    assert ours.numpy() == pytest.approx(theirs, abs=2e-3)
    nll = [log_loss(y, q) for q in (ours.numpy(), theirs)]
    assert nll[0] <= nll[1] + 1e-9
