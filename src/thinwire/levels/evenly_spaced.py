"""Evenly spaced levels over a range: one expansion, and a rule for the range for each method."""

import torch
from torch import Tensor

from thinwire.kernels import (
    solve_full_range,
    solve_largest_magnitude,
    solve_root_energy,
    solve_within_deviations,
)

__all__ = ["evenly_spaced", "full_range", "largest_magnitude", "root_energy", "within_deviations"]


def evenly_spaced(low: Tensor, high: Tensor, levels: int) -> Tensor:
    """Spread `levels` levels from low to high, float32 `[blocks]` each: float32 `[blocks, levels]`.

    Computed in float64, so ascending after rounding, the ends exact, and the middle of +-m exactly zero.
    """
    fraction = torch.arange(levels, dtype=torch.float64, device=low.device) / (levels - 1)
    a, b = low.to(torch.float64)[:, None], high.to(torch.float64)[:, None]
    spread = (a + (b - a) * fraction).to(torch.float32)
    return torch.cat([spread[:, :-1], high[:, None]], dim=1)


def full_range(values: Tensor, table: Tensor) -> Tensor:
    """MinMax: the least and the greatest value, float32 `[blocks, 2]`."""
    return solve_full_range(values, table)


def largest_magnitude(values: Tensor, table: Tensor) -> Tensor:
    """QSGD with the max norm: max |x|, float32 `[blocks, 1]`."""
    return solve_largest_magnitude(values, table)


def root_energy(values: Tensor, table: Tensor) -> Tensor:
    """QSGD as published (arXiv 1610.02132): the block's ||x||, at least max |x|, float32 `[blocks, 1]`.

    Finite values never make a non-finite norm: it is at most 2^126 where max |x| is.
    """
    return solve_root_energy(values, table)


def within_deviations(values: Tensor, table: Tensor, clip: float | None) -> Tensor:
    """TernGrad: max |x|, but at most `clip` standard deviations of the block (arXiv 1705.07878).

    Args:
        values: float32 `[values]`.
        table: block table, int64 `[blocks, 4]`.
        clip: in standard deviations; None does not clip, and a constant block is never clipped.
    Returns:
        float32 `[blocks, 1]`.
    """
    if clip is None:
        return solve_largest_magnitude(values, table)
    return solve_within_deviations(values, table, clip)
