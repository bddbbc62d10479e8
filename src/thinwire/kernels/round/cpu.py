"""Rounding on the CPU in vectors of 128 values: one half of a run, whose hash counters are consecutive."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.pool import for_ranges
from thinwire.kernels.random.cpu import mix
from thinwire.kernels.table import CODE, LENGTH, POSITION, START

__all__ = ["dequantize", "quantize"]

_LANES = 128
_GOLDEN = np.uint64(0x9E3779B9)
_CHAIN = 24  # up to this many levels one compare-and-select pass a level beats a binary search a value


@njit(nogil=True, cache=True, error_model="numpy")
def _chain(x, count, levels, low, step, codes):
    """Interval of each x: passes over the interior levels, each a vector loop."""
    for j in range(count):
        low[j], step[j], codes[j] = levels[0], levels[1] - levels[0], 0
    for k in range(1, len(levels) - 1):
        level, width = levels[k], levels[k + 1] - levels[k]
        for j in range(count):
            above = x[j] >= level  # unconditional stores of selects: LLVM makes vector blends of them
            low[j] = level if above else low[j]
            step[j] = width if above else step[j]
            codes[j] += above


@njit(nogil=True, cache=True, error_model="numpy")
def _search(x, count, levels, low, step, codes):
    """Interval of each x by binary search: the number of interior levels <= x."""
    for j in range(count):
        first, stop = 1, len(levels) - 1
        while first < stop:
            middle = (first + stop) >> 1
            if x[j] >= levels[middle]:
                first = middle + 1
            else:
                stop = middle
        codes[j] = first - 1
        low[j], step[j] = levels[first - 1], levels[first] - levels[first - 1]


@njit(nogil=True, cache=True, error_model="numpy")
def _draw(position, key, count, u):
    """Uniforms of `count` consecutive positions within one half of a run."""
    counter = ((position >> 8) << 7) | (position & 127)
    shift = np.uint32(((position >> 7) & 1) * 16)
    bits = np.uint64(key)
    low = np.uint32(bits & np.uint64(0xFFFFFFFF))
    high = np.uint32((bits >> np.uint64(32)) + np.uint64(counter >> 32) * _GOLDEN)
    base = np.uint32(counter & 0xFFFFFFFF)
    for j in range(count):
        h = mix(np.uint32(base + np.uint32(j)), low, high)
        half = np.uint32(h >> shift) & np.uint32(0xFFFF)
        u[j] = (np.float32(half) + np.float32(0.5)) * np.float32(2.0**-16)


@njit(nogil=True, cache=True, error_model="numpy")
def _stochastic(values, levels, table, keys, codes, first, stop):
    low, step, u = np.empty(_LANES, np.float32), np.empty(_LANES, np.float32), np.empty(_LANES, np.float32)
    for b in range(first, stop):
        done, length = 0, table[b, LENGTH]
        while done < length:
            position = table[b, POSITION] + done
            count = min(_LANES - (position & (_LANES - 1)), length - done)
            x = values[table[b, START] + done : table[b, START] + done + count]
            out = codes[table[b, CODE] + done : table[b, CODE] + done + count]
            if levels.shape[1] <= _CHAIN:
                _chain(x, count, levels[b], low, step, out)
            else:
                _search(x, count, levels[b], low, step, out)
            _draw(position, keys[b], count, u)
            for j in range(count):
                out[j] += (x[j] - low[j]) > u[j] * step[j]
            done += count


@njit(nogil=True, cache=True, error_model="numpy")
def _nearest(values, levels, table, codes, first, stop):
    half = np.float32(0.5)
    for b in range(first, stop):
        length = table[b, LENGTH]
        x = values[table[b, START] : table[b, START] + length]
        out = codes[table[b, CODE] : table[b, CODE] + length]
        out[:] = 0
        for k in range(levels.shape[1] - 1):
            midpoint = half * levels[b, k] + half * levels[b, k + 1]
            for j in range(length):
                out[j] += x[j] > midpoint


def quantize(values: Tensor, levels: Tensor, table: Tensor, keys: Tensor, nearest: bool) -> Tensor:
    x, b, cuts, streams = values.numpy(), levels.numpy(), table.numpy(), keys.numpy()
    codes = np.empty(int(table[:, LENGTH].sum()), np.uint8)
    if nearest:
        for_ranges(len(cuts), 16, lambda i, j: _nearest(x, b, cuts, codes, i, j))
    else:
        for_ranges(len(cuts), 16, lambda i, j: _stochastic(x, b, cuts, streams, codes, i, j))
    return torch.from_numpy(codes)


@njit(nogil=True, cache=True, error_model="numpy")
def _dequantize(codes, levels, table, total, add, first, stop):
    for b in range(first, stop):
        start, code = table[b, START], table[b, CODE]
        level = levels[b]
        if add:
            for j in range(table[b, LENGTH]):
                total[start + j] += level[codes[code + j]]
        else:
            for j in range(table[b, LENGTH]):
                total[start + j] = level[codes[code + j]]


def dequantize(codes: Tensor, levels: Tensor, table: Tensor, total: Tensor, add: bool) -> None:
    c, b, cuts, out = codes.numpy(), levels.numpy(), table.numpy(), total.numpy()
    for_ranges(len(cuts), 16, lambda i, j: _dequantize(c, b, cuts, out, add, i, j))
