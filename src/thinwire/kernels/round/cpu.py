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

from thinwire.kernels.machine import copy_columns, high_product16, load, load_word, store, store_word
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
from thinwire.kernels.random.cpu import mix, split
from thinwire.kernels.table import CODE, LENGTH, POSITION, START

__all__ = ["dequantize", "quantize"]

_RUN = 256
_IN_REGISTERS = 9  # levels
_TO_BYTES_ABOVE = np.uint64(0x0101010101010101)  # times a word of bytes: each becomes the sum up to itself
_CELLS = 8  # of the grid for a level, about
_STRETCH = 4096  # codes, about, between rounding and packing
_SMALLEST = 1 << 15  # values worth a thread


@njit(nogil=True, cache=True, error_model="numpy")
def _uniforms(base, low, high, shift, u):
    """Apart from _draw, or LLVM would multiply 64 bits."""
    half, unit = np.float32(0.5), np.float32(2.0**-16)
    for j in range(_RUN // 2):
        h = mix(np.uint32(base + np.uint32(j)), low, high)
        u[j] = (np.float32(np.int32(np.uint32(h + shift) & np.uint32(0xFFFF))) + half) * unit
        u[_RUN // 2 + j] = (
            np.float32(np.int32(np.uint32((h >> np.uint32(16)) + shift) & np.uint32(0xFFFF))) + half
        ) * unit


@njit(inline="always")
def _draw(position, key, shift, u):
    """Uniforms of the run that holds a position: its lower half from the low 16 bits of each hash, then the upper."""
    base, low, high = split((position >> 8) << 7, key)
    _uniforms(base, low, high, np.uint32(shift), u)


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
def _prepare(levels, block, nearest, edges):
    """What values are compared with, ascending from 1 on: levels or midpoints; then NaN, which no value reaches."""
    half = np.float32(0.5)
    s = levels.shape[1]
    edges[0] = levels[block, 0]
    for k in range(1, s):
        edges[k] = half * levels[block, k - 1] + half * levels[block, k] if nearest else levels[block, k]
    for k in range(s, len(edges)):
        edges[k] = np.nan


@njit(nogil=True, cache=True, error_model="numpy")
def _cell(values, start, count, left, scale, top, cells):
    """The cell of a uniform grid in which each value lies, 0 .. top: float32 operations that never fall as x rises."""
    for j in range(count):
        y = (load(values, start + j) - left) * scale
        y = y if y > np.float32(0) else np.float32(0)
        store(cells, j, np.int32(y if y < top else top))


@njit(nogil=True, cache=True, error_model="numpy")
def _fill_grid(edges, s, left, scale, last, cells, lower):
    """lower[i] = how many of edges[1:s] lie in cells below i, at most `last`. Returns the most that lie in one cell."""
    words = len(lower) >> 3
    _cell(edges, 1, s - 1, left, scale, np.float32(8 * words - 9), cells)
    for w in range(words):
        store_word(lower, 8 * w, np.uint64(0))
    most = np.int64(0)
    for k in range(s - 1):
        here = np.int64(load(lower, cells[k] + 1)) + 1
        store(lower, cells[k] + 1, np.uint8(here))
        most = max(most, here)
    below = np.uint64(0)
    for w in range(words):
        sums = load_word(lower, 8 * w) * _TO_BYTES_ABOVE  # no sum exceeds 255
        store_word(lower, 8 * w, sums + below * _TO_BYTES_ABOVE)
        below += sums >> np.uint64(56)
    for i in range(8 * words):
        store(lower, i, min(load(lower, i), np.uint8(last)))
    return most


@njit(nogil=True, cache=True, error_model="numpy")
def _search(values, start, count, edges, step, nearest, last, codes):
    """codes[j] grows by `step` if the value reaches that many more edges, up to `last`."""
    for j in range(count):
        c = np.int64(load(codes, j))
        x, edge = load(values, start + j), load(edges, c + step)
        c += step * np.int64((x > edge) if nearest else (x >= edge))
        store(codes, j, np.int32(min(c, last)))


@njit(nogil=True, cache=True, error_model="numpy")
def _look_up(count, lower, codes):
    for j in range(count):
        store(codes, j, np.int32(load(lower, np.int64(load(codes, j)))))


@njit(nogil=True, cache=True, error_model="numpy")
def _find(count, edges, lower, cells, codes, found):
    """Column j of found = the four edges from code j on; if codes are cells, first look them up. Four at a time."""
    for j in range(0, count, 4):
        a, b = np.int64(load(codes, j)), np.int64(load(codes, j + 1))
        c, d = np.int64(load(codes, j + 2)), np.int64(load(codes, j + 3))
        if cells:
            a, b = np.int64(load(lower, a)), np.int64(load(lower, b))
            c, d = np.int64(load(lower, c)), np.int64(load(lower, d))
            store(codes, j, np.int32(a))
            store(codes, j + 1, np.int32(b))
            store(codes, j + 2, np.int32(c))
            store(codes, j + 3, np.int32(d))
        copy_columns(edges, a, b, c, d, found, j)


@njit(nogil=True, cache=True, error_model="numpy")
def _reach_nearest(values, start, count, found, codes):
    """codes[j] grows by how many of the two midpoints that were found the value is beyond."""
    for j in range(count):
        x, first, second = load(values, start + j), load(found, _RUN + j), load(found, 2 * _RUN + j)
        store(codes, j, np.int32(load(codes, j) + np.int32(x > first) + np.int32(x > second)))


@njit(nogil=True, cache=True, error_model="numpy")
def _reach_and_round(values, start, count, u, inside, found, codes):
    """codes[j] grows by how many of the two inner levels that were found the value reaches; then up or down."""
    for j in range(count):
        x, low, high = load(values, start + j), load(found, j), load(found, _RUN + j)
        further, last = load(found, 2 * _RUN + j), load(found, 3 * _RUN + j)
        first, second = x >= high, x >= further
        low = further if second else (high if first else low)
        high = last if second else (further if first else high)
        up = x - low > load(u, inside + j) * (high - low)
        store(codes, j, np.int32(load(codes, j) + np.int32(first) + np.int32(second) + np.int32(up)))


@njit(nogil=True, cache=True, error_model="numpy")
def _round_many(values, levels, table, keys, nearest, shift, block, begin, end, u, found, rounded, codes):
    """_round_few for more levels: a uniform grid tells which two of them each value must still be compared with.

    Where more than two lie in a cell, a binary search begins.
    """
    s = levels.shape[1]
    last = s - 3 if nearest else s - 4  # there are two edges to compare with, and a level above them, beyond it
    grid = 8
    while grid < _CELLS * s:
        grid *= 2
    edges, places, lower = np.empty(2 * s, np.float32), np.empty(s, np.int32), np.empty(grid + 8, np.uint8)
    left, scale, top, most = np.float32(0), np.float32(0), np.float32(grid - 1), np.int64(0)
    drawn_run, drawn_key, prepared = np.int64(-1), np.int64(0), np.int64(-1)
    at = begin
    while at < end:
        while at >= table[block, CODE] + table[block, LENGTH]:
            block += 1
        done = at - table[block, CODE]
        position, start = table[block, POSITION] + done, table[block, START] + done
        inside = position & (_RUN - 1)
        n = min(min(_RUN - inside, table[block, LENGTH] - done), end - at)
        if prepared != block:
            _prepare(levels, block, nearest, edges)
            left, scale = levels[block, 0], np.float32(grid) / (levels[block, s - 1] - levels[block, 0])
            most, prepared = _fill_grid(edges, s, left, scale, last, places, lower), block
        _cell(values, start, n, left, scale, top, rounded)
        step, compared = np.int64(0), np.int64(2)
        while compared < most:
            step = 2 * step if step else np.int64(3)
            compared += step
        cells = step == 0
        if not cells:
            _look_up(n, lower, rounded)
        while step:
            _search(values, start, n, edges, step, nearest, last, rounded)
            step = step >> 1 if step > 3 else np.int64(0)
        _find(n, edges, lower, cells, rounded, found)
        if nearest:
            _reach_nearest(values, start, n, found, rounded)
        else:
            if drawn_run != position >> 8 or drawn_key != keys[block]:
                _draw(position, keys[block], shift, u)
                drawn_run, drawn_key = position >> 8, keys[block]
            _reach_and_round(values, start, n, u, inside, found, rounded)
        for j in range(n):
            store(codes, at - begin + j, np.uint8(load(rounded, j)))
        at += n
    return block


@njit(nogil=True, cache=True, error_model="numpy")
def _look_up_many(codes, levels, table, block, begin, end, total, add):
    """Write or add the levels of codes begin .. end - 1 to total. Returns the last block."""
    at = begin
    while at < end:
        while at >= table[block, CODE] + table[block, LENGTH]:
            block += 1
        done = at - table[block, CODE]
        start, n = table[block, START] + done, min(table[block, LENGTH] - done, end - at)
        row = levels[block]
        if add:
            for j in range(n):
                value = load(row, np.int64(load(codes, at - begin + j)))
                store(total, start + j, load(total, start + j) + value)
        else:
            for j in range(n):
                store(total, start + j, load(row, np.int64(load(codes, at - begin + j))))
        at += n
    return block


# From here on Numba inlines the functions into the kernels, so that a kernel's constants reach their loops. Each works
# on a whole stretch: arguments of an inlined function are counted references, which costs atomic operations.


@njit(inline="always")
def _round_few(values, levels, table, keys, nearest, shift, block, begin, end, s, u, rounded, codes):
    """Round the values whose codes are begin .. end - 1; up to 9 levels, held in registers. Returns the last block."""
    half = np.float32(0.5)
    drawn_run, drawn_key = np.int64(-1), np.int64(0)
    at = begin
    while at < end:
        while at >= table[block, CODE] + table[block, LENGTH]:
            block += 1
        done = at - table[block, CODE]
        position, start = table[block, POSITION] + done, table[block, START] + done
        inside = position & (_RUN - 1)
        n = min(min(_RUN - inside, table[block, LENGTH] - done), end - at)
        level = to_fixed_tuple(levels[block], s)
        if nearest:
            for j in range(n):
                x, c = load(values, start + j), np.int32(0)
                for k in range(s - 1):
                    c += np.int32(x > half * level[k] + half * level[k + 1])
                store(rounded, j, c)
        else:
            if drawn_run != position >> 8 or drawn_key != keys[block]:
                _draw(position, keys[block], shift, u)
                drawn_run, drawn_key = position >> 8, keys[block]
            for j in range(n):
                x, low, step, c = load(values, start + j), level[0], level[1] - level[0], np.int32(0)
                for k in range(1, s - 1):
                    above = x >= level[k]
                    low = level[k] if above else low
                    step = level[k + 1] - level[k] if above else step
                    c += np.int32(above)
                store(rounded, j, c + np.int32(x - low > load(u, inside + j) * step))
        for j in range(n):
            store(codes, at - begin + j, np.uint8(load(rounded, j)))
        at += n
    return block


@njit(inline="always")
def _pack_groups(codes, full, s, count, bits, each, parts, rest, power, part, words, packed, to):
    """Pack full groups of codes: digits to parts, parts to words, words to bytes."""
    for g in range(full):
        place, octet = g * GROUP * count, to + g * 8 * bits
        if count == 1:
            for j in range(GROUP):
                store(packed, octet + j, load(codes, place + j))
            continue
        if bits == 8 and parts == 1:
            for j in range(GROUP):
                word = np.uint16(load(codes, place + (count - 1) * GROUP + j))
                for i in range(count - 2, -1, -1):
                    word = np.uint16(np.uint16(word * np.uint16(s)) + load(codes, place + i * GROUP + j))
                store(packed, octet + j, np.uint8(word))
            continue
        for p in range(parts - 1):
            for j in range(GROUP):
                digits = np.uint16(load(codes, place + (each - 1) * GROUP + j))
                for i in range(each - 2, -1, -1):
                    digits = np.uint16(np.uint16(digits * np.uint16(s)) + load(codes, place + i * GROUP + j))
                store(part, p * GROUP + j, digits)
            place += each * GROUP
        for j in range(GROUP):
            digits = np.uint16(load(codes, place + (rest - 1) * GROUP + j))
            for i in range(rest - 2, -1, -1):
                digits = np.uint16(np.uint16(digits * np.uint16(s)) + load(codes, place + i * GROUP + j))
            store(part, (parts - 1) * GROUP + j, digits)
        if bits == 16 and parts == 2:
            for j in range(GROUP):
                word = np.uint16(load(part, j) + np.uint16(load(part, GROUP + j) * np.uint16(power)))
                store(packed, octet + 2 * j, np.uint8(word))
                store(packed, octet + 2 * j + 1, np.uint8(word >> np.uint16(8)))
        else:
            join_parts(part, parts, power, words)
            write_words(words, bits, packed, octet)


@njit(inline="always")
def _unpack_groups(
    packed, to, full, s, count, bits, each, parts, rest, power, magic, shift, inverse, part, words, codes
):
    """The inverse of _pack_groups."""
    about = (1 << 16) // power
    for g in range(full):
        place, octet = g * GROUP * count, to + g * 8 * bits
        if s == 256:
            for j in range(GROUP):
                store(codes, place + j, load(packed, octet + j))
            continue
        if bits == 8 and parts == 1:
            for j in range(GROUP):
                word = np.uint16(load(packed, octet + j))
                for i in range(count):
                    quotient = high_product16(word, np.uint16(inverse))
                    store(codes, place + i * GROUP + j, np.uint8(word - np.uint16(quotient * np.uint16(s))))
                    word = quotient
            continue
        if bits == 16 and parts == 2:
            for j in range(GROUP):
                word = np.uint16(load(packed, octet + 2 * j))
                word |= np.uint16(np.uint16(load(packed, octet + 2 * j + 1)) << np.uint16(8))
                quotient = high_product16(word, np.uint16(about))  # at most one too small
                left = np.uint16(word - np.uint16(quotient * np.uint16(power)))
                more = left >= np.uint16(power)
                store(part, j, np.uint16(left - np.uint16(power)) if more else left)
                store(part, GROUP + j, np.uint16(quotient + np.uint16(more)))
        else:
            read_words(packed, octet, bits, words)
            split_parts(words, parts, power, magic, shift, part)
        for p in range(parts - 1):
            for j in range(GROUP):
                digits = load(part, p * GROUP + j)
                for i in range(each):
                    quotient = high_product16(digits, np.uint16(inverse))
                    store(codes, place + i * GROUP + j, np.uint8(digits - np.uint16(quotient * np.uint16(s))))
                    digits = quotient
            place += each * GROUP
        for j in range(GROUP):
            digits = load(part, (parts - 1) * GROUP + j)
            for i in range(rest):
                quotient = high_product16(digits, np.uint16(inverse))
                store(codes, place + i * GROUP + j, np.uint8(digits - np.uint16(quotient * np.uint16(s))))
                digits = quotient


@njit(inline="always")
def _look_up_few(codes, levels, table, block, begin, end, s, total, add):
    """Write or add the levels of codes begin .. end - 1, in registers; codes as floats, or LLVM compares bytes."""
    at = begin
    while at < end:
        while at >= table[block, CODE] + table[block, LENGTH]:
            block += 1
        done = at - table[block, CODE]
        start, n = table[block, START] + done, min(table[block, LENGTH] - done, end - at)
        level = to_fixed_tuple(levels[block], s)
        if add:
            for j in range(n):
                c, value = np.float32(load(codes, at - begin + j)), level[0]
                for k in range(1, s):
                    value = level[k] if c >= np.float32(k) else value
                store(total, start + j, load(total, start + j) + value)
        else:
            for j in range(n):
                c, value = np.float32(load(codes, at - begin + j)), level[0]
                for k in range(1, s):
                    value = level[k] if c >= np.float32(k) else value
                store(total, start + j, value)
        at += n
    return block


@functools.cache
def _quantizer(s: int) -> Callable[..., None]:
    """The kernel that rounds values to s levels and packs their codes."""
    digits, r = digit_layout(s), recipe(s)
    count, bits, each, parts, rest, power = digits.count, digits.bits, r.each, r.parts, r.rest, r.power
    run, size, few = GROUP * count, 8 * bits, s <= _IN_REGISTERS
    stretch = max(1, _STRETCH // run) * run

    @njit(nogil=True, cache=True, error_model="numpy")
    def quantize(values, levels, table, keys, nearest, shift, packed, first, stop):
        u, rounded, codes = np.empty(_RUN, np.float32), np.zeros(_RUN, np.int32), np.empty(stretch, np.uint8)
        found = np.empty(4 * _RUN, np.float32)
        part, words = np.empty(parts * GROUP, np.uint16), np.empty(GROUP, np.uint64)
        block = _block_of(table, first)
        for begin in range(first, stop, stretch):
            end = min(begin + stretch, stop)
            if few:
                block = _round_few(values, levels, table, keys, nearest, shift, block, begin, end, s, u, rounded, codes)
            else:
                block = _round_many(
                    values, levels, table, keys, nearest, shift, block, begin, end, u, found, rounded, codes
                )
            full, to = (end - begin) // run, begin // run * size
            _pack_groups(codes, full, s, count, bits, each, parts, rest, power, part, words, packed, to)
            if full * run < end - begin:
                pack_group(codes[full * run : end - begin], s, count, bits, packed[to + full * size :])

    return quantize


@functools.cache
def _dequantizer(s: int) -> Callable[..., None]:
    """The kernel that unpacks codes of s levels and writes or adds their levels."""
    digits, r = digit_layout(s), recipe(s)
    count, bits, each, parts, rest = digits.count, digits.bits, r.each, r.parts, r.rest
    power, magic, shift, inverse = r.power, np.uint64(r.magic), r.shift, r.inverse
    run, size, few = GROUP * count, 8 * bits, s <= _IN_REGISTERS
    stretch = max(1, _STRETCH // run) * run

    @njit(nogil=True, cache=True, error_model="numpy")
    def dequantize(packed, levels, table, total, add, first, stop):
        codes = np.empty(stretch, np.uint8)
        part, words = np.empty(parts * GROUP, np.uint16), np.empty(GROUP, np.uint64)
        block = _block_of(table, first)
        for begin in range(first, stop, stretch):
            end = min(begin + stretch, stop)
            full, to = (end - begin) // run, begin // run * size
            _unpack_groups(
                packed, to, full, s, count, bits, each, parts, rest, power, magic, shift, inverse, part, words, codes
            )
            if full * run < end - begin:
                unpack_group(packed[to + full * size :], s, count, bits, codes[full * run : end - begin])
            if few:
                block = _look_up_few(codes, levels, table, block, begin, end, s, total, add)
            else:
                block = _look_up_many(codes, levels, table, block, begin, end, total, add)

    return dequantize


def _for_codes(values: int, s: int, run: Callable[[int, int], Any]) -> None:
    """Call run(first, stop) on ranges of codes that start at a group's border, over our threads."""
    group = GROUP * digit_layout(s).count
    groups = -(-values // group)
    for_ranges(groups, -(-_SMALLEST // group), lambda a, b: run(a * group, min(b * group, values)))


def quantize(values: Tensor, levels: Tensor, table: Tensor, keys: Tensor, nearest: bool, shift: int = 0) -> Tensor:
    x, b, cuts, streams = values.numpy(), levels.numpy(), table.numpy(), keys.numpy()
    s, count = levels.shape[1], int(table[:, LENGTH].sum())
    packed = np.empty(packed_bytes(count, s), np.uint8)
    kernel = _quantizer(s)
    _for_codes(count, s, lambda i, j: kernel(x, b, cuts, streams, nearest, shift, packed, i, j))
    return torch.from_numpy(packed)


def dequantize(packed: Tensor, levels: Tensor, table: Tensor, total: Tensor, add: bool) -> None:
    c, b, cuts, out = packed.numpy(), levels.numpy(), table.numpy(), total.numpy()
    s, count = levels.shape[1], int(table[:, LENGTH].sum())
    kernel = _dequantizer(s)
    _for_codes(count, s, lambda i, j: kernel(c, b, cuts, out, add, i, j))
