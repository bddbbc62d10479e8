"""Solvers that need a block's values in order: Numba on a few sorted rows at a time."""

import numpy as np
from numba import njit
from torch import Tensor

from thinwire.kernels.rows import solve_sorted
from thinwire.kernels.solve.sums import exponent_for, power_of_two, total_units, unit_bits

__all__ = ["solve_clipped_pair", "solve_orq", "solve_quantiles", "solve_two_means"]


@njit(nogil=True, cache=True, error_model="numpy")
def _sum(row, left, scale):
    """The sum of (x - left) scale, each term rounded to an integer."""
    total = np.uint64(0)
    for i in range(len(row)):
        total += unit_bits((np.float64(row[i]) - left) * scale)
    return total_units(total, len(row))


@njit(nogil=True, cache=True, error_model="numpy")
def _middle(row, length, first, last):
    left = np.float64(row[first])
    span = np.float64(row[last]) - left
    if span == 0.0:
        return last
    scale = power_of_two(exponent_for(length, span))
    return last - _sum(row[first : last + 1], left, scale) // total_units(unit_bits(span * scale), 1)


@njit(nogil=True, cache=True, error_model="numpy")
def _orq(rows, lengths, out):
    levels = out.shape[1]
    picks = np.empty(levels, np.int64)
    for b in range(len(rows)):
        row = rows[b]
        picks[0] = 0
        picks[levels - 1] = lengths[b] - 1
        stride = levels - 1
        while stride > 1:
            for left in range(0, levels - 1, stride):
                picks[left + stride // 2] = _middle(row, lengths[b], picks[left], picks[left + stride])
            stride //= 2
        for k in range(levels):
            out[b, k] = row[picks[k]]


def solve_orq(values: Tensor, table: Tensor, levels: int) -> Tensor:
    return solve_sorted(values, table, levels, _orq)


@njit(nogil=True, cache=True, error_model="numpy")
def _best_split(row, least, scale, total):
    """The number of values on the left of the best split, the first of several, and their sum in units."""
    n = np.float64(len(row))
    mean = np.float64(total) / n
    most, best, low = -1.0, np.int64(0), np.int64(0)
    sums = np.int64(0)
    for i in range(len(row) - 1):
        sums += total_units(unit_bits((np.float64(row[i]) - least) * scale), 1)
        k = np.float64(i + 1)
        distance = np.float64(sums) - k * mean
        gain = distance * distance * n / (k * (n - k))
        if gain > most:
            most, best, low = gain, np.int64(i + 1), sums
    return best, low


@njit(nogil=True, cache=True, error_model="numpy")
def _two_means(rows, lengths, out):
    for b in range(len(rows)):
        n = lengths[b]
        row = rows[b, :n]
        if n == 1:
            out[b] = row[0]
            continue
        least = np.float64(row[0])
        exponent = exponent_for(n, np.float64(row[n - 1]) - least)
        scale, unit = power_of_two(exponent), power_of_two(-exponent)
        total = _sum(row, least, scale)
        count, low = _best_split(row, least, scale, total)
        out[b, 0] = np.float64(low) / np.float64(count) * unit + least
        out[b, 1] = np.float64(total - low) / np.float64(n - count) * unit + least


def solve_two_means(values: Tensor, table: Tensor) -> Tensor:
    return solve_sorted(values, table, 2, _two_means)


@njit(nogil=True, cache=True, error_model="numpy")
def _clipped_pair(rows, lengths, out):
    for b in range(len(rows)):
        n = lengths[b]
        row = rows[b, :n]
        exponent = exponent_for(n, np.float64(row[n - 1]))
        scale, unit = power_of_two(exponent), power_of_two(-exponent)
        k, before = n - 1, np.int64(0)  # before: the sum of the magnitudes after k, in units
        here = total_units(unit_bits(np.float64(row[k]) * scale), 1)
        while here * n > before + here:
            before += here
            k -= 1
            here = total_units(unit_bits(np.float64(row[k]) * scale), 1)
        out[b, 0] = max(np.float64(row[k]), np.float64(before) * unit / np.float64(n))


def solve_clipped_pair(values: Tensor, table: Tensor) -> Tensor:
    return solve_sorted(values, table, 1, _clipped_pair, magnitudes=True)


@njit(nogil=True, cache=True, error_model="numpy")
def _quantiles(rows, lengths, out):
    steps = out.shape[1] - 1
    for b in range(len(rows)):
        for k in range(steps + 1):
            out[b, k] = rows[b, (2 * k * (lengths[b] - 1) + steps) // (2 * steps)]


def solve_quantiles(values: Tensor, table: Tensor, levels: int) -> Tensor:
    return solve_sorted(values, table, levels, _quantiles)
