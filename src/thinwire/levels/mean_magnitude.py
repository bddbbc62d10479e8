"""Scaled sign: the one magnitude of least squared error for +-m."""

from torch import Tensor

from thinwire.kernels import solve_mean_magnitude

__all__ = ["mean_magnitude"]


def mean_magnitude(values: Tensor, table: Tensor) -> Tensor:
    """Solve m = mean |x|, which minimizes sum (x - m sign x)^2.

    Args:
        values: float32 `[values]`.
        table: block table, int64 `[blocks, 4]`.
    Returns:
        m, float32 `[blocks, 1]`.
    References:
        Karimireddy et al. 2019 (arXiv 1901.09847): the scale |x|_1 / d, here by block.
    """
    return solve_mean_magnitude(values, table)
