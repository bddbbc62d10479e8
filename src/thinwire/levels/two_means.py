"""BinGrad-b: two conditional means about their midpoint, the exact optimum of the two-level problem."""

import torch
from torch import Tensor

from thinwire.kernels import sort_rows
from thinwire.kernels.fixed_point import fixed_bits, fixed_point
from thinwire.levels.rows import filled

__all__ = ["two_means"]


def two_means(rows: Tensor, lengths: Tensor) -> Tensor:
    """Solve the two levels of least squared error under nearest rounding (1-D k-means with k = 2, globally).

    Over sorted values shifted to x - min, with S_k the sum of the k least and S of all n: the split after k gains
    n (S_k - k S / n)^2 / (k (n - k)) over one level; the best split is taken, the first of several.

    Args:
        rows: float32 `[blocks, width]`, any order, padded with +inf.
        lengths: int64 `[blocks]`.
    Returns:
        The two means, float32 `[blocks, 2]`, ascending; equal in a constant block.
    References:
        arXiv 2002.11082 (BinGrad-b) states the fixed point; the paper approximates it, this solves it.
    """
    width = rows.shape[1]
    least = rows.amin(1, keepdim=True).to(torch.float64)
    shifted = filled(sort_rows(rows).to(torch.float64) - least, lengths, 0.0)
    units, unit = fixed_point(shifted, shifted.amax(1), fixed_bits(width))
    sums = units.cumsum(1)
    n, total = lengths[:, None].to(torch.float64), sums[:, -1:].to(torch.float64)
    k = torch.arange(1, width + 1, dtype=torch.float64, device=rows.device)
    gain = (sums.to(torch.float64) - k * (total / n)) ** 2 * n / (k * (n - k))
    gain = torch.where(k < n, gain, -1.0)
    best = (gain >= gain.amax(1, keepdim=True)).to(torch.int8).argmax(1, keepdim=True)
    low = sums.gather(1, best)
    count = (best + 1).to(torch.float64)
    high = (sums[:, -1:] - low).to(torch.float64) / (n - count).clamp(min=1)
    pair = torch.cat([low.to(torch.float64) / count, high], dim=1) * unit[:, None] + least
    return torch.where(n > 1, pair, least).to(torch.float32)
