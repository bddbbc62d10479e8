"""Packing on the CPU: what is the same for every level count, and the numbers that the fused kernels compile in.

The kernels in kernels/round pack full groups themselves, with the layout's numbers as constants, so that LLVM unrolls
loops over digits and makes vectors of words. Here are a group of any number of words, and the bytes of 64 words.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.machine import high_product, high_product16, load, load_word, store, store_word
from thinwire.kernels.pack.digits import GROUP, digit_layout, packed_bytes
from thinwire.kernels.pool import for_ranges

__all__ = [
    "Recipe",
    "join_parts",
    "pack",
    "pack_group",
    "read_words",
    "recipe",
    "split_parts",
    "unpack",
    "unpack_group",
    "write_words",
]

_TO_TOP_BYTE = np.uint64(0x0102040810204080)


@dataclass(frozen=True)
class Recipe:
    """How vectors take a word apart: into parts of `each` digits (the last of `rest`), and a part into digits.

    Part // base = (part inverse) >> 16 exactly, with inverse = ceil(2^16 / base) = (2^16 + e) / base, because
    part e < 2^16. Word // power = (word magic) >> (64 + shift) exactly, with power = base^each,
    shift = ceil(log2 power) - 1 and magic = ceil(2^(64 + shift) / power) < 2^64, because the quotient is off by less
    than 2^56 / 2^(64 + shift) < 1 / power.
    """

    each: int
    parts: int
    rest: int
    inverse: int
    power: int
    magic: int
    shift: int


@functools.cache
def recipe(levels: int) -> Recipe:
    digits = digit_layout(levels)
    inverse = -(-(1 << 16) // levels)
    excess = max(inverse * levels - (1 << 16), 1)
    each = 1
    while each < digits.count and (levels ** (each + 1) - 1) * excess < 1 << 16:
        each += 1
    if ((1 << digits.bits) - 1) * excess < 1 << 16:  # whatever the bytes, a word is a part
        each = digits.count
    parts = -(-digits.count // each)
    power = levels**each
    shift = (power - 1).bit_length() - 1
    magic = -(-(1 << (64 + shift)) // power)
    return Recipe(each, parts, digits.count - (parts - 1) * each, inverse, power, magic, shift)


@njit(nogil=True, cache=True, error_model="numpy")
def pack_group(codes, base, count, bits, out):
    """Pack a group of at most 64 words: lanes words, digit i of word j at i lanes + j, zero where there is none."""
    lanes = (len(codes) + count - 1) // count
    whole, planes, octets = bits >> 3, bits & 7, (lanes + 7) // 8
    out[lanes * whole : lanes * whole + planes * octets] = 0
    for j in range(lanes):
        word = np.uint64(0)
        for i in range(count - 1, -1, -1):
            at = i * lanes + j
            word = word * np.uint64(base) + np.uint64(codes[at] if at < len(codes) else 0)
        for t in range(whole):
            out[j * whole + t] = np.uint8(word >> np.uint64(8 * t))
        for t in range(planes):
            bit = np.uint8((word >> np.uint64(8 * whole + t)) & np.uint64(1))
            out[lanes * whole + t * octets + (j >> 3)] |= np.uint8(bit << (j & 7))


@njit(nogil=True, cache=True, error_model="numpy")
def unpack_group(packed, base, count, bits, codes):
    """The inverse of pack_group; codes below base whatever the bytes."""
    lanes = (len(codes) + count - 1) // count
    whole, planes, octets = bits >> 3, bits & 7, (lanes + 7) // 8
    for j in range(lanes):
        word = np.uint64(0)
        for t in range(whole):
            word |= np.uint64(packed[j * whole + t]) << np.uint64(8 * t)
        for t in range(planes):
            bit = (packed[lanes * whole + t * octets + (j >> 3)] >> (j & 7)) & 1
            word |= np.uint64(bit) << np.uint64(8 * whole + t)
        for at in range(j, len(codes), lanes):
            codes[at] = np.uint8(word % np.uint64(base))
            word //= np.uint64(base)


@njit(nogil=True, cache=True, error_model="numpy")
def join_parts(part, parts, power, words):
    """words[j] = sum_p part[64 p + j] power^p."""
    for j in range(GROUP):
        word = np.uint64(load(part, (parts - 1) * GROUP + j))
        for p in range(parts - 2, -1, -1):
            word = word * np.uint64(power) + np.uint64(load(part, p * GROUP + j))
        store(words, j, word)


@njit(nogil=True, cache=True, error_model="numpy")
def split_parts(words, parts, power, magic, shift, part):
    """The inverse of join_parts; of one part, the word itself."""
    for j in range(GROUP):
        word = load(words, j)
        for p in range(parts - 1 if parts == 1 else parts):
            quotient = high_product(word, np.uint64(magic)) >> np.uint64(shift)
            store(part, p * GROUP + j, np.uint16(word - quotient * np.uint64(power)))
            word = quotient
        if parts == 1:
            store(part, j, np.uint16(word))


@njit(nogil=True, cache=True, error_model="numpy")
def write_words(words, bits, out, at):
    """The bytes of a full group's 64 words: whole bytes word by word, then each remaining bit as a plane of 8 bytes."""
    whole, planes = bits >> 3, bits & 7
    for j in range(GROUP - 8 if whole else 0):
        store_word(out, at + j * whole, load(words, j))  # the next words overwrite what is too much
    for j in range(GROUP - 8, GROUP):
        for t in range(whole):
            store(out, at + j * whole + t, np.uint8(load(words, j) >> np.uint64(8 * t)))
    for t in range(planes):
        for i in range(8):
            spread = np.uint64(0)  # bit k in byte k; the product gathers them in its top byte
            for k in range(8):
                bit = (load(words, 8 * i + k) >> np.uint64(8 * whole + t)) & np.uint64(1)
                spread |= bit << np.uint64(8 * k)
            store(out, at + GROUP * whole + 8 * t + i, np.uint8((spread * _TO_TOP_BYTE) >> np.uint64(56)))


@njit(nogil=True, cache=True, error_model="numpy")
def read_words(packed, at, bits, words):
    """The inverse of write_words."""
    whole, planes = bits >> 3, bits & 7
    mask = (np.uint64(1) << np.uint64(8 * whole)) - np.uint64(1)
    for j in range(GROUP - 8 if whole else 0):
        store(words, j, load_word(packed, at + j * whole) & mask)
    for j in range(GROUP - 8 if whole else 0, GROUP):
        word = np.uint64(0)
        for t in range(whole):
            word |= np.uint64(load(packed, at + j * whole + t)) << np.uint64(8 * t)
        store(words, j, word)
    for t in range(planes):
        for i in range(8):
            octet = np.uint64(load(packed, at + GROUP * whole + 8 * t + i))
            for k in range(8):
                bit = (octet >> np.uint64(k)) & np.uint64(1)
                store(words, 8 * i + k, load(words, 8 * i + k) | (bit << np.uint64(8 * whole + t)))


@njit(nogil=True, cache=True, error_model="numpy")
def _join_digits(codes, place, base, digits, part, at):
    """part[at + j] = sum_i codes[place + 64 i + j] base^i."""
    for j in range(GROUP):
        store(part, at + j, np.uint16(load(codes, place + (digits - 1) * GROUP + j)))
    for i in range(digits - 2, -1, -1):
        for j in range(GROUP):
            higher = np.uint16(load(part, at + j) * np.uint16(base))
            store(part, at + j, np.uint16(higher + np.uint16(load(codes, place + i * GROUP + j))))


@njit(nogil=True, cache=True, error_model="numpy")
def _split_digits(part, at, base, inverse, digits, codes, place):
    """The inverse of _join_digits; part is overwritten."""
    for i in range(digits):
        for j in range(GROUP):
            word = load(part, at + j)
            quotient = high_product16(word, np.uint16(inverse))
            store(codes, place + i * GROUP + j, np.uint8(word - np.uint16(quotient * np.uint16(base))))
            store(part, at + j, quotient)


@njit(nogil=True, cache=True, error_model="numpy")
def _pack(codes, base, count, bits, each, parts, rest, power, out, first, stop):
    run, size = GROUP * count, 8 * bits
    part, words = np.empty(parts * GROUP, np.uint16), np.empty(GROUP, np.uint64)
    for g in range(first, stop):
        if (g + 1) * run > len(codes):
            pack_group(codes[g * run :], base, count, bits, out[g * size :])
            continue
        for p in range(parts):
            digits = each if p < parts - 1 else rest
            _join_digits(codes, g * run + p * each * GROUP, base, digits, part, p * GROUP)
        if bits == 8 and parts == 1:
            for j in range(GROUP):
                store(out, g * size + j, np.uint8(load(part, j)))
        else:
            join_parts(part, parts, power, words)
            write_words(words, bits, out, g * size)


@njit(nogil=True, cache=True, error_model="numpy")
def _unpack(packed, base, count, bits, each, parts, rest, power, magic, shift, inverse, codes, first, stop):
    run, size = GROUP * count, 8 * bits
    part, words = np.empty(parts * GROUP, np.uint16), np.empty(GROUP, np.uint64)
    for g in range(first, stop):
        if (g + 1) * run > len(codes):
            unpack_group(packed[g * size :], base, count, bits, codes[g * run :])
            continue
        if bits == 8 and parts == 1:
            for j in range(GROUP):
                store(part, j, np.uint16(load(packed, g * size + j)))
        else:
            read_words(packed, g * size, bits, words)
            split_parts(words, parts, power, magic, shift, part)
        for p in range(parts):
            digits = each if p < parts - 1 else rest
            _split_digits(part, p * GROUP, base, inverse, digits, codes, g * run + p * each * GROUP)


def pack(codes: Tensor, levels: int) -> Tensor:
    digits, r, source = digit_layout(levels), recipe(levels), codes.numpy()
    out = np.empty(packed_bytes(len(source), levels), np.uint8)
    groups = -(-len(source) // (GROUP * digits.count))
    numbers = levels, digits.count, digits.bits, r.each, r.parts, r.rest, r.power
    for_ranges(groups, 64, lambda a, b: _pack(source, *numbers, out, a, b))
    return torch.from_numpy(out)


def unpack(packed: Tensor, levels: int, values: int) -> Tensor:
    digits, r, source = digit_layout(levels), recipe(levels), packed.numpy()
    codes = np.empty(values, np.uint8)
    groups = -(-values // (GROUP * digits.count))
    numbers = levels, digits.count, digits.bits, r.each, r.parts, r.rest, r.power, np.uint64(r.magic), r.shift
    for_ranges(groups, 64, lambda a, b: _unpack(source, *numbers, r.inverse, codes, a, b))
    return torch.from_numpy(codes)
