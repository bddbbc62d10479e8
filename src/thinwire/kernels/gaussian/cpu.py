"""Rounding to Lloyd-Max levels of N(0, 1) on the CPU: one kernel for all level counts, four comparisons at a time."""

import functools

import numpy as np
from numba import njit

from thinwire.kernels.gaussian.reference import FIRST, LENGTH, LEVELS, PLACE, levels_of, midpoints_of
from thinwire.kernels.gaussian.tables import POSITIVE_LEVELS
from thinwire.kernels.hadamard.cpu import fold
from thinwire.kernels.hadamard.reference import LANES
from thinwire.kernels.hadamard.vectors import add_products
from thinwire.kernels.machine import load, store

__all__ = ["dequantize_rows", "quantize_rows", "tables"]

_RUN = 256
_AT_ONCE = 4


@functools.cache
def tables() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Where each level count's numbers start, its levels, and its midpoints filled up with infinity."""
    starts = np.zeros(257, np.int64)
    size = 0
    for s in POSITIVE_LEVELS:
        starts[s] = size
        size += s + _AT_ONCE
    levels, midpoints = np.zeros(size, np.float32), np.full(size, np.inf, np.float32)
    for s in POSITIVE_LEVELS:
        levels[starts[s] : starts[s] + s] = levels_of(s).numpy()
        midpoints[starts[s] : starts[s] + s - 1] = midpoints_of(levels_of(s)).numpy()
    return starts, levels, midpoints


@njit(nogil=True, cache=True, error_model="numpy")
def _count_below(x, at, count, midpoints, start, s, codes):
    """codes[j] = how many midpoints are below x[at + j]."""
    for j in range(count):
        store(codes, j, np.int32(0))
    for k in range(start, start + s - 1, _AT_ONCE):
        a, b, c, d = midpoints[k], midpoints[k + 1], midpoints[k + 2], midpoints[k + 3]
        for j in range(count):
            v = load(x, at + j)
            more = np.int32(v > a) + np.int32(v > b) + np.int32(v > c) + np.int32(v > d)
            store(codes, j, np.int32(load(codes, j) + more))


@njit(nogil=True, cache=True, error_model="numpy")
def _look_up(codes, count, levels, start, found):
    for j in range(count):
        store(found, j, load(levels, start + np.int64(load(codes, j))))


@njit(nogil=True, cache=True, error_model="numpy")
def _narrow(wide, count, codes, to):
    for j in range(count):
        store(codes, to + j, np.uint8(load(wide, j)))


@njit(nogil=True, cache=True, error_model="numpy")
def quantize_rows(x, base, table, starts, levels, midpoints, codes, products, first, stop):
    """As quantize_normal in reference.py, for some rows; `x` begins with coordinate `base`."""
    wide, found = np.empty(_RUN, np.int32), np.empty(_RUN, np.float32)
    own, lanes = np.empty(LANES, np.float32), np.empty(LANES, np.float32)
    for r in range(first, stop):
        s = table[r, LEVELS]
        lanes[:] = 0
        for done in range(0, table[r, LENGTH], _RUN):
            at, n = table[r, FIRST] - base + done, min(_RUN, table[r, LENGTH] - done)
            _count_below(x, at, n, midpoints, starts[s], s, wide)
            _look_up(wide, n, levels, starts[s], found)
            _narrow(wide, n, codes, table[r, PLACE] + done)
            whole = n // LANES * LANES
            for step in range(0, whole, LANES):
                add_products(x, at + step, found, step, lanes)
            if whole < n:
                own[:] = 0
                own[: n - whole] = x[at + whole : at + n]
                found[n : whole + LANES] = 0
                add_products(own, 0, found, whole, lanes)
        products[r] = fold(lanes)


@njit(nogil=True, cache=True, error_model="numpy")
def dequantize_rows(codes, table, starts, levels, x, base, first, stop):
    """As dequantize_normal in reference.py, for some rows; `x` begins with coordinate `base`, and stays elsewhere."""
    for r in range(first, stop):
        start, place, to = starts[table[r, LEVELS]], table[r, PLACE], table[r, FIRST] - base
        for j in range(table[r, LENGTH]):
            store(x, to + j, load(levels, start + np.int64(load(codes, place + j))))
