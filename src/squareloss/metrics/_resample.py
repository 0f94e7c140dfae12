"""The bootstrap. A replicate is a row of counts: how often each sample was drawn.

Every metric here is a function of such counts, so that a thousand replicates are a few matrix products and scatters instead
of a thousand passes over the predictions; and each replicate equals the metric of the resampled set itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

# from counts (R, N), float64, to named values (R,)
Family = Callable[[Tensor], dict[str, Tensor]]

BLOCK = 2**19  # counts held at once: 4 MB, fastest at N = 10,000
MANY = 2**22  # and where that is fewer than 16 replicates, since each block costs a pass over the predictions


def counts(samples: int, replicates: int, seed: int) -> Iterator[Tensor]:
    """`replicates` draws of N samples with replacement, as counts (R_block, N) in float64, block by block.

    They are drawn on the CPU, so that a seed means the same samples on every device, whatever the block.
    """
    generator = torch.Generator().manual_seed(int(seed))
    block = _block(samples, replicates)
    one = torch.ones(1, 1, dtype=torch.float64)
    for start in range(0, replicates, block):
        rows = min(block, replicates - start)
        drawn = torch.randint(samples, (rows, samples), generator=generator)
        yield torch.zeros(rows, samples, dtype=torch.float64).scatter_add_(1, drawn, one.expand(rows, samples))


def estimate(families: Sequence[Family], samples: int, device: torch.device) -> dict[str, float]:
    """The metrics of the samples as they are: every count one."""
    once = torch.ones(1, samples, dtype=torch.float64, device=device)
    return {name: float(value) for family in families for name, value in family(once).items()}


def replicate(
    families: Sequence[Family], samples: int, device: torch.device, replicates: int, seed: int, progress: bool = False
) -> dict[str, Tensor]:
    """The metrics of `replicates` resampled sets, (R,) each."""
    if replicates < 2:
        raise ValueError(f"expected bootstrap=0 for no interval or 2 replicates and more, got {replicates}; 1000 is usual")
    blocks: list[dict[str, Tensor]] = []
    for rows in _tracked(counts(samples, replicates, seed), samples, replicates, progress):
        rows = rows.to(device)
        blocks.append({name: value for family in families for name, value in family(rows).items()})
    return {name: torch.cat([block[name] for block in blocks]) for name in blocks[0]}


def basic(value: float, replicates: Tensor) -> tuple[float, float]:
    """The 95% basic bootstrap interval, 2 value - (the 97.5% and 2.5% quantiles), cut at 0, stretched to hold the value.

    Calibration errors are biased upwards, since noise counts as error, and replicates, which have the noise twice, doubly so:
    their plain quantiles may lie above everything plausible. The basic interval takes that bias off once.
    """
    low, high = (2 * value - q for q in _quantiles(replicates))
    return max(0.0, min(low, value)), max(high, value)


def centred(value: float, replicates: Tensor) -> tuple[float, float]:
    """The 95% basic interval of an unbiased estimate: replicates count by their distance to their own mean."""
    low, high = (value + float(replicates.mean()) - q for q in _quantiles(replicates))
    return low, high


def _quantiles(replicates: Tensor) -> list[float]:
    ends: list[float] = torch.quantile(replicates, replicates.new_tensor([0.975, 0.025])).tolist()
    return ends


def _tracked(blocks: Iterator[Tensor], samples: int, replicates: int, progress: bool) -> Iterator[Tensor]:
    if not progress:
        return blocks
    from rich.progress import track

    return iter(track(blocks, "bootstrap", total=-(-replicates // _block(samples, replicates))))


def _block(samples: int, replicates: int) -> int:
    return max(1, min(replicates, max(BLOCK // samples, min(16, MANY // samples))))
