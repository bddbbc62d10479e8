"""Rotating and rounding on the CPU: about 8,192 coordinates at a time, in the first cache."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.gaussian.cpu import dequantize_rows, quantize_rows, tables
from thinwire.kernels.gaussian.reference import LENGTH
from thinwire.kernels.hadamard.cpu import POWERS, blocks_worth_a_thread, rotate_blocks, rotate_blocks_back, shapes
from thinwire.kernels.pool import for_ranges

__all__ = ["dequantize_rotated", "quantize_rotated"]

_AT_ONCE = 1 << 13  # coordinates


@njit(nogil=True, cache=True, error_model="numpy")
def _stop(counts, first, room, block, end):
    """Up to which block coordinates fit into the room; one always does."""
    stop = block + 1
    while stop < end and first[stop] + counts[stop] - first[block] <= room:
        stop += 1
    return stop


@njit(nogil=True, cache=True, error_model="numpy")
def _quantize(
    words, table, keys, rounds, powers, counts, roots, first, rows, starts, levels, midpoints, codes, products, sizes,
    begin, end,
):  # fmt: skip
    x = np.empty(max(_AT_ONCE, counts[begin:end].max()), np.float32)
    block = begin
    while block < end:
        stop = _stop(counts, first, len(x), block, end)
        rotate_blocks(words, table, keys, rounds, powers, counts, roots, first, first[block], x, sizes, block, stop)
        quantize_rows(x, first[block], rows, starts, levels, midpoints, codes, products, block, stop)
        block = stop


@njit(nogil=True, cache=True, error_model="numpy")
def _dequantize(
    codes, rows, starts, levels, scales, table, keys, rounds, counts, roots, first, total, add, begin, end
):  # fmt: skip
    x = np.empty(max(_AT_ONCE, counts[begin:end].max()), np.float32)
    block = begin
    while block < end:
        stop = _stop(counts, first, len(x), block, end)
        x[: first[stop - 1] + counts[stop - 1] - first[block]] = 0
        dequantize_rows(codes, rows, starts, levels, x, first[block], block, stop)
        rotate_blocks_back(x, first[block], scales, table, keys, rounds, counts, roots, first, total, add, block, stop)
        block = stop


def quantize_rotated(
    values: Tensor, table: Tensor, keys: Tensor, rounds: int, rows: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    counts, roots, first = shapes(table)
    source, wanted = values.contiguous().numpy().view(np.uint32), rows.numpy()
    arrays = (source, table.numpy(), keys.numpy(), rounds, POWERS, counts, roots, first, wanted, *tables())
    codes = np.empty(int(wanted[:, LENGTH].sum()), np.uint8)
    products, sizes = np.empty(len(counts), np.float32), np.empty(len(counts), np.float32)
    run = lambda a, b: _quantize(*arrays, codes, products, sizes, a, b)  # noqa: E731
    for_ranges(len(counts), blocks_worth_a_thread(counts), run)
    return torch.from_numpy(codes), torch.from_numpy(products), torch.from_numpy(sizes)


def dequantize_rotated(
    codes: Tensor, rows: Tensor, scales: Tensor, table: Tensor, keys: Tensor, rounds: int, total: Tensor, add: bool
) -> None:
    counts, roots, first = shapes(table)
    starts, levels, _ = tables()
    arrays = (codes.numpy(), rows.numpy(), starts, levels, scales.numpy(), table.numpy(), keys.numpy(), rounds)
    out = total.numpy()
    run = lambda a, b: _dequantize(*arrays, counts, roots, first, out, add, a, b)  # noqa: E731
    for_ranges(len(counts), blocks_worth_a_thread(counts), run)
