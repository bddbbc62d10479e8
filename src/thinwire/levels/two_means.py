"""BinGrad-b: two conditional means about their midpoint, the exact optimum of the two-level problem."""

from torch import Tensor

from thinwire.kernels import solve_two_means

__all__ = ["two_means"]


def two_means(values: Tensor, table: Tensor) -> Tensor:
    """Solve the two levels of least squared error under nearest rounding (1-D k-means with k = 2, globally).

    Over sorted values shifted to x - min, with S_k the sum of the k least and S of all n: the split after k gains
    n (S_k - k S / n)^2 / (k (n - k)) over one level; the best split is taken, the first of several.

    Args:
        values: float32 `[values]`.
        table: block table, int64 `[blocks, 4]`.
    Returns:
        The two means, float32 `[blocks, 2]`, ascending; equal in a constant block.
    References:
        arXiv 2002.11082 (BinGrad-b) states the fixed point; the paper approximates it, this solves it.
    """
    return solve_two_means(values, table)
