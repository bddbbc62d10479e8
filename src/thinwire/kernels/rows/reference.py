"""Blocks as the rows of a padded matrix, and rows sorted."""

import torch
from torch import Tensor

from thinwire.kernels.table import LENGTH, START

__all__ = ["LARGEST", "gather_rows", "sort_rows"]

LARGEST = 2.0**127  # magnitudes from here on count as non-finite: the span of a block must not overflow float32


def gather_rows(values: Tensor, table: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Copy every block to a row, padded with +inf; a block with a non-finite value becomes zeros and is marked.

    Args:
        values: float32 `[values]`.
        table: block table, int64 `[blocks, 4]`.
        width: columns of the result, at least the longest block.
    Returns:
        rows, float32 `[blocks, width]` (no negative zeros), and finite, bool `[blocks]`.
    """
    column = torch.arange(width, device=values.device)
    inside = column < table[:, LENGTH, None]
    index = torch.where(inside, table[:, START, None] + column, 0)
    rows = values[index] if values.numel() else values.new_zeros(index.shape)
    finite = (~inside | (rows.abs() < LARGEST)).all(1)
    rows = torch.where(finite[:, None], rows + 0.0, torch.zeros_like(rows))
    return torch.where(inside, rows, float("inf")), finite


def sort_rows(rows: Tensor) -> Tensor:
    """Sort each row of float32 `[blocks, width]` in ascending order, into a new tensor. Rows hold no NaN."""
    return torch.sort(rows, dim=1).values
