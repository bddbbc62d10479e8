"""Rounding and packing on the CPU, and back, in one pass: a stretch of codes stays in the first cache.

A kernel is compiled for each level count, with its packing layout's numbers as constants: LLVM unrolls the loops over
levels and digits and makes vectors of values and words. Random numbers come a run of 256 values at a time, from 128
hashes. A kernel must close over numbers alone, or Numba could not find it in its cache on disk.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numba import njit
from numba.np.unsafe.ndarray import to_fixed_tuple
from torch import Tensor

from thinwire.kernels.machine import high_product16, load, store
from thinwire.kernels.pack.cpu import (
    join_parts,
    pack_group,
    read_words,
    recipe,
    split_parts,
    unpack_group,
    write_words,
)
from thinwire.kernels.pack.digits import GROUP, digit_layout, packed_bytes
from thinwire.kernels.pool import for_ranges
from thinwire.kernels.random.cpu import mix
from thinwire.kernels.table import CODE, LENGTH, POSITION, START

__all__ = ["dequantize", "quantize"]

_RUN = 256
_GOLDEN = np.uint64(0x9E3779B9)
_IN_REGISTERS = 9  # levels
_IN_PASSES = 33
_STRETCH = 4096  # codes, about, between rounding and packing
_SMALLEST = 1 << 15  # values worth a thread


@njit(nogil=True, cache=True, error_model="numpy")
def _uniforms(base, low, high, u):
    """Apart from _draw, or LLVM would multiply 64 bits."""
    half, unit = np.float32(0.5), np.float32(2.0**-16)
    for j in range(_RUN // 2):
        h = mix(np.uint32(base + np.uint32(j)), low, high)
        u[j] = (np.float32(np.int32(h & np.uint32(0xFFFF))) + half) * unit
        u[_RUN // 2 + j] = (np.float32(np.int32(h >> np.uint32(16))) + half) * unit


@njit(nogil=True, cache=True, error_model="numpy")
def _draw(position, key, u):
    """Uniforms of the run that holds a position: its lower half from the low 16 bits of each hash, then the upper."""
    counter = (position >> 8) << 7
    bits = np.uint64(key)
    low = np.uint32(bits & np.uint64(0xFFFFFFFF))
    high = np.uint32((bits >> np.uint64(32)) + np.uint64(counter >> 32) * _GOLDEN)
    _uniforms(np.uint32(counter & 0xFFFFFFFF), low, high, u)


@njit(nogil=True, cache=True, error_model="numpy")
def _block_of(table, code):
    """The block that holds a code."""
    first, stop = 0, len(table) - 1
    while first < stop:
        middle = (first + stop + 1) >> 1
        if table[middle, CODE] <= code:
            first = middle
        else:
            stop = middle - 1
    return first


@njit(nogil=True, cache=True, error_model="numpy")
def _prepare(levels, block, nearest, reached, low, step):
    """What values are compared with: inner levels, or midpoints; then NaN, which no value reaches.

    A value that reaches the first k of them lies in the interval that starts at low[k] and is step[k] wide.
    """
    half = np.float32(0.5)
    s = levels.shape[1]
    reached[:] = np.nan
    for k in range(s - 1):
        low[k], step[k] = levels[block, k], levels[block, k + 1] - levels[block, k]
        if nearest:
            reached[k] = half * levels[block, k] + half * levels[block, k + 1]
        elif k > 0:
            reached[k - 1] = levels[block, k]


@njit(nogil=True, cache=True, error_model="numpy")
def _count_reached(values, start, count, reached, stride, beyond, codes):
    """codes[j] = how many of reached[stride - 1 :: stride] a value reaches (or is beyond), eight at a time."""
    for j in range(count):
        store(codes, j, np.int32(0))
    for k in range(stride - 1, len(reached), 8 * stride):
        t = to_fixed_tuple(reached[k : k + 8 * stride : stride], 8)
        if beyond:
            for j in range(count):
                x, c = load(values, start + j), load(codes, j)
                for i in range(8):
                    c += np.int32(x > t[i])
                store(codes, j, c)
        else:
            for j in range(count):
                x, c = load(values, start + j), load(codes, j)
                for i in range(8):
                    c += np.int32(x >= t[i])
                store(codes, j, c)


@njit(nogil=True, cache=True, error_model="numpy")
def _search_reached(values, start, count, reached, stride, beyond, codes):
    """Finish a count over every stride-th, stride a power of two, by binary search: steps outside, values inside."""
    for j in range(count):
        store(codes, j, np.int32(load(codes, j) * stride))
    half = stride >> 1
    while half > 0:
        for j in range(count):
            c = load(codes, j)
            x, t = load(values, start + j), load(reached, c + half - 1)
            store(codes, j, np.int32(c + half * np.int32((x > t) if beyond else (x >= t))))
        half >>= 1


@njit(nogil=True, cache=True, error_model="numpy")
def _look_up(count, low, step, codes, lows, steps):
    for j in range(count):
        c = load(codes, j)
        store(lows, j, load(low, c))
        store(steps, j, load(step, c))


@njit(nogil=True, cache=True, error_model="numpy")
def _round_up(values, start, count, u, inside, lows, steps, codes):
    """codes[j] += whether the value goes up from its lower level."""
    for j in range(count):
        up = load(values, start + j) - load(lows, j) > load(u, inside + j) * load(steps, j)
        store(codes, j, np.int32(load(codes, j) + np.int32(up)))


@njit(nogil=True, cache=True, error_model="numpy")
def _look_up_many(codes, at, n, levels, block, total, start, add):
    row = levels[block]
    for j in range(n):
        value = load(row, np.int64(load(codes, at + j)))
        store(total, start + j, load(total, start + j) + value if add else value)


# The functions from here to the kernels are inlined by Numba, so that the kernel's constants reach their loops.


@njit(inline="always")
def _round_few(values, start, n, level, s, nearest, u, inside, codes):
    """Round n values to s levels held in registers."""
    half = np.float32(0.5)
    if nearest:
        for j in range(n):
            x, c = load(values, start + j), np.int32(0)
            for k in range(s - 1):
                c += np.int32(x > half * level[k] + half * level[k + 1])
            store(codes, j, c)
    else:
        for j in range(n):
            x, low, step, c = load(values, start + j), level[0], level[1] - level[0], np.int32(0)
            for k in range(1, s - 1):
                above = x >= level[k]
                low = level[k] if above else low
                step = level[k + 1] - level[k] if above else step
                c += np.int32(above)
            store(codes, j, c + np.int32(x - low > load(u, inside + j) * step))


@njit(inline="always")
def _join_digits(codes, at, digits, base, parts, row):
    """parts[row + j] = sum_i codes[at + 64 i + j] base^i; the parts of words of one byte are the packed bytes."""
    for j in range(GROUP):
        part = np.uint16(load(codes, at + (digits - 1) * GROUP + j))
        for i in range(digits - 2, -1, -1):
            part = np.uint16(np.uint16(part * np.uint16(base)) + load(codes, at + i * GROUP + j))
        store(parts, row + j, part)


@njit(inline="always")
def _split_digits(parts, row, digits, base, inverse, codes, at):
    """The inverse of _join_digits."""
    for j in range(GROUP):
        part = np.uint16(load(parts, row + j))
        for i in range(digits):
            quotient = high_product16(part, np.uint16(inverse))
            store(codes, at + i * GROUP + j, np.uint8(part - np.uint16(quotient * np.uint16(base))))
            part = quotient


@njit(inline="always")
def _look_up_few(codes, at, n, level, s, total, start, add):
    """Write or add the levels of n codes, levels in registers; codes as floats, or LLVM compares bytes at length."""
    if add:
        for j in range(n):
            c, value = np.float32(load(codes, at + j)), level[0]
            for k in range(1, s):
                value = level[k] if c >= np.float32(k) else value
            store(total, start + j, load(total, start + j) + value)
    else:
        for j in range(n):
            c, value = np.float32(load(codes, at + j)), level[0]
            for k in range(1, s):
                value = level[k] if c >= np.float32(k) else value
            store(total, start + j, value)


@functools.cache
def _quantizer(s: int) -> Callable[..., None]:
    """The kernel that rounds values to s levels and packs their codes."""
    digits, r = digit_layout(s), recipe(s)
    count, bits, each, parts, rest, power = digits.count, digits.bits, r.each, r.parts, r.rest, r.power
    run, size = GROUP * count, 8 * bits
    stretch = max(1, _STRETCH // run) * run
    few, one_byte, two_bytes = s <= _IN_REGISTERS, bits == 8 and parts == 1, bits == 16 and parts == 2
    room = -(-(s - 1) // 8) * 8 if s <= _IN_PASSES else 1 << (s - 1).bit_length()
    stride = 1 if s <= _IN_PASSES else room // 16

    @njit(nogil=True, cache=True, error_model="numpy")
    def quantize(values, levels, table, keys, nearest, packed, first, stop):
        u, rounded, codes = np.empty(_RUN, np.float32), np.empty(_RUN, np.int32), np.empty(stretch, np.uint8)
        part, words = np.empty(parts * GROUP, np.uint16), np.empty(GROUP, np.uint64)
        reached, low, step = np.empty(room, np.float32), np.zeros(room + 1, np.float32), np.zeros(room + 1, np.float32)
        lows, steps = np.empty(_RUN, np.float32), np.empty(_RUN, np.float32)
        block, drawn_run, drawn_key, prepared = _block_of(table, first), -1, np.int64(0), -1
        for begin in range(first, stop, stretch):
            end = min(begin + stretch, stop)
            at = begin
            while at < end:
                while at >= table[block, CODE] + table[block, LENGTH]:
                    block += 1
                done = at - table[block, CODE]
                position, start = table[block, POSITION] + done, table[block, START] + done
                inside = position & (_RUN - 1)
                n = min(min(_RUN - inside, table[block, LENGTH] - done), end - at)
                if not nearest and (drawn_run != position >> 8 or drawn_key != keys[block]):
                    _draw(position, keys[block], u)
                    drawn_run, drawn_key = position >> 8, keys[block]
                if few:
                    level = to_fixed_tuple(levels[block], s)
                    _round_few(values, start, n, level, s, nearest, u, inside, rounded)
                else:
                    if prepared != block:
                        _prepare(levels, block, nearest, reached, low, step)
                        prepared = block
                    _count_reached(values, start, n, reached, stride, nearest, rounded)
                    if stride > 1:
                        _search_reached(values, start, n, reached, stride, nearest, rounded)
                    if not nearest:
                        _look_up(n, low, step, rounded, lows, steps)
                        _round_up(values, start, n, u, inside, lows, steps, rounded)
                for j in range(n):
                    store(codes, at - begin + j, np.uint8(load(rounded, j)))
                at += n
            full, to = (end - begin) // run, begin // run * size
            for g in range(full):
                if one_byte:
                    _join_digits(codes, g * run, count, s, packed, to + g * size)
                    continue
                for p in range(parts - 1):
                    _join_digits(codes, g * run + p * each * GROUP, each, s, part, p * GROUP)
                _join_digits(codes, g * run + (parts - 1) * each * GROUP, rest, s, part, (parts - 1) * GROUP)
                if two_bytes:
                    for j in range(GROUP):
                        word = np.uint16(load(part, j) + np.uint16(load(part, GROUP + j) * np.uint16(power)))
                        store(packed, to + g * size + 2 * j, np.uint8(word))
                        store(packed, to + g * size + 2 * j + 1, np.uint8(word >> np.uint16(8)))
                else:
                    join_parts(part, parts, power, words)
                    write_words(words, bits, packed, to + g * size)
            if full * run < end - begin:
                pack_group(codes[full * run : end - begin], s, count, bits, packed[to + full * size :])

    return quantize


@functools.cache
def _dequantizer(s: int) -> Callable[..., None]:
    """The kernel that unpacks codes of s levels and writes or adds their levels."""
    digits, r = digit_layout(s), recipe(s)
    count, bits, each, parts, rest = digits.count, digits.bits, r.each, r.parts, r.rest
    power, magic, shift, inverse = r.power, np.uint64(r.magic), r.shift, r.inverse
    run, size = GROUP * count, 8 * bits
    stretch = max(1, _STRETCH // run) * run
    few, one_byte, two_bytes = s <= _IN_REGISTERS, bits == 8 and parts == 1, bits == 16 and parts == 2
    about = (1 << 16) // power

    @njit(nogil=True, cache=True, error_model="numpy")
    def dequantize(packed, levels, table, total, add, first, stop):
        codes = np.empty(stretch, np.uint8)
        part, words = np.empty(parts * GROUP, np.uint16), np.empty(GROUP, np.uint64)
        block = _block_of(table, first)
        for begin in range(first, stop, stretch):
            end = min(begin + stretch, stop)
            full, to = (end - begin) // run, begin // run * size
            for g in range(full):
                if one_byte:
                    _split_digits(packed, to + g * size, count, s, inverse, codes, g * run)
                    continue
                if two_bytes:
                    for j in range(GROUP):
                        word = np.uint16(load(packed, to + g * size + 2 * j))
                        word |= np.uint16(np.uint16(load(packed, to + g * size + 2 * j + 1)) << np.uint16(8))
                        quotient = high_product16(word, np.uint16(about))  # at most one too small
                        left = np.uint16(word - np.uint16(quotient * np.uint16(power)))
                        more = left >= np.uint16(power)
                        store(part, j, np.uint16(left - np.uint16(power)) if more else left)
                        store(part, GROUP + j, np.uint16(quotient + np.uint16(more)))
                else:
                    read_words(packed, to + g * size, bits, words)
                    split_parts(words, parts, power, magic, shift, part)
                for p in range(parts - 1):
                    _split_digits(part, p * GROUP, each, s, inverse, codes, g * run + p * each * GROUP)
                last = parts - 1
                _split_digits(part, last * GROUP, rest, s, inverse, codes, g * run + last * each * GROUP)
            if full * run < end - begin:
                unpack_group(packed[to + full * size :], s, count, bits, codes[full * run : end - begin])
            at = begin
            while at < end:
                while at >= table[block, CODE] + table[block, LENGTH]:
                    block += 1
                done = at - table[block, CODE]
                start, n = table[block, START] + done, min(table[block, LENGTH] - done, end - at)
                if few:
                    level = to_fixed_tuple(levels[block], s)
                    _look_up_few(codes, at - begin, n, level, s, total, start, add)
                else:
                    _look_up_many(codes, at - begin, n, levels, block, total, start, add)
                at += n

    return dequantize


def _for_codes(values: int, s: int, run: Callable[[int, int], Any]) -> None:
    """Call run(first, stop) on ranges of codes that start at a group's border, over our threads."""
    group = GROUP * digit_layout(s).count
    groups = -(-values // group)
    for_ranges(groups, -(-_SMALLEST // group), lambda a, b: run(a * group, min(b * group, values)))


def quantize(values: Tensor, levels: Tensor, table: Tensor, keys: Tensor, nearest: bool) -> Tensor:
    x, b, cuts, streams = values.numpy(), levels.numpy(), table.numpy(), keys.numpy()
    s, count = levels.shape[1], int(table[:, LENGTH].sum())
    packed = np.empty(packed_bytes(count, s), np.uint8)
    kernel = _quantizer(s)
    _for_codes(count, s, lambda i, j: kernel(x, b, cuts, streams, nearest, packed, i, j))
    return torch.from_numpy(packed)


def dequantize(packed: Tensor, levels: Tensor, table: Tensor, total: Tensor, add: bool) -> None:
    c, b, cuts, out = packed.numpy(), levels.numpy(), table.numpy(), total.numpy()
    s, count = levels.shape[1], int(table[:, LENGTH].sum())
    kernel = _dequantizer(s)
    _for_codes(count, s, lambda i, j: kernel(c, b, cuts, out, add, i, j))
