"""ORQ's greedy levels: the optimal condition, halved again and again."""

from torch import Tensor

from thinwire.kernels import solve_orq, sort_rows

__all__ = ["optimal_condition"]


def optimal_condition(rows: Tensor, lengths: Tensor, levels: int) -> Tensor:
    """Solve 2^K + 1 levels: min and max, then the middle level of every interval in turn.

    A middle level b between l and r is a value of the block with #{x > b} <= T <= #{x >= b}, where
    T = sum (x - l) / (r - l) and everything counts within [l, r]: exactly the minimizers of sum (hi - x)(x - lo).

    Args:
        rows: float32 `[blocks, width]`, any order, padded with +inf.
        lengths: int64 `[blocks]`.
        levels: 3, 5, 9, 17, ...
    Returns:
        float32 `[blocks, levels]`, ascending.
    References:
        arXiv 2002.11082 (the condition, and greedy ORQ); docs/math.md. The paper states the
        condition for a density; ours holds exactly for the block's data, ties included.
    """
    return solve_orq(sort_rows(rows), lengths, levels)
