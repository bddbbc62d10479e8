"""Subtractive dither and the entropy coder on the CPU, a run at a time: its codes never leave the first cache."""

from typing import Any

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.dither.reference import FARTHEST, FINE, KEEP, NO_ENERGY, SUMS
from thinwire.kernels.entropy.book import LOG_PHASES
from thinwire.kernels.entropy.cpu import (
    BLOCK,
    begin,
    decode_runs,
    encode_runs,
    ended,
    finish,
    flat_tables,
    put_plain_run,
    row_and_low_bits,
)
from thinwire.kernels.entropy.reference import (
    FIRST_CLASS,
    LANES,
    LARGEST_CLASS,
    NOT_FINITE,
    RUN,
    SCALED,
    STATE_LEAST,
    ZEROS,
)
from thinwire.kernels.machine import load, prefetch, store
from thinwire.kernels.pool import for_ranges
from thinwire.kernels.random.cpu import mix, split
from thinwire.kernels.rows.reference import LARGEST
from thinwire.kernels.table import LENGTH, POSITION, START

__all__ = ["dither_costs", "dither_decode", "dither_encode", "run_energies", "settle_classes"]

_LARGEST, _ZERO = np.float32(LARGEST), np.float32(0)
_SMALLEST = 128  # runs worth a thread
_LINE = 16  # float32 in a line of the cache


@njit(forceinline=True, _nrt=False, nogil=True, cache=True, error_model="numpy")
def _add_up(values, start, squares, magnitudes):
    """Sums over every 32nd of 256 values; whether all are finite."""
    bad = np.int32(0)
    for j in range(SUMS):
        square, magnitude = 0.0, 0.0
        for row in range(RUN // SUMS):  # unrolled, so that LLVM makes vectors of the loop around it
            x = load(values, start + SUMS * row + j)
            bad |= np.int32(not abs(x) < _LARGEST)
            wide = np.float64(x)
            square += wide * wide
            magnitude += abs(wide)
        store(squares, j, square)
        store(magnitudes, j, magnitude)
    return bad == 0


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
def _energies(values, table, first, stop, row, squares, magnitudes, out):
    for run in range(first, stop):
        start, count = table[run, START], table[run, LENGTH]
        if count == RUN:
            finite = _add_up(values, start, squares, magnitudes)
        else:
            for j in range(RUN):
                row[j] = values[start + j] if j < count else _ZERO
            finite = _add_up(row, 0, squares, magnitudes)
        half = SUMS // 2
        while half:
            for j in range(half):
                squares[j] += squares[half + j]
                magnitudes[j] += magnitudes[half + j]
            half //= 2
        out[run, 0], out[run, 1] = (squares[0], magnitudes[0]) if finite else (np.nan, np.nan)


def run_energies(values: Tensor, table: Tensor) -> Tensor:
    out = torch.empty(len(table), 2, dtype=torch.float64)
    arrays = (values.numpy(), table.numpy())

    def run(first: int, stop: int) -> None:
        scratch = (np.empty(RUN, np.float32), np.empty(SUMS), np.empty(SUMS))
        _energies(*arrays, first, stop, *scratch, out.numpy())

    for_ranges(len(table), _SMALLEST, run)
    return out


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
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


@njit(forceinline=True, _nrt=False, nogil=True, cache=True, error_model="numpy")
def _prefetch_run(values, start):
    for at in range(start, start + RUN, _LINE):
        prefetch(values, at)


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
def _costs(values, table, inverse, classes, lengths, cells, middle, first, stop, out):
    for run in range(first, stop):
        class_, start, count = np.int64(classes[run]), table[run, START], table[run, LENGTH]
        _prefetch_run(values, table[min(run + 1, stop - 1), START])
        found = np.int64(0)
        if class_ >= SCALED:
            row, low_bits = row_and_low_bits(class_, len(cells))
            factor, origin = cells[row] * 2.0**-low_bits, (2 * row + 1) * middle
            for j in range(count):
                cell = np.floor(np.float64(load(values, start + j)) * inverse[run] * factor)
                cell = min(max(cell, -float(middle)), float(middle - 1))
                found += np.int64(load(lengths, np.int64(cell) + origin))
            found += 1024 * low_bits * count
        out[run] = found


def dither_costs(
    values: Tensor, table: Tensor, inverse: Tensor, classes: Tensor, lengths: Tensor, cells: Tensor
) -> Tensor:
    out, middle = torch.empty(len(table), dtype=torch.int64), lengths.shape[1] // 2
    arrays = tuple(t.numpy() for t in (values, table, inverse, classes, lengths.reshape(-1), cells))
    for_ranges(len(table), _SMALLEST, lambda a, b: _costs(*arrays, middle, a, b, out.numpy()))
    return out


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
def _hash_run(base, low, high, shift, at, bits):
    """Apart from _draw, or LLVM would multiply 64 bits."""
    for j in range(RUN // 2):
        h = mix(np.uint32(base + np.uint32(j)), low, high)
        store(bits, at + j, np.int32(np.uint32(h + shift) & np.uint32(0xFFFF)))
        store(bits, at + RUN // 2 + j, np.int32(np.uint32((h >> np.uint32(16)) + shift) & np.uint32(0xFFFF)))


@njit(forceinline=True, _nrt=False, nogil=True, cache=True, error_model="numpy")
def _draw(position, key, shift, at, bits, phases):
    """The 16 bits and the phase of each of the 256 positions of a run."""
    base, low, high = split(position >> 1, key)
    _hash_run(base, low, high, np.uint32(shift), at, bits)
    for j in range(at, at + RUN):
        store(phases, j, load(bits, j) >> (16 - LOG_PHASES))


@njit(forceinline=True, _nrt=False, nogil=True, cache=True, error_model="numpy")
def _quantize(values, start, count, inverse, at, bits, codes):
    for j in range(count):
        u = (np.float64(load(bits, at + j)) + 0.5) * 2.0**-16
        code = np.floor(np.float64(load(values, start + j)) * inverse + u)
        store(codes, at + j, np.int32(min(max(code, -FARTHEST), FARTHEST)))


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
def _quantize_runs(values, table, keys, shift, inverse, classes, first, stop, bits, phases, codes):
    """Codes and phases of runs first .. stop - 1, back to back, and where they end."""
    end = 0
    for run in range(first, stop):
        start, count = table[run, START], table[run, LENGTH]
        _prefetch_run(values, table[max(run - BLOCK, 0), START])
        if classes[run] >= SCALED:
            _draw(table[run, POSITION], keys[run], shift, end, bits, phases)
            _quantize(values, start, count, inverse[run], end, bits, codes)
        end += count
    return end


@njit(nogil=True, cache=True, error_model="numpy")
def _encode_chunks(
    values, table, keys, shift, inverse, counts, classes, tables, chunk_runs, first, stop, words, lengths
):
    bits, phases = np.empty(BLOCK * RUN, dtype=np.int32), np.empty(BLOCK * RUN, dtype=np.int32)
    codes = np.empty(BLOCK * RUN, dtype=np.int32)
    edges = np.empty(RUN, dtype=np.int32)
    for chunk in range(first, stop):
        head, last, buffer = chunk * chunk_runs, min((chunk + 1) * chunk_runs, len(table)), words[chunk]
        states, at = np.full(LANES, STATE_LEAST, dtype=np.uint64), len(buffer)
        for run in range(head + (last - head - 1) // BLOCK * BLOCK, head - 1, -BLOCK):
            after = min(run + BLOCK, last)
            end = _quantize_runs(values, table, keys, shift, inverse, classes, run, after, bits, phases, codes)
            at = encode_runs(
                codes, phases, end, counts, classes, run, after, head, tables, LOG_PHASES, edges, states, buffer, at
            )
        lengths[chunk] = finish(states, buffer, at)


def dither_encode(
    values: Tensor,
    table: Tensor,
    keys: Tensor,
    inverse: Tensor,
    classes: Tensor,
    tables: list[Tensor],
    chunk_runs: int,
    room: int,
    shift: int = 0,
) -> tuple[Tensor, Tensor]:
    chunks, counts = -(-len(table) // chunk_runs), table[:, LENGTH].contiguous()
    words, lengths = torch.empty(chunks, room, dtype=torch.int16), torch.empty(chunks, dtype=torch.int64)
    inputs = (*(t.numpy() for t in (values, table, keys)), shift, *(t.numpy() for t in (inverse, counts, classes)))
    rows, out = flat_tables(tables), (words.numpy().view(np.uint16), lengths.numpy())
    for_ranges(chunks, 1, lambda a, b: _encode_chunks(*inputs, rows, chunk_runs, a, b, *out))
    return words, lengths


@njit(forceinline=True, _nrt=False, nogil=True, cache=True, error_model="numpy")
def _put_run(codes, bits, begin, start, count, step, total, add):
    """Write, or add, a run's values; rounded to the type of `total` before they are added."""
    for j in range(count):
        u = (np.float64(load(bits, begin + j)) + 0.5) * 2.0**-16
        value = total.dtype.type((np.float64(load(codes, begin + j)) + (0.5 - u)) * step)
        store(total, start + j, (load(total, start + j) + value) if add else value)


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
def _put_runs(codes, bits, table, steps, classes, first, stop, total, add):
    """Write, or add, the values of runs first .. stop - 1, whose codes lie back to back."""
    at = 0
    for run in range(first, stop):
        start, count = table[run, START], table[run, LENGTH]
        if classes[run] >= SCALED:
            _put_run(codes, bits, at, start, count, steps[run], total, add)
        else:
            put_plain_run(classes[run], start, count, total, add)
        at += count


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
def _draw_runs(table, keys, shift, first, stop, bits, phases):
    at = 0
    for run in range(first, stop):
        _draw(table[run, POSITION], keys[run], shift, at, bits, phases)
        at += table[run, LENGTH]


@njit(nogil=True, cache=True, error_model="numpy")
def _decode_chunks(
    words, starts, table, keys, shift, steps, counts, tables, chunk_runs, first, stop, classes, total, add, good
):
    bits, phases = np.empty(BLOCK * RUN, dtype=np.int32), np.empty(BLOCK * RUN, dtype=np.int32)
    codes, states = np.empty(BLOCK * RUN, dtype=np.int32), np.empty(2 * LANES, dtype=np.uint64)
    for chunk in range(first, stop):
        head, last, end = chunk * chunk_runs, min((chunk + 1) * chunk_runs, len(table)), starts[chunk + 1]
        at = begin(states, words, starts[chunk], end)
        for run in range(head, last, BLOCK):
            after, before = min(run + BLOCK, last), np.int64(classes[run - 1]) if run > head else FIRST_CLASS
            _draw_runs(table, keys, shift, run, after, bits, phases)
            at = decode_runs(
                words, at, end, phases, 0, counts, run, after, before, tables, LOG_PHASES, states, codes, classes
            )
            if at > end:
                break
            _put_runs(codes, bits, table, steps, classes, run, after, total, add)
        good[chunk] = ended(states, at, end)


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
    shift: int = 0,
) -> Tensor:
    good = torch.empty(len(starts) - 1, dtype=torch.bool)
    inputs = (words.numpy().view(np.uint16), *(t.numpy() for t in (starts, table, keys)), shift, steps.numpy())
    counts, classes = table[:, LENGTH].contiguous().numpy(), np.empty(len(table), dtype=np.uint8)
    rows, out = flat_tables(tables), (classes, total.numpy(), add, good.numpy())
    for_ranges(len(good), 1, lambda a, b: _decode_chunks(*inputs, counts, rows, chunk_runs, a, b, *out))
    return good
