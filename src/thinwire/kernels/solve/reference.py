"""ORQ: the optimal condition for one interior level, applied by halving (levels/optimal_condition.py)."""

import torch
from torch import Tensor

from thinwire.kernels.fixed_point import fixed_bits, fixed_point

__all__ = ["solve_orq"]


def solve_orq(rows: Tensor, lengths: Tensor, levels: int) -> Tensor:
    """Solve the greedy levels of each sorted row: min and max, then every middle by the optimal condition.

    Args:
        rows: float32 `[blocks, width]`, ascending; finite in the first lengths[b] columns.
        lengths: int64 `[blocks]`, at least 1.
        levels: 2^K + 1.
    Returns:
        float32 `[blocks, levels]`, ascending, data values of the row.
    Error:
        T (the sum of the condition) is exact where the interval's values differ in magnitude by less than
        2^(bits - 24), and off by at most 2 width 2^-bits otherwise; bits = fixed_bits(width), 50 at width 2048.
    """
    picks = [torch.zeros_like(lengths) for _ in range(levels)]
    picks[-1] = lengths - 1
    stride = levels - 1
    while stride > 1:
        for left in range(0, levels - 1, stride):
            picks[left + stride // 2] = _middle(rows, picks[left], picks[left + stride])
        stride //= 2
    return torch.gather(rows, 1, torch.stack(picks, dim=1))


def _middle(rows: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Index of a value b in row[first..last] with #{x > b} <= T <= #{x >= b}, T = sum (x - l) / (r - l)."""
    values = rows.to(torch.float64)
    left, right = values.gather(1, first[:, None]), values.gather(1, last[:, None])
    span = (right - left)[:, 0]
    column = torch.arange(rows.shape[1], device=rows.device)
    inside = (column >= first[:, None]) & (column <= last[:, None])
    terms = torch.where(inside, values, left) - left
    bits = fixed_bits(rows.shape[1])
    units, _ = fixed_point(torch.cat([terms, span[:, None]], dim=1), span, bits)
    total, whole = units[:, :-1].sum(1), units[:, -1]
    return last - torch.where(whole > 0, total // torch.clamp(whole, min=1), 0)
