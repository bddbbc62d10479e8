"""What the solvers share: reading padded rows, and order-free sums over them."""

import torch
from torch import Tensor

from thinwire.kernels.fixed_point import fixed_bits, fixed_point

__all__ = ["average", "ends", "filled"]


def filled(rows: Tensor, lengths: Tensor, value: float) -> Tensor:
    """Rows with their padding replaced by `value`."""
    column = torch.arange(rows.shape[1], device=rows.device)
    return torch.where(column < lengths[:, None], rows, value)


def ends(rows: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Minimum and maximum of each row, float32 `[blocks]`."""
    return rows.amin(1), filled(rows, lengths, -float("inf")).amax(1)


def average(terms: Tensor, lengths: Tensor) -> Tensor:
    """Mean of each row of non-negative float64 terms whose padding is 0, float64 `[blocks]`.

    Error: half a unit, 2^-fixed_bits(width) of the row's largest term.
    """
    units, unit = fixed_point(terms, terms.amax(1), fixed_bits(terms.shape[1]))
    return units.sum(1).to(torch.float64) * unit / lengths
