"""ORQ on sorted rows, one row at a time: K passes over the row, integer sums."""

import math

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.fixed_point import fixed_bits
from thinwire.kernels.pool import for_ranges

__all__ = ["solve_orq"]


@njit(nogil=True, cache=True, error_model="numpy")
def _middle(row, first, last, bits):
    left = np.float64(row[first])
    span = np.float64(row[last]) - left
    if span == 0.0:
        return last
    scale = math.ldexp(1.0, bits - math.frexp(span)[1])
    total = np.int64(0)
    for i in range(first, last + 1):
        total += np.int64(np.rint((np.float64(row[i]) - left) * scale))
    return last - total // np.int64(np.rint(span * scale))


@njit(nogil=True, cache=True, error_model="numpy")
def _solve(rows, lengths, bits, out, first, stop):
    levels = out.shape[1]
    picks = np.empty(levels, np.int64)
    for b in range(first, stop):
        row = rows[b]
        picks[0] = 0
        picks[levels - 1] = lengths[b] - 1
        stride = levels - 1
        while stride > 1:
            for left in range(0, levels - 1, stride):
                picks[left + stride // 2] = _middle(row, picks[left], picks[left + stride], bits)
            stride //= 2
        for k in range(levels):
            out[b, k] = row[picks[k]]


def solve_orq(rows: Tensor, lengths: Tensor, levels: int) -> Tensor:
    source, counts = rows.numpy(), lengths.numpy()
    out = np.empty((len(source), levels), np.float32)
    bits = fixed_bits(source.shape[1])
    for_ranges(len(source), 32, lambda a, b: _solve(source, counts, bits, out, a, b))
    return torch.from_numpy(out)
