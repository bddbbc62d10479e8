"""Sums in 64-bit integers, so that they are the same in every order and on every backend.

Values are scaled by a power of two so that `top`, the largest magnitude a term can have, takes `bits` bits, and rounded
to integers: each term is off by at most half a unit, 2^-bits of `top`, and the terms of a block cannot overflow.
Numba's form is in kernels/solve/sums.py.
"""

import torch
from torch import Tensor

__all__ = ["MOST_BITS", "fixed_bits", "fixed_point", "power_of_two"]

MOST_BITS = 52  # a float64 holds no more, and 2^52 + y has the integer nearest to y as its low bits


def fixed_bits(lengths: Tensor) -> Tensor:
    """Bits for each of `lengths` terms so that their sum stays below 2^62, at most 52: int64 `[blocks]`."""
    return (62 - torch.frexp(lengths.to(torch.float64)).exponent.to(torch.int64)).clamp(max=MOST_BITS)


def power_of_two(exponent: Tensor) -> Tensor:
    """2^exponent in float64, exactly, for int64 exponents in [-1022, 1023]."""
    return ((exponent + 1023) << 52).view(torch.float64)


def fixed_point(terms: Tensor, top: Tensor, bits: Tensor) -> tuple[Tensor, Tensor]:
    """Scale terms by a power of two and round them to integers.

    Args:
        terms: float64 `[blocks, n]`, in [0, top].
        top: float64 `[blocks]`, zero or at least 2^-900.
        bits: int64 `[blocks]`, what `top` may take.
    Returns:
        int64 `[blocks, n]`, and the value of one unit, float64 `[blocks]`.
    """
    exponent = bits - torch.frexp(top).exponent.to(torch.int64)
    return torch.round(terms * power_of_two(exponent)[:, None]).to(torch.int64), power_of_two(-exponent)
