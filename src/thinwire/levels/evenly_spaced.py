"""Evenly spaced levels over a range: one expansion, and a rule for the range for each method."""

import torch
from torch import Tensor

from thinwire.kernels.rows.reference import LARGEST
from thinwire.levels.rows import average, ends, filled

__all__ = ["evenly_spaced", "full_range", "largest_magnitude", "root_energy", "within_deviations"]


def evenly_spaced(low: Tensor, high: Tensor, levels: int) -> Tensor:
    """Spread `levels` levels from low to high, float32 `[blocks]` each: float32 `[blocks, levels]`.

    Computed in float64, so ascending after rounding, the ends exact, and the middle of +-m exactly zero.
    """
    fraction = torch.arange(levels, dtype=torch.float64, device=low.device) / (levels - 1)
    a, b = low.to(torch.float64)[:, None], high.to(torch.float64)[:, None]
    spread = (a + (b - a) * fraction).to(torch.float32)
    return torch.cat([spread[:, :-1], high[:, None]], dim=1)


def full_range(rows: Tensor, lengths: Tensor) -> Tensor:
    """MinMax: the least and the greatest value, float32 `[blocks, 2]`."""
    return torch.stack(ends(rows, lengths), dim=1)


def largest_magnitude(rows: Tensor, lengths: Tensor) -> Tensor:
    """QSGD with the max norm: max |x|, float32 `[blocks, 1]`."""
    return filled(rows, lengths, 0.0).abs().amax(1, keepdim=True)


def root_energy(rows: Tensor, lengths: Tensor) -> Tensor:
    """QSGD as published (arXiv 1610.02132): the block's ||x||, at least max |x|, float32 `[blocks, 1]`."""
    largest = largest_magnitude(rows, lengths)
    squares = filled(rows, lengths, 0.0).to(torch.float64) ** 2
    norm = torch.sqrt(average(squares, lengths) * lengths).to(torch.float32)[:, None]
    return torch.maximum(norm.clamp(max=0.5 * LARGEST), largest)  # finite values never make a non-finite norm


def within_deviations(rows: Tensor, lengths: Tensor, clip: float | None) -> Tensor:
    """TernGrad: max |x|, but at most `clip` standard deviations of the block (arXiv 1705.07878).

    Args:
        rows: float32 `[blocks, width]`, any order, padded with +inf.
        lengths: int64 `[blocks]`.
        clip: in standard deviations; None does not clip, and a constant block is never clipped.
    Returns:
        float32 `[blocks, 1]`.
    """
    largest = largest_magnitude(rows, lengths)
    if clip is None:
        return largest
    low = rows.amin(1, keepdim=True).to(torch.float64)
    shifted = filled(rows.to(torch.float64) - low, lengths, 0.0)
    mean = average(shifted, lengths)[:, None]
    deviation = torch.sqrt(average(filled(shifted - mean, lengths, 0.0) ** 2, lengths))
    bound = (clip * deviation).to(torch.float32)[:, None]
    return torch.where(bound > 0, torch.minimum(largest, bound), largest)
