"""The specification of rotating and rounding: one after the other."""

from __future__ import annotations

from torch import Tensor

from thinwire.kernels.gaussian.reference import dequantize_normal, quantize_normal
from thinwire.kernels.hadamard.reference import coordinates, rotate, rotate_back

__all__ = ["dequantize_rotated", "quantize_rotated"]


def quantize_rotated(
    values: Tensor, table: Tensor, keys: Tensor, rounds: int, rows: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotate blocks, and round their first coordinates to the best levels for N(0, 1).

    Args:
        values, table, keys, rounds: as rotate's.
        rows: as quantize_normal's table, a row a block: its first coordinate is the block's.
    Returns:
        The codes and each block's sum of z Q(z), as quantize_normal; each block's size, as rotate.
    """
    rotated, sizes = rotate(values, table, keys, rounds)
    return *quantize_normal(rotated, rows), sizes


def dequantize_rotated(
    codes: Tensor, rows: Tensor, scales: Tensor, table: Tensor, keys: Tensor, rounds: int, total: Tensor, add: bool
) -> None:
    """Replace codes by their levels, rotate them back and write them to a total, or add them.

    Args:
        codes, rows: as dequantize_normal's, a row a block; coordinates beyond a row's are 0.
        scales, table, keys, rounds, total, add: as rotate_back's.
    """
    rotated = dequantize_normal(codes, rows, int(coordinates(table).sum()))
    rotate_back(rotated, scales, table, keys, rounds, total, add)
