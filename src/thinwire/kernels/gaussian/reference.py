"""The specification of rounding to Lloyd-Max levels of N(0, 1), in float32 tensors."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from thinwire.kernels.gaussian.tables import POSITIVE_LEVELS
from thinwire.kernels.hadamard.reference import lane_sum

__all__ = ["FIRST", "LENGTH", "LEVELS", "PLACE", "dequantize_normal", "levels_of", "midpoints_of", "quantize_normal"]

FIRST, LENGTH, PLACE, LEVELS = range(4)
"""Columns of a table of rows: first coordinate; coordinates; first code; how many levels."""


@functools.cache
def levels_of(count: int) -> Tensor:
    """The levels, ascending, float32 `[count]`; count is one of POSITIVE_LEVELS."""
    half = torch.tensor(POSITIVE_LEVELS[count], dtype=torch.float32)
    return torch.cat([-half.flip(0), torch.zeros(count % 2), half])


def midpoints_of(levels: Tensor) -> Tensor:
    return 0.5 * levels[:-1] + 0.5 * levels[1:]


def _rows_by_shape(table: Tensor) -> list[tuple[int, int, Tensor]]:
    """Coordinates, levels, and which rows have as many; not those without any coordinates."""
    shapes = table[:, [LENGTH, LEVELS]]
    return [
        (int(n), int(s), torch.nonzero((shapes == pair).all(1)).flatten())
        for pair in shapes.unique(dim=0)
        for n, s in [pair]
        if n
    ]


def quantize_normal(x: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Round coordinates to the nearest of their row's levels: the code is the number of midpoints below (ties go down).

    Args:
        x: finite float32, rows of about unit mean square.
        table: rows, int64 `[rows, 4]`; each row's codes lie where it says, back to back in some order.
    Returns:
        The codes, uint8 `[sum of the rows' coordinates]`.
        Each row's sum of x Q(x), float32 `[rows]`, the sum by lanes.
    """
    codes = torch.zeros(int(table[:, LENGTH].sum()), dtype=torch.uint8, device=x.device)
    products = torch.zeros(len(table), dtype=torch.float32, device=x.device)
    for count, s, which in _rows_by_shape(table):
        within = torch.arange(count, device=x.device)
        levels = levels_of(s).to(x.device)
        row = x[table[which, FIRST][:, None] + within]
        code = torch.searchsorted(midpoints_of(levels), row)
        codes[table[which, PLACE][:, None] + within] = code.to(torch.uint8)
        products[which] = lane_sum(row * levels[code])
    return codes, products


def dequantize_normal(codes: Tensor, table: Tensor, count: int) -> Tensor:
    """Replace codes by their levels, where the rows say; 0 elsewhere.

    Args:
        codes: as quantize_normal returns them, each below its row's levels.
        table: rows, int64 `[rows, 4]`.
        count: how many coordinates.
    Returns:
        float32 `[count]`.
    """
    x = torch.zeros(count, dtype=torch.float32, device=codes.device)
    for length, s, which in _rows_by_shape(table):
        within = torch.arange(length, device=x.device)
        code = codes[table[which, PLACE][:, None] + within].to(torch.int64)
        x[table[which, FIRST][:, None] + within] = levels_of(s).to(x.device)[code]
    return x
