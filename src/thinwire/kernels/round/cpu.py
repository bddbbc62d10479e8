"""Rounding on the CPU, a run of 256 values at a time: 128 hashes give its uniforms, and each step is a vector loop.

Up to 9 levels, a kernel made for the level count holds the levels in registers and compares a value with each of them;
beyond, passes over the run do, and from 25 levels on a binary search.
"""

import functools

import numpy as np
import torch
from numba import njit
from numba.np.unsafe.ndarray import to_fixed_tuple
from torch import Tensor

from thinwire.kernels.pool import for_ranges
from thinwire.kernels.random.cpu import mix
from thinwire.kernels.table import CODE, LENGTH, POSITION, START

__all__ = ["dequantize", "quantize"]

_RUN = 256
_GOLDEN = np.uint64(0x9E3779B9)
_IN_REGISTERS = 9
_IN_PASSES = 24


@njit(nogil=True, cache=True, error_model="numpy")
def _draw(position, key, u):
    """Uniforms of the run that holds a position: its lower half from the low 16 bits of each hash, then the upper."""
    counter = (position >> 8) << 7
    bits = np.uint64(key)
    low = np.uint32(bits & np.uint64(0xFFFFFFFF))
    high = np.uint32((bits >> np.uint64(32)) + np.uint64(counter >> 32) * _GOLDEN)
    base = np.uint32(counter & 0xFFFFFFFF)
    half, unit = np.float32(0.5), np.float32(2.0**-16)
    for j in range(_RUN // 2):
        h = mix(np.uint32(base + np.uint32(j)), low, high)
        u[j] = (np.float32(np.int32(h & np.uint32(0xFFFF))) + half) * unit
        u[_RUN // 2 + j] = (np.float32(np.int32(h >> np.uint32(16))) + half) * unit


@njit(nogil=True, cache=True, error_model="numpy")
def _cut(table, b, done):
    """The next piece of block b within one run: its place in values, in codes and in the run, and its count."""
    position = table[b, POSITION] + done
    inside = position & (_RUN - 1)
    count = min(_RUN - inside, table[b, LENGTH] - done)
    return table[b, START] + done, table[b, CODE] + done, inside, count


@functools.cache
def _few_levels(s):
    """A kernel for s levels: LLVM unrolls the loop over the levels and vectorizes the one over values.

    It must close over the number alone, or Numba could not find it in its cache on disk.
    """

    @njit(nogil=True, cache=True, error_model="numpy")
    def stochastic(values, levels, table, keys, codes, first, stop):
        u = np.empty(_RUN, np.float32)
        for b in range(first, stop):
            level = to_fixed_tuple(levels[b], s)
            done = 0
            while done < table[b, LENGTH]:
                _draw(table[b, POSITION] + done, keys[b], u)
                start, code, inside, count = _cut(table, b, done)
                x, v, out = values[start : start + count], u[inside : inside + count], codes[code : code + count]
                for j in range(count):
                    low, step, c = level[0], level[1] - level[0], np.int32(0)
                    for k in range(1, s - 1):
                        above = x[j] >= level[k]
                        low = level[k] if above else low
                        step = level[k + 1] - level[k] if above else step
                        c += np.int32(above)
                    out[j] = np.uint8(c + np.int32((x[j] - low) > v[j] * step))
                done += count

    return stochastic


@njit(nogil=True, cache=True, error_model="numpy")
def _in_passes(x, levels, u, codes):
    low, step = np.empty(_RUN, np.float32), np.empty(_RUN, np.float32)
    for j in range(len(x)):
        low[j], step[j], codes[j] = levels[0], levels[1] - levels[0], 0
    for k in range(1, len(levels) - 1):
        level, width = levels[k], levels[k + 1] - levels[k]
        for j in range(len(x)):
            above = x[j] >= level  # unconditional stores of selects: LLVM makes vector blends of them
            low[j] = level if above else low[j]
            step[j] = width if above else step[j]
            codes[j] += above
    for j in range(len(x)):
        codes[j] += (x[j] - low[j]) > u[j] * step[j]


@njit(nogil=True, cache=True, error_model="numpy")
def _by_search(x, levels, u, codes):
    for j in range(len(x)):
        first, stop = 1, len(levels) - 1
        while first < stop:
            middle = (first + stop) >> 1
            if x[j] >= levels[middle]:
                first = middle + 1
            else:
                stop = middle
        low, step = levels[first - 1], levels[first] - levels[first - 1]
        codes[j] = first - 1 + ((x[j] - low) > u[j] * step)


@njit(nogil=True, cache=True, error_model="numpy")
def _many_levels(values, levels, table, keys, codes, first, stop):
    u = np.empty(_RUN, np.float32)
    for b in range(first, stop):
        done = 0
        while done < table[b, LENGTH]:
            _draw(table[b, POSITION] + done, keys[b], u)
            start, code, inside, count = _cut(table, b, done)
            x, out = values[start : start + count], codes[code : code + count]
            if levels.shape[1] <= _IN_PASSES:
                _in_passes(x, levels[b], u[inside:], out)
            else:
                _by_search(x, levels[b], u[inside:], out)
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
        s = levels.shape[1]
        stochastic = _few_levels(s) if s <= _IN_REGISTERS else _many_levels
        for_ranges(len(cuts), 16, lambda i, j: stochastic(x, b, cuts, streams, codes, i, j))
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
