"""Level solvers in torch, on padded rows. The mathematics is in levels/, one file per idea.

All take values, float32 `[values]`, and a block table, int64 `[blocks, 4]`, and return float32 `[blocks, columns]`
without negative zeros; NaN for a block with a non-finite value or a magnitude of 2^127 and more.
"""

import torch
from torch import Tensor

from thinwire.kernels.fixed_point import fixed_bits, fixed_point
from thinwire.kernels.rows.reference import LARGEST, solve_padded

__all__ = [
    "solve_clipped_pair",
    "solve_full_range",
    "solve_largest_magnitude",
    "solve_mean_magnitude",
    "solve_orq",
    "solve_quantiles",
    "solve_root_energy",
    "solve_two_means",
    "solve_within_deviations",
]


def solve_orq(values: Tensor, table: Tensor, levels: int) -> Tensor:
    """ORQ: min and max, then every middle by the optimal condition; 2^K + 1 levels, ascending, values of the block.

    Error:
        T (the sum of the condition) is exact where the interval's values differ in magnitude by less than
        2^(bits - 24), and off by at most 2 n 2^-bits otherwise, n the block's values; bits = fixed_bits(n), 50 at 2048.
    """

    def solve(rows: Tensor, lengths: Tensor) -> Tensor:
        rows = torch.sort(rows, dim=1).values
        picks = [torch.zeros_like(lengths) for _ in range(levels)]
        picks[-1] = lengths - 1
        stride = levels - 1
        while stride > 1:
            for left in range(0, levels - 1, stride):
                picks[left + stride // 2] = _middle(rows, lengths, picks[left], picks[left + stride])
            stride //= 2
        return torch.gather(rows, 1, torch.stack(picks, dim=1))

    return solve_padded(values, table, levels, solve)


def _middle(rows: Tensor, lengths: Tensor, first: Tensor, last: Tensor) -> Tensor:
    """Index of a value b in row[first..last] with #{x > b} <= T <= #{x >= b}, T = sum (x - l) / (r - l)."""
    wide = rows.to(torch.float64)
    left, right = wide.gather(1, first[:, None]), wide.gather(1, last[:, None])
    span = (right - left)[:, 0]
    column = torch.arange(rows.shape[1], device=rows.device)
    inside = (column >= first[:, None]) & (column <= last[:, None])
    terms = torch.where(inside, wide, left) - left
    units, _ = fixed_point(torch.cat([terms, span[:, None]], dim=1), span, fixed_bits(lengths))
    total, whole = units[:, :-1].sum(1), units[:, -1]
    return last - torch.where(whole > 0, total // torch.clamp(whole, min=1), 0)


def solve_two_means(values: Tensor, table: Tensor) -> Tensor:
    """BinGrad-b: the means of the two sides of the best split, the first of several; `[blocks, 2]`, ascending.

    Over x - min in fixed point, S_k the sum of the k least and S of all n: gain (S_k - k S / n)^2 n / (k (n - k)).
    """

    def solve(rows: Tensor, lengths: Tensor) -> Tensor:
        rows = torch.sort(rows, dim=1).values
        least = rows[:, :1].to(torch.float64)
        shifted = _filled(rows.to(torch.float64) - least, lengths, 0.0)
        units, unit = fixed_point(shifted, shifted.amax(1), fixed_bits(lengths))
        sums = units.cumsum(1)
        n, total = lengths[:, None].to(torch.float64), sums[:, -1:].to(torch.float64)
        k = torch.arange(1, rows.shape[1] + 1, dtype=torch.float64, device=rows.device)
        gain = (sums.to(torch.float64) - k * (total / n)) ** 2 * n / (k * (n - k))
        gain = torch.where(k < n, gain, -1.0)
        best = (gain >= gain.amax(1, keepdim=True)).to(torch.int8).argmax(1, keepdim=True)
        low = sums.gather(1, best)
        count = (best + 1).to(torch.float64)
        high = (sums[:, -1:] - low).to(torch.float64) / (n - count).clamp(min=1)
        pair = torch.cat([low.to(torch.float64) / count, high], dim=1) * unit[:, None] + least
        return torch.where(n > 1, pair, least).to(torch.float32) + 0.0

    return solve_padded(values, table, 2, solve)


def solve_clipped_pair(values: Tensor, table: Tensor) -> Tensor:
    """BinGrad-pb: b = max(a_{k+1}, S_k / n) over falling magnitudes, k the last with n a_k > S_k; `[blocks, 1]`.

    S_k is the sum of the first k in fixed point. To the nearest float32 where b lies between two magnitudes.
    """

    def solve(rows: Tensor, lengths: Tensor) -> Tensor:
        magnitudes = _filled(rows, lengths, 0.0).abs().to(torch.float64)
        falling = torch.sort(magnitudes, dim=1, descending=True).values  # zeros, the padding, come last
        units, unit = fixed_point(falling, falling[:, 0], fixed_bits(lengths))  # n a_k fits too
        sums = units.cumsum(1)
        count = (units * lengths[:, None] > sums).sum(1, keepdim=True)  # never all: n a_n is at most S_n
        before = torch.where(count > 0, sums.gather(1, (count - 1).clamp(min=0)), 0)
        between = before.to(torch.float64) * unit[:, None] / lengths[:, None]
        return torch.maximum(falling.gather(1, count), between).to(torch.float32)

    return solve_padded(values, table, 1, solve)


def solve_quantiles(values: Tensor, table: Tensor, levels: int) -> Tensor:
    """Linear: the values of rank k (n - 1) / (levels - 1), rounded half up; `[blocks, levels]`, ascending."""

    def solve(rows: Tensor, lengths: Tensor) -> Tensor:
        steps = levels - 1
        k = torch.arange(levels, device=rows.device)
        rank = (2 * k * (lengths[:, None] - 1) + steps) // (2 * steps)
        return torch.sort(rows, dim=1).values.gather(1, rank)

    return solve_padded(values, table, levels, solve)


def solve_full_range(values: Tensor, table: Tensor) -> Tensor:
    """MinMax: the least and the greatest value, `[blocks, 2]`."""

    def solve(rows: Tensor, lengths: Tensor) -> Tensor:
        return torch.stack([rows.amin(1), _filled(rows, lengths, -float("inf")).amax(1)], dim=1)

    return solve_padded(values, table, 2, solve)


def solve_largest_magnitude(values: Tensor, table: Tensor) -> Tensor:
    """QSGD with the max norm: max |x|, `[blocks, 1]`."""
    return solve_padded(values, table, 1, _largest)


def solve_mean_magnitude(values: Tensor, table: Tensor) -> Tensor:
    """Scaled sign: mean |x|, summed in fixed point, `[blocks, 1]`."""

    def solve(rows: Tensor, lengths: Tensor) -> Tensor:
        sums = _sums(_filled(rows, lengths, 0.0).abs().to(torch.float64), lengths)
        return (sums / lengths[:, None]).to(torch.float32)

    return solve_padded(values, table, 1, solve)


def solve_root_energy(values: Tensor, table: Tensor) -> Tensor:
    """QSGD with the L2 norm: ||x||, summed in fixed point, at most 2^126 but at least max |x|; `[blocks, 1]`."""

    def solve(rows: Tensor, lengths: Tensor) -> Tensor:
        squares = _filled(rows, lengths, 0.0).to(torch.float64) ** 2
        norm = torch.sqrt(_sums(squares, lengths)).to(torch.float32)
        return torch.maximum(norm.clamp(max=0.5 * LARGEST), _largest(rows, lengths))

    return solve_padded(values, table, 1, solve)


def solve_within_deviations(values: Tensor, table: Tensor, clip: float) -> Tensor:
    """TernGrad: max |x|, but at most `clip` standard deviations where that is above 0; `[blocks, 1]`.

    Mean and deviation are those of x - min, both summed in fixed point.
    """

    def solve(rows: Tensor, lengths: Tensor) -> Tensor:
        shifted = _filled(rows.to(torch.float64) - rows.amin(1, keepdim=True).to(torch.float64), lengths, 0.0)
        mean = _sums(shifted, lengths) / lengths[:, None]
        variance = _sums(_filled(shifted - mean, lengths, 0.0) ** 2, lengths) / lengths[:, None]
        bound = (clip * torch.sqrt(variance)).to(torch.float32)
        largest = _largest(rows, lengths)
        return torch.where(bound > 0, torch.minimum(largest, bound), largest)

    return solve_padded(values, table, 1, solve)


def _filled(rows: Tensor, lengths: Tensor, value: float) -> Tensor:
    """Rows with their padding replaced by `value`."""
    column = torch.arange(rows.shape[1], device=rows.device)
    return torch.where(column < lengths[:, None], rows, value)


def _largest(rows: Tensor, lengths: Tensor) -> Tensor:
    return _filled(rows, lengths, 0.0).abs().amax(1, keepdim=True)


def _sums(terms: Tensor, lengths: Tensor) -> Tensor:
    """The sum of each row of non-negative float64 terms whose padding is 0, float64 `[blocks, 1]`.

    Error: n / 2 units, n 2^-fixed_bits(n) of the row's largest term.
    """
    units, unit = fixed_point(terms, terms.amax(1), fixed_bits(lengths))
    return (units.sum(1).to(torch.float64) * unit)[:, None]
