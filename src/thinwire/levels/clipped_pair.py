"""BinGrad-pb: the pair +-b that balances clipping outside against rounding inside."""

import torch
from torch import Tensor

from thinwire.kernels import sort_rows
from thinwire.kernels.fixed_point import fixed_bits, fixed_point
from thinwire.levels.rows import filled

__all__ = ["clipped_pair"]


def clipped_pair(rows: Tensor, lengths: Tensor) -> Tensor:
    """Solve b with sum_{|x| > b} |x| <= n b <= sum_{|x| >= b} |x|.

    It minimizes sum_{|x| <= b} (b^2 - x^2) + sum_{|x| > b} (|x| - b)^2. With magnitudes a_1 >= ... >= a_n, S_k the sum
    of the first k, and k the number of indices with n a_k > S_k: b = max(a_{k+1}, S_k / n).

    Args:
        rows: float32 `[blocks, width]`, any order, padded with +inf.
        lengths: int64 `[blocks]`.
    Returns:
        b, float32 `[blocks, 1]`, to the nearest float32 where it lies between two magnitudes.
    References:
        arXiv 2002.11082 (BinGrad-pb); docs/math.md.
    """
    width = rows.shape[1]
    falling = sort_rows(filled(rows, lengths, 0.0).abs()).flip(1).to(torch.float64)  # zeros, the padding, come last
    units, unit = fixed_point(falling, falling[:, 0], fixed_bits(width))  # n a_k fits too
    sums = units.cumsum(1)
    count = (units * lengths[:, None] > sums).sum(1, keepdim=True)
    count = torch.minimum(count, lengths[:, None] - 1)
    before = torch.where(count > 0, sums.gather(1, (count - 1).clamp(min=0)), 0)
    between = before.to(torch.float64) * unit[:, None] / lengths[:, None]
    return torch.maximum(falling.gather(1, count), between).to(torch.float32)
