"""Packing on the CPU, group by group: Horner's rule over the 64 words of a group, vector loops over the words."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.pack.digits import GROUP, digit_layout, packed_bytes
from thinwire.kernels.pool import for_ranges

__all__ = ["pack", "unpack"]

_PART = np.uint64(1 << 31)


@njit(nogil=True, cache=True, error_model="numpy")
def _pack_group(codes, base, count, bits, lanes, words, out):
    whole, planes = bits // 8, bits % 8
    words[:lanes] = 0
    for i in range(count - 1, -1, -1):
        present = min(lanes, len(codes) - i * lanes)  # the last group's last digits may be missing
        for j in range(lanes):
            words[j] *= base
        for j in range(present):
            words[j] += np.uint64(codes[i * lanes + j])
    for t in range(whole):
        for j in range(lanes):
            out[j * whole + t] = np.uint8(words[j] >> np.uint64(8 * t))
    plane_bytes = (lanes + 7) // 8
    for t in range(planes):
        plane = out[lanes * whole + t * plane_bytes : lanes * whole + (t + 1) * plane_bytes]
        plane[:] = 0
        for j in range(lanes):
            bit = np.uint8((words[j] >> np.uint64(8 * whole + t)) & np.uint64(1))
            plane[j >> 3] |= np.uint8(bit << (j & 7))


@njit(nogil=True, cache=True, error_model="numpy")
def _pack(codes, base, count, bits, out, first, stop):
    words = np.empty(GROUP, np.uint64)
    run = GROUP * count
    for g in range(first, stop):
        rest = codes[g * run : (g + 1) * run]
        lanes = min(GROUP, (len(rest) + count - 1) // count)
        _pack_group(rest, np.uint64(base), count, bits, lanes, words, out[g * 8 * bits :])


@njit(nogil=True, cache=True, error_model="numpy")
def _digits(word, base, count, magic, shift, lanes, codes):
    """Write `count` base-`base` digits of a word below 2^31, `lanes` apart.

    word // base = (word magic) >> shift exactly, with magic = ceil(2^shift / base) and shift = 32 + floor(log2 base):
    magic base exceeds 2^shift by less than base < 2^(shift - 31), so the quotient is off by less than 1 / base.
    """
    for i in range(count):
        if i * lanes >= len(codes):
            return
        quotient = (word * magic) >> shift
        codes[i * lanes] = np.uint8(word - quotient * base)
        word = quotient


@njit(nogil=True, cache=True, error_model="numpy")
def _unpack_group(packed, base, count, bits, magic, shift, lanes, codes):
    whole, planes = bits // 8, bits % 8
    plane_bytes = (lanes + 7) // 8
    for j in range(lanes):
        word = np.uint64(0)
        for t in range(whole):
            word |= np.uint64(packed[j * whole + t]) << np.uint64(8 * t)
        for t in range(planes):
            bit = (packed[lanes * whole + t * plane_bytes + (j >> 3)] >> (j & 7)) & 1
            word |= np.uint64(bit) << np.uint64(8 * whole + t)
        done = 0
        while done < count and done * lanes + j < len(codes):
            part, power = 0, np.uint64(1)  # as many digits as stay below 2^31
            while done + part < count and power * base < _PART:
                part, power = part + 1, power * base
            rest = word // power
            _digits(word - rest * power, base, part, magic, shift, lanes, codes[done * lanes + j :])
            word, done = rest, done + part


@njit(nogil=True, cache=True, error_model="numpy")
def _unpack(packed, base, count, bits, magic, shift, codes, first, stop):
    run = GROUP * count
    for g in range(first, stop):
        rest = codes[g * run : (g + 1) * run]
        lanes = min(GROUP, (len(rest) + count - 1) // count)
        _unpack_group(
            packed[g * 8 * bits :],
            np.uint64(base),
            count,
            bits,
            np.uint64(magic),
            np.uint64(shift),
            lanes,
            rest,
        )


def pack(codes: Tensor, levels: int) -> Tensor:
    digits = digit_layout(levels)
    source = codes.numpy()
    out = np.empty(packed_bytes(len(source), levels), np.uint8)
    groups = -(-len(source) // (GROUP * digits.count))
    for_ranges(groups, 64, lambda a, b: _pack(source, levels, digits.count, digits.bits, out, a, b))
    return torch.from_numpy(out)


def unpack(packed: Tensor, levels: int, values: int) -> Tensor:
    digits = digit_layout(levels)
    source = packed.numpy()
    codes = np.empty(values, np.uint8)
    shift = 31 + levels.bit_length()
    magic = -(-(1 << shift) // levels)
    groups = -(-values // (GROUP * digits.count))
    for_ranges(groups, 64, lambda a, b: _unpack(source, levels, digits.count, digits.bits, magic, shift, codes, a, b))
    return torch.from_numpy(codes)
