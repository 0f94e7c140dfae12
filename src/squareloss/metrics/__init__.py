"""How good probabilities are: calibration errors, proper scores and accuracy, of tensors, with intervals.

Every metric takes probabilities or raw eta (N, K) and labels (N,) and returns a `Metric`, a float with an interval beside it.
`evaluate` gives all of them. Raw eta may leave [0, 1]: each metric says what it makes of that, and the share outside is on
every result. `plots` has reliability diagrams.
"""

from squareloss.metrics._binned import Reliability, classwise_ece, debiased_ece, ece, ece_equal_mass, reliability
from squareloss.metrics._evaluate import evaluate
from squareloss.metrics._pointwise import accuracy, brier, linf_calibration_error, nll, wilson
from squareloss.metrics._results import Evaluation, Metric
from squareloss.metrics._smooth import smooth_ece

__all__ = [
    "Evaluation",
    "Metric",
    "Reliability",
    "accuracy",
    "brier",
    "classwise_ece",
    "debiased_ece",
    "ece",
    "ece_equal_mass",
    "evaluate",
    "linf_calibration_error",
    "nll",
    "reliability",
    "smooth_ece",
    "wilson",
]
