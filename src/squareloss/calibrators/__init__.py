"""Calibrators: maps from scores to probabilities, fitted on held-out scores and labels.

    A = Asinh().fit(scores_held_out, labels_held_out)   # scores (N, K), labels (N,)
    p = A.transform(scores)                             # probabilities (M, K)

Each has `fit(scores, labels)` and `transform(scores)`, and goes to a plain dict and back with `state` and `from_state`. Scores
are the K numbers whose argmax is the class, as `link.scores` gives them: logits of cross-entropy, or simplex or one-hot
outputs of square loss, at any scale. All fits are done in float64; all but that of `Asinh` are convex.
"""

from __future__ import annotations

from typing import Any

from squareloss._checks import choose
from squareloss.calibrators._held_out import NotFitted
from squareloss.calibrators.affine import Affine
from squareloss.calibrators.asinh import Asinh
from squareloss.calibrators.isotonic import Isotonic
from squareloss.calibrators.temperature import Temperature

__all__ = ["CALIBRATORS", "Affine", "Asinh", "Calibrator", "Isotonic", "NotFitted", "Temperature", "from_state"]

Calibrator = Temperature | Affine | Asinh | Isotonic
CALIBRATORS: dict[str, type[Calibrator]] = {
    "temperature": Temperature,
    "affine": Affine,
    "asinh": Asinh,
    "isotonic": Isotonic,
}


def from_state(state: dict[str, Any]) -> Calibrator:
    """The calibrator whose `state()` this is."""
    return CALIBRATORS[choose("calibrator", state.get("kind", ""), CALIBRATORS)].from_state(state)
