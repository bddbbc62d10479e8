"""Order-free sums in Numba: kernels/fixed_point.py with the same bits, one term at a time."""

import math

import numpy as np
from numba import njit

from thinwire.kernels.fixed_point import MOST_BITS

__all__ = ["exponent_for", "power_of_two", "total_units", "unit_bits"]

_ONE = 2.0**MOST_BITS
_ONE_BITS = np.float64(_ONE).view(np.uint64)


@njit(nogil=True, cache=True, error_model="numpy")
def exponent_for(length, top):
    """The power of two that brings `top` to as many bits as `length` terms may take."""
    return min(MOST_BITS, 62 - math.frexp(np.float64(length))[1]) - math.frexp(top)[1]


@njit(nogil=True, cache=True, error_model="numpy")
def power_of_two(exponent):
    """2^exponent, exactly, for exponents in [-1022, 1023]."""
    return np.int64((exponent + 1023) << 52).view(np.float64)


@njit(nogil=True, cache=True, error_model="numpy")
def unit_bits(scaled):
    """The bits of 2^52 + scaled, 0 <= scaled <= 2^52: its last ones are the nearest integer. Sum them as uint64."""
    return np.float64(scaled + _ONE).view(np.uint64)


@njit(nogil=True, cache=True, error_model="numpy")
def total_units(bits, count):
    """The sum of `count` integers from the sum (modulo 2^64) of their `unit_bits`."""
    return np.int64(bits - np.uint64(count) * _ONE_BITS)
