"""ORQ's greedy levels: the optimal condition, halved again and again."""

from torch import Tensor

from thinwire.kernels import solve_orq

__all__ = ["optimal_condition"]


def optimal_condition(values: Tensor, table: Tensor, levels: int) -> Tensor:
    """Solve 2^K + 1 levels: min and max, then the middle level of every interval in turn.

    A middle level b between l and r is a value of the block with #{x > b} <= T <= #{x >= b}, where
    T = sum (x - l) / (r - l) and everything counts within [l, r]: exactly the minimizers of sum (hi - x)(x - lo).

    Args:
        values: float32 `[values]`.
        table: block table, int64 `[blocks, 4]`.
        levels: 3, 5, 9, 17, ...
    Returns:
        float32 `[blocks, levels]`, ascending.
    References:
        arXiv 2002.11082 (the condition, and greedy ORQ); docs/math.md. The paper states the
        condition for a density; ours holds exactly for the block's data, ties included.
    """
    return solve_orq(values, table, levels)
