"""The kernels against neural-tangents, whose values are stored: it needs an environment of its own."""

import json
from pathlib import Path

import pytest
import torch

from squareloss.ntk import NTK, TwoLayerNTK

STORED = json.loads(Path(__file__).with_name("neural_tangents.json").read_text())


@pytest.mark.parametrize("row", STORED["rows"], ids=lambda row: f"d={len(row['x'][0])}")
def test_kernels_are_those_of_neural_tangents(row):
    x = torch.tensor(row["x"], dtype=torch.float64)
    for kernel, name in ((NTK(), "ntk"), (TwoLayerNTK(), "two_layer_ntk")):
        expected = torch.tensor(row[name], dtype=torch.float64)
        # one pair is 1e-3 apart, where rounding of a cosine counts a thousandfold, there as here
        torch.testing.assert_close(kernel.matrix(x), expected, atol=1e-11, rtol=0)
        apart = (x @ x.T).abs() < 0.999
        torch.testing.assert_close(kernel.matrix(x)[apart], expected[apart], atol=1e-14, rtol=0)
        assert int(apart.sum()) >= 18  # most pairs
