"""Kernels as neural-tangents computes them, for the tests to compare with.

    python -m venv nt && nt/bin/pip install neural-tangents==0.6.5 jax==0.4.30 jaxlib==0.4.30 tf2jax==0.3.6
    nt/bin/python benchmarks/ntk_reference.py

It needs an environment of its own: neural-tangents 0.6.5 does not import with a newer jax. The network is
Dense - ReLU - Dense without biases, W_std = 1, in float64; inputs of the sphere are multiplied by sqrt(d), by which its first
layer divides. Its NTK is that of both layers trained, and less its NNGP that of the first layer alone, the paper's h.
The values are in tests/reference/neural_tangents.json.
"""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np

jax.config.update("jax_enable_x64", True)

import neural_tangents as nt  # noqa: E402
from neural_tangents import stax  # noqa: E402

OUT = Path(__file__).resolve().parent.parent / "tests" / "reference" / "neural_tangents.json"


def points(n: int, d: int, seed: int) -> np.ndarray:
    """n points of the sphere in d dimensions, of which the last two are near each other, and one has its opposite there."""
    x = np.random.default_rng(seed).standard_normal((n, d))
    x[-1] = x[-2] + 1e-3 * x[-1]
    x[1] = -x[0]
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def main() -> None:
    network = stax.serial(stax.Dense(1, W_std=1.0, b_std=None), stax.Relu(), stax.Dense(1, W_std=1.0, b_std=None))
    rows = []
    for d in (2, 3, 10):
        x = points(6, d, seed=d)
        kernels = network[2](x * d**0.5, None, ("nngp", "ntk"))
        both, outer = np.asarray(kernels.ntk), np.asarray(kernels.nngp)
        rows.append({"x": x.tolist(), "two_layer_ntk": both.tolist(), "ntk": (both - outer).tolist()})
    facts = {"made by": "python benchmarks/ntk_reference.py", "neural_tangents": nt.__version__, "jax": jax.__version__}
    OUT.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n")
    print(f"wrote {OUT}")


if __name__ == "__main__":
    main()
