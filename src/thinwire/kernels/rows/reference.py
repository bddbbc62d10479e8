"""Blocks as the rows of a padded matrix."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from thinwire.kernels.table import LENGTH, START

__all__ = ["LARGEST", "gather_rows", "pieces", "solve_padded"]

LARGEST = 2.0**127  # magnitudes from here on count as non-finite: the span of a block must not overflow float32

_PADDED = 1 << 24  # values that may always be padded together


def pieces(table: Tensor) -> Sequence[Tensor]:
    """Cut a block table so that padding its blocks to one width stays cheap: all in one, or block by block."""
    if not len(table):
        return []
    lengths = table[:, LENGTH]
    padded = len(table) * int(lengths.max())
    return [table] if padded <= max(_PADDED, 2 * int(lengths.sum())) else table.split(1)


def gather_rows(values: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Copy every block to a row, padded with +inf; a block with a non-finite value becomes zeros and is marked.

    Args:
        values: float32 `[values]`.
        table: block table, int64 `[blocks, 4]`, at least one block.
    Returns:
        rows, float32 `[blocks, longest block]` (no negative zeros), and finite, bool `[blocks]`.
    """
    column = torch.arange(int(table[:, LENGTH].max()), device=values.device)
    inside = column < table[:, LENGTH, None]
    rows = values[torch.where(inside, table[:, START, None] + column, 0)]
    finite = (~inside | (rows.abs() < LARGEST)).all(1)
    rows = torch.where(finite[:, None], rows + 0.0, torch.zeros_like(rows))
    return torch.where(inside, rows, float("inf")), finite


def solve_padded(values: Tensor, table: Tensor, columns: int, solve: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Solve levels on padded rows: solve(rows, lengths) for every block, NaN for one with a non-finite value.

    Args:
        values, table: see gather_rows; any number of blocks.
        columns: of what `solve` returns, float32 `[rows, columns]`.
    Returns:
        float32 `[blocks, columns]`.
    """
    solved = [values.new_empty((0, columns))]
    for part in pieces(table):
        rows, finite = gather_rows(values, part)
        solved.append(torch.where(finite[:, None], solve(rows, part[:, LENGTH]), float("nan")))
    return torch.cat(solved)
