"""Levels at the precision in which they travel."""

import torch
from torch import Tensor

__all__ = ["narrow"]


def narrow(levels: Tensor, dtype: torch.dtype, outward: bool) -> Tensor:
    """Round levels to a wire dtype: to nearest, but with `outward` the ends away from the data, so that none clips.

    Args:
        levels: float32 `[blocks, columns]`: ascending levels, or one column of magnitudes m that stand for +-m.
        dtype: float32, bfloat16 or float16.
        outward: round the first of several columns down and the last column up.
    Returns:
        `[blocks, columns]` of dtype, never beyond its largest finite value unless the input was NaN.
    """
    if dtype == torch.float32:
        return levels
    largest = torch.finfo(dtype).max
    near = levels.clamp(-largest, largest).to(dtype)
    if outward:
        near[:, -1] = _step_where(near[:, -1], near[:, -1].to(torch.float32) < levels[:, -1], 1)
        if near.shape[1] > 1:
            near[:, 0] = _step_where(near[:, 0], near[:, 0].to(torch.float32) > levels[:, 0], -1)
    return near.clamp(-largest, largest)


def _step_where(values: Tensor, mask: Tensor, step: int) -> Tensor:
    """The next representable number up (+1) or down (-1), where mask holds; 16-bit floats as ordered integers."""
    bits = values.contiguous().view(torch.int16).to(torch.int32)
    ordered = torch.where(bits < 0, -32768 - bits, bits) + step * mask
    bits = torch.where(ordered < 0, -32768 - ordered, ordered).to(torch.int16)
    return bits.view(values.dtype)
