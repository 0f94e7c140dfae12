"""Random ReLU features: the hidden layer of a wide network that is never trained."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import NotFittedError

from squareloss import _checks
from squareloss import _estimator_inputs as inputs


class RandomFeatures(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """sqrt(2 / width) relu(W z + b) with random W and b, beside the inputs z: the finite cousin of the neural tangent kernel.

    z is x less its mean, divided by one number, so that |z|^2 is d on average; W has entries N(0, 1/d) and b has N(0, bias^2).
    As the width grows, inner products of the features tend to the kernel of a network whose last layer alone is trained.
    Ridge on them is a nonlinear classifier in closed form: `make_pipeline(RandomFeatures(2048), RidgeProbe())`.

    Arguments:
        width: how many features.
        bias: the standard deviation of b.
        keep: whether the inputs z themselves come first, so that a linear map loses nothing.
        random_state: the seed of W and b, or a `RandomState` or None to draw one; the weights do not depend on the dtype or the
            device of the inputs.

    `transform` gives (n, width), or (n, d + width) with `keep`; float32 for float32 inputs, else float64; tensors for tensors.
    """

    def __init__(self, width: int = 1000, *, bias: float = 0.5, keep: bool = True, random_state: Any = 0) -> None:
        self.width = width
        self.bias = bias
        self.keep = keep
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> RandomFeatures:
        """Draw W and b, and take the mean and the scale of X (n, d)."""
        _checks.whole("width", self.width)
        x = inputs.tensor(inputs.features(self, X, reset=True)).double()
        d = x.shape[1]
        self.mean_ = x.mean(0).cpu()
        self.scale_ = float((x - x.mean(0)).square().mean().sqrt()) or 1.0
        generator = torch.Generator().manual_seed(inputs.seed(self.random_state))
        self.weight_ = torch.randn(self.width, d, generator=generator, dtype=torch.float64) / d**0.5
        self.bias_ = self.bias * torch.randn(self.width, generator=generator, dtype=torch.float64)
        self._n_features_out = self.width + d * self.keep
        return self

    def transform(self, X: Any) -> Any:
        """The features of X (n, d)."""
        if not hasattr(self, "weight_"):
            raise NotFittedError("these RandomFeatures are not fitted yet; call fit first")
        x = inputs.tensor(inputs.features(self, X, reset=False))
        x = x if x.dtype == torch.float32 else x.double()
        z = (x - self.mean_.to(x)) / self.scale_
        hidden = torch.addmm(self.bias_.to(x), z, self.weight_.T.to(x)).relu_().mul_((2 / self.width) ** 0.5)
        return inputs.in_kind(torch.cat([z, hidden], 1) if self.keep else hidden, X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
