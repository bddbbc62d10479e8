"""Solvers that read a block in any order: Numba on the values where they lie."""

import math
from collections.abc import Callable

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.rows import LARGEST, for_blocks
from thinwire.kernels.solve.sums import exponent_for, power_of_two, total_units, unit_bits
from thinwire.kernels.table import LENGTH, START

__all__ = [
    "solve_full_range",
    "solve_largest_magnitude",
    "solve_mean_magnitude",
    "solve_root_energy",
    "solve_within_deviations",
]

_LARGEST = np.float32(LARGEST)


def _solve(kernel: Callable[..., object], values: Tensor, table: Tensor, columns: int, *numbers: float) -> Tensor:
    """Run kernel(values, table, out, *numbers, first, stop) over the blocks."""
    source, cuts = values.numpy(), table.numpy()
    out = np.empty((len(cuts), columns), np.float32)
    for_blocks(cuts, lambda a, b: kernel(source, cuts, out, *numbers, a, b))
    return torch.from_numpy(out)


@njit(nogil=True, cache=True, error_model="numpy")
def _value(key):
    return np.int32(key ^ ((key >> 31) & 0x7FFFFFFF)).view(np.float32) + np.float32(0)


@njit(nogil=True, cache=True, error_model="numpy")
def _block(values, table, b):
    """A block's values, its least and its greatest; these are NaN in a block with a non-finite value.

    Float32 bits, the lower 31 inverted below zero, are integers in the order of the values, NaN beyond the infinities.
    """
    x = values[table[b, START] : table[b, START] + table[b, LENGTH]]
    low, high = np.int32(0x7FFFFFFF), np.int32(-0x80000000)
    for i in range(len(x)):
        bits = np.float32(x[i]).view(np.int32)
        key = np.int32(bits ^ ((bits >> 31) & 0x7FFFFFFF))
        low = key if key < low else low
        high = key if key > high else high
    least, greatest = _value(low), _value(high)
    if not (least > -_LARGEST and greatest < _LARGEST):
        least, greatest = np.float32(np.nan), np.float32(np.nan)
    return x, least, greatest


@njit(nogil=True, cache=True, error_model="numpy")
def _full_range(values, table, out, first, stop):
    for b in range(first, stop):
        _, out[b, 0], out[b, 1] = _block(values, table, b)


def solve_full_range(values: Tensor, table: Tensor) -> Tensor:
    return _solve(_full_range, values, table, 2)


@njit(nogil=True, cache=True, error_model="numpy")
def _largest_magnitude(values, table, out, first, stop):
    for b in range(first, stop):
        _, least, greatest = _block(values, table, b)
        out[b, 0] = max(abs(least), abs(greatest))


def solve_largest_magnitude(values: Tensor, table: Tensor) -> Tensor:
    return _solve(_largest_magnitude, values, table, 1)


@njit(nogil=True, cache=True, error_model="numpy")
def _mean_magnitude(values, table, out, first, stop):
    for b in range(first, stop):
        x, least, greatest = _block(values, table, b)
        if math.isnan(least):
            out[b, 0] = least
            continue
        exponent = exponent_for(len(x), np.float64(max(abs(least), abs(greatest))))
        scale = power_of_two(exponent)
        bits = np.uint64(0)
        for i in range(len(x)):
            bits += unit_bits(np.float64(abs(x[i])) * scale)
        out[b, 0] = np.float64(total_units(bits, len(x))) * power_of_two(-exponent) / np.float64(len(x))


def solve_mean_magnitude(values: Tensor, table: Tensor) -> Tensor:
    return _solve(_mean_magnitude, values, table, 1)


@njit(nogil=True, cache=True, error_model="numpy")
def _squares(x, origin, mean, top):
    """The sum of (x - origin - mean)^2 in fixed point, top the greatest of them; not yet divided by a count."""
    exponent = exponent_for(len(x), top)
    scale = power_of_two(exponent)
    bits = np.uint64(0)
    for i in range(len(x)):
        distance = np.float64(x[i]) - origin - mean
        bits += unit_bits(distance * distance * scale)
    return np.float64(total_units(bits, len(x))) * power_of_two(-exponent)


@njit(nogil=True, cache=True, error_model="numpy")
def _root_energy(values, table, out, first, stop):
    for b in range(first, stop):
        x, least, greatest = _block(values, table, b)
        if math.isnan(least):
            out[b, 0] = least
            continue
        largest = max(abs(least), abs(greatest))
        top = np.float64(largest) * np.float64(largest)
        norm = np.float32(math.sqrt(_squares(x, 0.0, 0.0, top)))
        out[b, 0] = max(min(norm, np.float32(0.5) * _LARGEST), largest)


def solve_root_energy(values: Tensor, table: Tensor) -> Tensor:
    return _solve(_root_energy, values, table, 1)


@njit(nogil=True, cache=True, error_model="numpy")
def _deviation(x, low, span):
    """The standard deviation: mean and squares of x - low, where all of x lies in [low, low + span]."""
    exponent = exponent_for(len(x), span)
    scale = power_of_two(exponent)
    bits = np.uint64(0)
    for i in range(len(x)):
        bits += unit_bits((np.float64(x[i]) - low) * scale)
    n = np.float64(len(x))
    mean = np.float64(total_units(bits, len(x))) * power_of_two(-exponent) / n
    return math.sqrt(_squares(x, low, mean, max(mean * mean, (span - mean) * (span - mean))) / n)


@njit(nogil=True, cache=True, error_model="numpy")
def _within_deviations(values, table, out, clip, first, stop):
    for b in range(first, stop):
        x, least, greatest = _block(values, table, b)
        if math.isnan(least):
            out[b, 0] = least
            continue
        low = np.float64(least)
        bound = np.float32(clip * _deviation(x, low, np.float64(greatest) - low))
        largest = max(abs(least), abs(greatest))
        out[b, 0] = min(largest, bound) if bound > 0 else largest


def solve_within_deviations(values: Tensor, table: Tensor, clip: float) -> Tensor:
    return _solve(_within_deviations, values, table, 1, float(clip))
