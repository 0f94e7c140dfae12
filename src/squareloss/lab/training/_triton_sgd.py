"""A step of SGD on flat buffers as one Triton kernel, which reads each gradient where it lies.

Laying the gradients side by side first would take as long as the step itself.
"""
# ruff: noqa: SIM108
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False, warn-unused-ignores=False

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from squareloss.lab.training.recipes import Recipe

GRAIN = 8  # tensors start at multiples of it in the buffers, so that reads are wide
BLOCK = 2048  # entries of a program, for four warps


@triton.jit
def _move(  # type: ignore[no-untyped-def]
    gradient, flat, moment, copy, index, mask, lr, weight_decay, momentum, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr
):  # fmt: skip
    w = tl.load(flat + index, mask=mask, other=0.0)
    g = tl.load(gradient + index, mask=mask, other=0.0).to(tl.float32) + weight_decay * w
    if MOMENTUM:
        m = tl.load(moment + index, mask=mask, other=0.0) * momentum + g
        tl.store(moment + index, m, mask=mask)
        if NESTEROV:
            g = g + momentum * m
        else:
            g = m
    w = w - lr * g
    tl.store(flat + index, w, mask=mask)
    tl.store(copy + index, w.to(tl.bfloat16), mask=mask)


@triton.jit
def _step(  # type: ignore[no-untyped-def]
    table, pointers, flat, moment, copy, lr, weight_decay, momentum,
    MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, GRAIN: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = table + 4 * tl.program_id(0)
    gradient = tl.load(pointers + tl.load(row)).to(tl.pointer_type(tl.bfloat16))
    gradient = tl.multiple_of(gradient, 16) + tl.load(row + 1).to(tl.int64) * GRAIN
    start = tl.load(row + 2).to(tl.int64) * GRAIN
    count = tl.load(row + 3)
    whole = count // GRAIN * GRAIN  # the compiler sees that it is a multiple, and reads so many entries at once
    rate = tl.load(lr)
    index = tl.arange(0, BLOCK)
    _move(gradient, flat + start, moment + start, copy + start, index, index < whole, rate, weight_decay, momentum,
          MOMENTUM, NESTEROV)  # fmt: skip
    if whole < count:
        rest = whole + tl.arange(0, GRAIN)
        _move(gradient, flat + start, moment + start, copy + start, rest, rest < count, rate, weight_decay, momentum,
              MOMENTUM, NESTEROV)  # fmt: skip


class Fused:
    """SGD for tensors of these sizes, which begin at these places, multiples of `GRAIN`, of flat buffers on a GPU.

    It may be captured in a CUDA graph, once: every replay reads the addresses of the gradients anew, from pinned memory.
    """

    def __init__(self, sizes: Sequence[int], starts: Sequence[int], device: torch.device) -> None:
        rows = [
            (tensor, first // GRAIN, (start + first) // GRAIN, min(BLOCK, size - first))
            for tensor, (size, start) in enumerate(zip(sizes, starts, strict=True))
            for first in range(0, size, BLOCK)
        ]
        self.table = torch.tensor(rows, dtype=torch.int32, device=device)
        self.pointers = torch.zeros(len(sizes), dtype=torch.int64, device=device)
        self.pinned = torch.zeros(len(sizes), dtype=torch.int64).pin_memory()  # now: not while a graph is captured
        self.captured = False

    def __call__(
        self, flat: Tensor, moment: Tensor, copy: Tensor, gradients: Sequence[Tensor], lr: Tensor, recipe: Recipe
    ) -> None:
        """Move `flat`, `moment` and the bfloat16 `copy` by the gradients, each of shape (size,); lr has shape ()."""
        gradients = [g.to(torch.bfloat16).contiguous() for g in gradients]  # as they are, as a rule
        gradients = [g if g.data_ptr() % 16 == 0 else g.clone() for g in gradients]
        addresses = torch.tensor([g.data_ptr() for g in gradients])
        with torch.cuda.device(flat.device):
            if torch.cuda.is_current_stream_capturing():
                if self.captured:
                    raise RuntimeError("expected to be captured once: the first graph would read the addresses of the second")
                self.captured = True
                self.pointers.copy_(self.pinned.copy_(addresses), non_blocking=True)
            else:
                self.pointers.copy_(addresses)
            _step[(len(self.table),)](
                self.table, self.pointers, flat, moment, copy, lr, recipe.weight_decay, recipe.momentum,
                MOMENTUM=recipe.momentum != 0, NESTEROV=recipe.nesterov, GRAIN=GRAIN, BLOCK=BLOCK,
            )  # fmt: skip
