"""Blocks sorted and solved chunk by chunk: each thread works in one buffer that stays in its cache."""

from collections.abc import Callable

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.pool import for_ranges
from thinwire.kernels.rows.reference import LARGEST
from thinwire.kernels.table import LENGTH, START

__all__ = ["for_blocks", "solve_sorted"]

_CHUNK = 1 << 16  # values: 256 KiB
_LARGEST = np.float32(LARGEST)


@njit(nogil=True, cache=True, error_model="numpy")
def _chunk(lengths, first, stop):
    """As many blocks from `first` as fit in a chunk, at least one: the next block, and the longest one's length."""
    width, end = lengths[first], first + 1
    while end < stop and (end + 1 - first) * max(width, lengths[end]) <= _CHUNK:
        width = max(width, lengths[end])
        end += 1
    return end, width


@njit(nogil=True, cache=True, error_model="numpy")
def _gather(values, table, magnitudes, rows):
    """Copy each block of a table, or its magnitudes, to a row padded with +inf."""
    for b in range(len(table)):
        x = values[table[b, START] : table[b, START] + table[b, LENGTH]]
        for i in range(len(x)):
            rows[b, i] = abs(x[i]) if magnitudes else x[i]
        rows[b, len(x) :] = np.float32(np.inf)


@njit(nogil=True, cache=True, error_model="numpy")
def _clear(rows, lengths, finite):
    """Tell which sorted rows are finite (NaN and +inf sort last, -inf first), and zero the others."""
    for b in range(len(rows)):
        finite[b] = rows[b, 0] > -_LARGEST and rows[b, lengths[b] - 1] < _LARGEST
        if not finite[b]:
            rows[b] = np.float32(0)


@njit(nogil=True, cache=True, error_model="numpy")
def _finish(finite, out):
    """NaN for blocks that are not finite, and no negative zeros."""
    for b in range(len(out)):
        for k in range(out.shape[1]):
            out[b, k] = out[b, k] + np.float32(0) if finite[b] else np.float32(np.nan)


def for_blocks(table: np.ndarray, run: Callable[[int, int], object]) -> None:
    """Call run(first, stop) on contiguous ranges of a table's blocks, each worth a thread."""
    for_ranges(len(table), 1 + len(table) * _CHUNK // max(1, int(table[:, LENGTH].sum())), run)


def solve_sorted(
    values: Tensor,
    table: Tensor,
    columns: int,
    solve: Callable[[np.ndarray, np.ndarray, np.ndarray], object],
    magnitudes: bool = False,
) -> Tensor:
    """Sort every block, or its magnitudes, and call solve(rows, lengths, out) on a few blocks at a time.

    Args:
        values: float32 `[values]`, on the CPU, contiguous like the table.
        table: block table, int64 `[blocks, 4]`.
        columns: of the result.
        solve: writes out, float32 `[rows, columns]`, from rows, float32 `[rows, width]`, ascending, finite in the first
            lengths[b] >= 1 columns. It may run on several threads at once.
    Returns:
        float32 `[blocks, columns]`; NaN for a block with a non-finite value. No negative zeros.
    """
    source, cuts = values.numpy(), table.numpy()
    lengths = np.ascontiguousarray(cuts[:, LENGTH])
    finite = np.empty(len(cuts), np.bool_)
    out = np.empty((len(cuts), columns), np.float32)

    def run(first: int, stop: int) -> None:
        longest = int(lengths[first:stop].max())
        buffer = np.empty(max(longest, min(_CHUNK, (stop - first) * longest)), np.float32)
        while first < stop:
            end, width = _chunk(lengths, first, stop)
            rows = buffer[: (end - first) * width].reshape(end - first, width)
            _gather(source, cuts[first:end], magnitudes, rows)
            rows.sort(axis=1)
            _clear(rows, lengths[first:end], finite[first:end])
            solve(rows, lengths[first:end], out[first:end])
            first = end

    for_blocks(cuts, run)
    _finish(finite, out)
    return torch.from_numpy(out)
