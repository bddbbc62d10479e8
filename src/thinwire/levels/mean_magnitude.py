"""Scaled sign: the one magnitude of least squared error for +-m."""

import torch
from torch import Tensor

from thinwire.levels.rows import average, filled

__all__ = ["mean_magnitude"]


def mean_magnitude(rows: Tensor, lengths: Tensor) -> Tensor:
    """Solve m = mean |x|, which minimizes sum (x - m sign x)^2.

    Args:
        rows: float32 `[blocks, width]`, any order, padded with +inf.
        lengths: int64 `[blocks]`.
    Returns:
        m, float32 `[blocks, 1]`.
    References:
        Karimireddy et al. 2019 (arXiv 1901.09847): the scale |x|_1 / d, here by block.
    """
    return average(filled(rows, lengths, 0.0).abs().to(torch.float64), lengths).to(torch.float32)[:, None]
