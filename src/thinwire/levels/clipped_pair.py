"""BinGrad-pb: the pair +-b that balances clipping outside against rounding inside."""

from torch import Tensor

from thinwire.kernels import solve_clipped_pair

__all__ = ["clipped_pair"]


def clipped_pair(values: Tensor, table: Tensor) -> Tensor:
    """Solve b with sum_{|x| > b} |x| <= n b <= sum_{|x| >= b} |x|.

    It minimizes sum_{|x| <= b} (b^2 - x^2) + sum_{|x| > b} (|x| - b)^2. With magnitudes a_1 >= ... >= a_n, S_k the sum
    of the first k, and k the number of indices with n a_k > S_k: b = max(a_{k+1}, S_k / n).

    Args:
        values: float32 `[values]`.
        table: block table, int64 `[blocks, 4]`.
    Returns:
        b, float32 `[blocks, 1]`, to the nearest float32 where it lies between two magnitudes.
    References:
        arXiv 2002.11082 (BinGrad-pb); docs/math.md.
    """
    return solve_clipped_pair(values, table)
