"""All metrics at once, sharing one bootstrap."""

from __future__ import annotations

from torch import Tensor

from squareloss.metrics import _inputs, _resample
from squareloss.metrics._binned import Classwise, EqualMass, EqualWidth
from squareloss.metrics._inputs import Predictions
from squareloss.metrics._pointwise import FLOOR, Largest, Means, floor_details, with_wilson
from squareloss.metrics._resample import Family
from squareloss.metrics._results import Evaluation, Metric
from squareloss.metrics._single import build
from squareloss.metrics._smooth import Smooth

ORDER = ("accuracy", "ece", "ece_equal_mass", "debiased_ece", "smooth_ece", "classwise_ece", "brier", "nll")


def evaluate(
    probabilities: Tensor,
    labels: Tensor,
    *,
    eta: Tensor | None = None,
    bins: int = 15,
    bootstrap: int = 1000,
    seed: int = 0,
    progress: bool = False,
) -> Evaluation:
    """Every metric of this package, with 95% intervals from one bootstrap of the samples; Wilson's for the accuracy.

    Give it projected probabilities, or raw eta: then top-label and classwise errors are those of eta clamped to [0, 1], the
    Brier score that of eta itself, and the share outside [0, 1] is reported. A thousand replicates of 10,000 samples of 100
    classes take about half a second on two cores.

    Arguments:
        probabilities: probabilities or raw eta (N, K).
        labels: classes (N,).
        eta: the true class probabilities (N, K), where they are known; adds `linf_calibration_error`.
        bins: bins of the binned errors.
        bootstrap: replicates for the intervals; 0 for none.
        seed: where they come from.
        progress: show how far the bootstrap is.
    """
    predictions = _inputs.read(probabilities, labels)
    families = _families(predictions, bins, eta)
    values = _resample.estimate(families, predictions.samples, predictions.device)
    names = [name for name in (*ORDER, "linf_calibration_error") if name in values]
    drawn: dict[str, Tensor] = {}
    if bootstrap:
        drawn = _resample.replicate(families, predictions.samples, predictions.device, bootstrap, seed, progress)
    return Evaluation(
        metrics={name: _metric(name, values, drawn, predictions, bins) for name in names},
        samples=predictions.samples,
        classes=predictions.values.shape[1],
        outside=predictions.outside,
        outside_mass=predictions.outside_mass,
        bootstrap=int(bootstrap),
        seed=int(seed),
        replicates={name: drawn[name] for name in names if drawn},
    )


def _families(predictions: Predictions, bins: int, eta: Tensor | None) -> list[Family]:
    families: list[Family] = [
        Means(predictions),
        EqualWidth(predictions, bins),
        EqualMass(predictions, bins),
        Smooth(predictions),
        Classwise(predictions, bins),
    ]
    return families if eta is None else [*families, Largest(predictions.values, eta)]


def _metric(name: str, values: dict[str, float], drawn: dict[str, Tensor], predictions: Predictions, bins: int) -> Metric:
    details: dict[str, float] = {}
    if name == "nll":
        details = floor_details(predictions, FLOOR)
    elif name in ("ece", "ece_equal_mass", "debiased_ece", "classwise_ece"):
        details = {"bins": int(bins)}
    result = build(name, values, drawn, predictions.outside, details)
    return with_wilson(result, predictions.samples) if name == "accuracy" else result
