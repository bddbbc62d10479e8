"""Linear: equally many values between neighbouring levels."""

from torch import Tensor

from thinwire.kernels import solve_quantiles

__all__ = ["quantiles"]


def quantiles(values: Tensor, table: Tensor, levels: int) -> Tensor:
    """Take the values of rank k (n - 1) / (levels - 1), rounded half up, k = 0 .. levels - 1: ends at min and max.

    Args:
        values: float32 `[values]`.
        table: block table, int64 `[blocks, 4]`.
        levels: at least 2.
    Returns:
        float32 `[blocks, levels]`, ascending, values of the block.
    References:
        arXiv 2002.11082 ("Linear": levels evenly spaced in the cumulative distribution).
    """
    return solve_quantiles(values, table, levels)
