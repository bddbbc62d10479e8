"""Linear: equally many values between neighbouring levels."""

import torch
from torch import Tensor

from thinwire.kernels import sort_rows

__all__ = ["quantiles"]


def quantiles(rows: Tensor, lengths: Tensor, levels: int) -> Tensor:
    """Take the values of rank k (n - 1) / (levels - 1), rounded half up, k = 0 .. levels - 1: ends at min and max.

    Args:
        rows: float32 `[blocks, width]`, any order, padded with +inf.
        lengths: int64 `[blocks]`.
        levels: at least 2.
    Returns:
        float32 `[blocks, levels]`, ascending, values of the row.
    References:
        arXiv 2002.11082 ("Linear": levels evenly spaced in the cumulative distribution).
    """
    steps = levels - 1
    k = torch.arange(levels, device=rows.device)
    rank = (2 * k * (lengths[:, None] - 1) + steps) // (2 * steps)
    return sort_rows(rows).gather(1, rank)
