"""Subtractive dither and the entropy coder on the CPU, a run at a time: its codes never leave the first cache."""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.dither.reference import FARTHEST, FINE, KEEP, NO_ENERGY
from thinwire.kernels.entropy.book import LOG_PHASES
from thinwire.kernels.entropy.cpu import (
    begin,
    decode_class,
    decode_run,
    encode_class,
    encode_run,
    ended,
    finish,
    flat_tables,
    row_and_low_bits,
)
from thinwire.kernels.entropy.reference import (
    FIRST_CLASS,
    LANES,
    LARGEST_CLASS,
    NOT_FINITE,
    ROOM,
    RUN,
    SCALED,
    STATE_LEAST,
    ZEROS,
)
from thinwire.kernels.machine import load, store
from thinwire.kernels.pool import for_ranges
from thinwire.kernels.random.cpu import mix, split
from thinwire.kernels.rows.reference import LARGEST
from thinwire.kernels.table import LENGTH, POSITION, START

__all__ = ["dither_cost", "dither_decode", "dither_encode", "run_energies", "settle_classes"]

_LARGEST = np.float32(LARGEST)
_SMALLEST = 128  # runs worth a thread


@njit(nogil=True, cache=True, error_model="numpy")
def _energies(values, table, first, stop, out):
    squares, magnitudes = np.empty(8), np.empty(8)
    for run in range(first, stop):
        start, count = table[run, START], table[run, LENGTH]
        squares[:], magnitudes[:], bad = 0.0, 0.0, 0
        for row in range(0, count & ~7, 8):
            for i in range(8):
                x = load(values, start + row + i)
                bad += not abs(x) < _LARGEST
                wide = np.float64(x)
                squares[i] += wide * wide
                magnitudes[i] += abs(wide)
        for j in range(count & ~7, count):
            x = values[start + j]
            bad += not abs(x) < _LARGEST
            squares[j & 7] += np.float64(x) * np.float64(x)
            magnitudes[j & 7] += abs(np.float64(x))
        for column, s in enumerate((squares, magnitudes)):
            total = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]))
            out[run, column] = np.nan if bad else total


def run_energies(values: Tensor, table: Tensor) -> Tensor:
    out = torch.empty(len(table), 2, dtype=torch.float64)
    arrays = (values.numpy(), table.numpy())
    for_ranges(len(table), _SMALLEST, lambda a, b: _energies(*arrays, a, b, out.numpy()))
    return out


@njit(nogil=True, cache=True, error_model="numpy")
def _settle(positions, chunk_runs, classes):
    kept: Any = 0
    for run in range(len(positions)):
        position = np.int64(positions[run])
        if position <= NO_ENERGY:
            classes[run] = ZEROS if position == NO_ENERGY else NOT_FINITE
            continue
        if run % chunk_runs == 0 or abs(position - FINE * kept) > KEEP:
            kept = min(max((position + FINE // 2) // FINE, 0), LARGEST_CLASS - SCALED)
        classes[run] = SCALED + kept


def settle_classes(positions: Tensor, chunk_runs: int) -> Tensor:
    classes = torch.empty(len(positions), dtype=torch.uint8)
    _settle(positions.numpy(), chunk_runs, classes.numpy())
    return classes


@njit(nogil=True, cache=True, error_model="numpy")
def _cost(values, table, inverse, classes, lengths, cells, first, stop):
    total, middle = np.int64(0), lengths.shape[1] // 2
    for run in range(first, stop):
        class_, start, count = np.int64(classes[run]), table[run, START], table[run, LENGTH]
        if class_ < SCALED:
            continue
        row, low_bits = row_and_low_bits(class_, len(lengths))
        row_lengths = lengths[row]
        factor = cells[row] * 2.0**-low_bits
        found = np.int64(0)
        for j in range(count):
            cell = np.floor(np.float64(load(values, start + j)) * inverse[run] * factor)
            cell = min(max(cell, -float(middle)), float(middle - 1))
            found += np.int64(load(row_lengths, np.int64(cell) + middle))
        total += found + 1024 * low_bits * count
    return total


def dither_cost(
    values: Tensor, table: Tensor, inverse: Tensor, classes: Tensor, lengths: Tensor, cells: Tensor
) -> Tensor:
    arrays = tuple(t.numpy() for t in (values, table, inverse, classes, lengths, cells))
    sums: list[int] = []
    for_ranges(len(table), _SMALLEST, lambda a, b: sums.append(int(_cost(*arrays, a, b))))
    return torch.tensor(sum(sums))


@njit(nogil=True, cache=True, error_model="numpy")
def _hash_run(base, low, high, bits):
    """Apart from _draw, or LLVM would multiply 64 bits."""
    for j in range(RUN // 2):
        h = mix(np.uint32(base + np.uint32(j)), low, high)
        bits[j] = np.int32(h & np.uint32(0xFFFF))
        bits[RUN // 2 + j] = np.int32(h >> np.uint32(16))


@njit(nogil=True, cache=True, error_model="numpy")
def _draw(position, key, bits, phases):
    """The 16 bits and the phase of each of the 256 positions of a run."""
    base, low, high = split(position >> 1, key)
    _hash_run(base, low, high, bits)
    for j in range(RUN):
        phases[j] = bits[j] >> (16 - LOG_PHASES)


@njit(nogil=True, cache=True, error_model="numpy")
def _quantize(values, start, count, inverse, bits, codes):
    for j in range(count):
        u = (np.float64(load(bits, j)) + 0.5) * 2.0**-16
        code = np.floor(np.float64(load(values, start + j)) * inverse + u)
        store(codes, j, np.int32(min(max(code, -FARTHEST), FARTHEST)))


@njit(nogil=True, cache=True, error_model="numpy")
def _encode_chunk(values, table, keys, inverse, classes, first, stop, tables, buffer):
    """Runs first .. stop - 1: where in the buffer the chunk begins, or -1."""
    bounds, _, limits, map_bounds, _, map_limits = tables
    states, edges = np.full(LANES, STATE_LEAST, dtype=np.uint64), np.empty(RUN, dtype=np.int32)
    bits, phases, codes = np.empty(RUN, dtype=np.int32), np.empty(RUN, dtype=np.int32), np.empty(RUN, dtype=np.int32)
    at = len(buffer)
    for run in range(stop - 1, first - 1, -1):
        if at < ROOM:
            return -1
        class_, count = np.int64(classes[run]), table[run, LENGTH]
        if class_ >= SCALED:
            _draw(table[run, POSITION], keys[run], bits, phases)
            _quantize(values, table[run, START], count, inverse[run], bits, codes)
            row, low_bits = row_and_low_bits(class_, len(limits) // 2)
            at = encode_run(
                codes, phases, 0, count, low_bits, row, bounds, limits, LOG_PHASES, edges, states, buffer, at
            )
            if at < 0:
                return -1
        before = np.int64(classes[run - 1]) if run > first else FIRST_CLASS
        at = encode_class(class_, before, map_bounds, map_limits, states, buffer, at)
    return finish(states, buffer, at)


@njit(nogil=True, cache=True, error_model="numpy")
def _encode_chunks(values, table, keys, inverse, classes, tables, chunk_runs, first, stop, words, lengths):
    for chunk in range(first, stop):
        last = min((chunk + 1) * chunk_runs, len(table))
        at = _encode_chunk(values, table, keys, inverse, classes, chunk * chunk_runs, last, tables, words[chunk])
        lengths[chunk] = -1 if at < ROOM else words.shape[1] - at


def dither_encode(
    values: Tensor,
    table: Tensor,
    keys: Tensor,
    inverse: Tensor,
    classes: Tensor,
    tables: list[Tensor],
    chunk_runs: int,
    room: int,
) -> tuple[Tensor, Tensor]:
    chunks = -(-len(table) // chunk_runs)
    words, lengths = torch.empty(chunks, room, dtype=torch.int16), torch.empty(chunks, dtype=torch.int64)
    arrays = tuple(t.numpy() for t in (values, table, keys, inverse, classes))
    rows, out = flat_tables(tables), (words.numpy().view(np.uint16), lengths.numpy())
    for_ranges(chunks, 1, lambda a, b: _encode_chunks(*arrays, rows, chunk_runs, a, b, *out))
    return words, lengths


@njit(nogil=True, cache=True, error_model="numpy")
def _put_run(codes, bits, start, count, step, total, add):
    """Write, or add, a run's values; rounded to the type of `total` before they are added."""
    for j in range(count):
        u = (np.float64(load(bits, j)) + 0.5) * 2.0**-16
        value = total.dtype.type((np.float64(load(codes, j)) + (0.5 - u)) * step)
        store(total, start + j, (load(total, start + j) + value) if add else value)


@njit(nogil=True, cache=True, error_model="numpy")
def _put_constant(value, start, count, total, add):
    for j in range(count):
        total[start + j] = total[start + j] + value if add else value


@njit(nogil=True, cache=True, error_model="numpy")
def _decode_chunk(words, at, stop, table, keys, steps, first, last, tables, total, add):
    """Runs first .. last - 1: whether the chunk was what an encoder writes."""
    bounds, boundary, limits, map_bounds, map_boundary, map_limits = tables
    bits, phases, codes = np.empty(RUN, dtype=np.int32), np.empty(RUN, dtype=np.int32), np.empty(RUN, dtype=np.int32)
    states, class_ = np.empty(LANES, dtype=np.uint64), FIRST_CLASS
    at = begin(states, words, at, stop)
    for run in range(first, last):
        if at > stop:
            return False
        class_, at = decode_class(class_, map_bounds, map_boundary, map_limits, states, words, at, stop)
        if class_ < 0:
            return False
        start, count = table[run, START], table[run, LENGTH]
        if class_ < SCALED:
            _put_constant(0.0 if class_ == ZEROS else np.nan, start, count, total, add)
            continue
        _draw(table[run, POSITION], keys[run], bits, phases)
        row, low_bits = row_and_low_bits(class_, len(limits) // 2)
        at = decode_run(
            phases, 0, count, low_bits, row, bounds, boundary, limits, LOG_PHASES, states, words, at, stop, codes
        )
        _put_run(codes, bits, start, count, steps[run], total, add)
    return ended(states, at, stop)


@njit(nogil=True, cache=True, error_model="numpy")
def _decode_chunks(words, starts, table, keys, steps, tables, chunk_runs, first, stop, total, add, good):
    for chunk in range(first, stop):
        last = min((chunk + 1) * chunk_runs, len(table))
        good[chunk] = _decode_chunk(
            words, starts[chunk], starts[chunk + 1], table, keys, steps, chunk * chunk_runs, last, tables, total, add
        )


def dither_decode(
    words: Tensor,
    starts: Tensor,
    table: Tensor,
    keys: Tensor,
    steps: Tensor,
    tables: list[Tensor],
    chunk_runs: int,
    total: Tensor,
    add: bool,
) -> Tensor:
    good = torch.empty(len(starts) - 1, dtype=torch.bool)
    arrays = (words.numpy().view(np.uint16), *(t.numpy() for t in (starts, table, keys, steps)))
    rows, out = flat_tables(tables), (total.numpy(), add, good.numpy())
    for_ranges(len(good), 1, lambda a, b: _decode_chunks(*arrays, rows, chunk_runs, a, b, *out))
    return good
