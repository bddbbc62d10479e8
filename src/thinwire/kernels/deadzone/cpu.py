"""Rounding with a dead zone and the entropy coder on the CPU, a few runs at a time: codes stay in the first cache."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.deadzone.reference import CENTROIDS, FARTHEST, MIDDLE, PHASE, REACH, SPREAD, SPREADER, UNIT
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
from thinwire.kernels.entropy.reference import FIRST_CLASS, LANES, RUN, SCALED, STATE_LEAST
from thinwire.kernels.machine import load, store
from thinwire.kernels.pool import for_ranges
from thinwire.kernels.table import LENGTH, START

__all__ = ["deadzone_costs", "deadzone_decode", "deadzone_encode"]

_SMALLEST = 128  # runs worth a thread


@njit(inline="always")
def _magnitude(size, place, fine, thresholds, origin):
    """The magnitude of a size's code, as a float."""
    nearest = np.floor(size + 0.5)
    above = load(thresholds, origin + min(max(np.int64(nearest) - 1, 0), REACH - 1))
    above += np.float64(place * SPREADER & 0xFFFFFFFF) * SPREAD - MIDDLE
    smaller = fine & (nearest > 0.0) & (size < (nearest - 0.5) + above)
    return nearest - np.float64(smaller)


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
def _costs(values, table, inverse, classes, thresholds, lengths, first, stop, out):
    rows, costs = len(thresholds) // REACH, len(lengths) // (REACH + 1)
    for run in range(first, stop):
        class_, start, count = np.int64(classes[run]), table[run, START], table[run, LENGTH]
        found = np.int64(0)
        if class_ >= SCALED:
            row, low_bits = row_and_low_bits(class_, rows)
            cost_row, _ = row_and_low_bits(class_, costs)
            for j in range(count):
                size = min(abs(np.float64(load(values, start + j)) * inverse[run]), FARTHEST)
                code = np.int64(_magnitude(size, start + j, low_bits == 0, thresholds, row * REACH)) >> low_bits
                found += np.int64(load(lengths, cost_row * (REACH + 1) + min(code, REACH)))
            found += 1024 * low_bits * count
        out[run] = found


def deadzone_costs(
    values: Tensor, table: Tensor, inverse: Tensor, classes: Tensor, thresholds: Tensor, lengths: Tensor
) -> Tensor:
    out = torch.empty(len(table), dtype=torch.int64)
    arrays = tuple(t.numpy() for t in (values, table, inverse, classes, thresholds.reshape(-1), lengths.reshape(-1)))
    for_ranges(len(table), _SMALLEST, lambda a, b: _costs(*arrays, a, b, out.numpy()))
    return out


@njit(forceinline=True, _nrt=False, nogil=True, cache=True, error_model="numpy")
def _round(values, start, count, inverse, fine, thresholds, origin, at, codes, distances):
    """A run's codes, and how far above them sizes lie."""
    for j in range(count):
        scaled = np.float64(load(values, start + j)) * inverse
        size = min(abs(scaled), FARTHEST)
        magnitude = _magnitude(size, start + j, fine, thresholds, origin)
        store(codes, at + j, np.int32(-magnitude if scaled < 0.0 else magnitude))
        store(distances, at + j, np.int32(np.floor((size - magnitude) * UNIT + 0.5)))


@njit(forceinline=True, _nrt=False, nogil=True, cache=True, error_model="numpy")
def _add_up(codes, distances, at, count, sums):
    """Count a run's codes of magnitude 1, 2, and more, and add up their distances."""
    ones, twos, others = np.int64(0), np.int64(0), np.int64(0)
    above_ones, above_twos, above_others = np.int64(0), np.int64(0), np.int64(0)
    for j in range(at, at + count):
        magnitude, distance = abs(load(codes, j)), np.int64(load(distances, j))
        ones += magnitude == 1
        twos += magnitude == 2
        others += magnitude > 2
        above_ones += distance if magnitude == 1 else 0
        above_twos += distance if magnitude == 2 else 0
        above_others += distance if magnitude > 2 else 0
    for k, number in enumerate((ones, twos, others, above_ones, above_twos, above_others)):
        sums[k] += number


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
def _round_runs(values, table, inverse, classes, thresholds, first, stop, codes, distances, sums):
    """Codes of runs first .. stop - 1, back to back, and where they end."""
    end = 0
    for run in range(first, stop):
        count = table[run, LENGTH]
        if classes[run] >= SCALED:
            row, low_bits = row_and_low_bits(np.int64(classes[run]), len(thresholds) // REACH)
            _round(
                values, table[run, START], count, inverse[run], low_bits == 0, thresholds, row * REACH, end, codes,
                distances,
            )  # fmt: skip
            _add_up(codes, distances, end, count, sums)
        end += count
    return end


@njit(nogil=True, cache=True, error_model="numpy")
def _encode_chunks(
    values, table, inverse, counts, classes, thresholds, tables, chunk_runs, first, stop, words, lengths, sums
):
    codes, distances = np.empty(BLOCK * RUN, dtype=np.int32), np.empty(BLOCK * RUN, dtype=np.int32)
    phases, edges = np.full(BLOCK * RUN, PHASE, dtype=np.int32), np.empty(RUN, dtype=np.int32)
    for chunk in range(first, stop):
        head, last, buffer = chunk * chunk_runs, min((chunk + 1) * chunk_runs, len(table)), words[chunk]
        states, at = np.full(LANES, STATE_LEAST, dtype=np.uint64), len(buffer)
        for run in range(head + (last - head - 1) // BLOCK * BLOCK, head - 1, -BLOCK):
            after = min(run + BLOCK, last)
            end = _round_runs(values, table, inverse, classes, thresholds, run, after, codes, distances, sums[chunk])
            at = encode_runs(
                codes, phases, end, counts, classes, run, after, head, tables, LOG_PHASES, edges, states, buffer, at
            )
        lengths[chunk] = finish(states, buffer, at)


def deadzone_encode(
    values: Tensor,
    table: Tensor,
    inverse: Tensor,
    classes: Tensor,
    thresholds: Tensor,
    tables: list[Tensor],
    chunk_runs: int,
    room: int,
) -> tuple[Tensor, Tensor, Tensor]:
    chunks = -(-len(table) // chunk_runs)
    words, lengths = torch.empty(chunks, room, dtype=torch.int16), torch.empty(chunks, dtype=torch.int64)
    sums, counts = torch.zeros(chunks, 2 * CENTROIDS, dtype=torch.int64), table[:, LENGTH].contiguous()
    arrays = tuple(t.numpy() for t in (values, table, inverse, counts, classes, thresholds.reshape(-1)))
    rows, out = flat_tables(tables), (words.numpy().view(np.uint16), lengths.numpy(), sums.numpy())
    for_ranges(chunks, 1, lambda a, b: _encode_chunks(*arrays, rows, chunk_runs, a, b, *out))
    return words, lengths, sums.sum(0).reshape(2, CENTROIDS)


@njit(forceinline=True, _nrt=False, nogil=True, cache=True, error_model="numpy")
def _put_run(codes, at, start, count, step, distances, total, add):
    """Write, or add, a run's values; rounded to the type of `total` before they are added."""
    for j in range(count):
        code = np.int64(load(codes, at + j))
        distance = load(distances, min(abs(code), CENTROIDS))
        value = total.dtype.type((np.float64(code) + (-distance if code < 0 else distance)) * step)
        store(total, start + j, (load(total, start + j) + value) if add else value)


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
def _put_runs(codes, table, steps, distances, classes, first, stop, total, add):
    """Write, or add, the values of runs first .. stop - 1, whose codes lie back to back."""
    at = 0
    for run in range(first, stop):
        start, count = table[run, START], table[run, LENGTH]
        if classes[run] >= SCALED:
            _put_run(codes, at, start, count, steps[run], distances, total, add)
        else:
            put_plain_run(classes[run], start, count, total, add)
        at += count


@njit(nogil=True, cache=True, error_model="numpy")
def _decode_chunks(
    words, starts, table, steps, distances, counts, tables, chunk_runs, first, stop, classes, total, add, good
):
    codes, phases = np.empty(BLOCK * RUN, dtype=np.int32), np.full(BLOCK * RUN, PHASE, dtype=np.int32)
    states = np.empty(2 * LANES, dtype=np.uint64)
    for chunk in range(first, stop):
        head, last, end = chunk * chunk_runs, min((chunk + 1) * chunk_runs, len(table)), starts[chunk + 1]
        at = begin(states, words, starts[chunk], end)
        for run in range(head, last, BLOCK):
            after, before = min(run + BLOCK, last), np.int64(classes[run - 1]) if run > head else FIRST_CLASS
            at = decode_runs(
                words, at, end, phases, 0, counts, run, after, before, tables, LOG_PHASES, states, codes, classes
            )
            if at > end:
                break
            _put_runs(codes, table, steps, distances, classes, run, after, total, add)
        good[chunk] = ended(states, at, end)


def deadzone_decode(
    words: Tensor,
    starts: Tensor,
    table: Tensor,
    steps: Tensor,
    distances: Tensor,
    tables: list[Tensor],
    chunk_runs: int,
    total: Tensor,
    add: bool,
) -> Tensor:
    good = torch.empty(len(starts) - 1, dtype=torch.bool)
    arrays = (words.numpy().view(np.uint16), *(t.numpy() for t in (starts, table, steps, distances)))
    counts, classes = table[:, LENGTH].contiguous().numpy(), np.empty(len(table), dtype=np.uint8)
    rows, out = flat_tables(tables), (classes, total.numpy(), add, good.numpy())
    for_ranges(len(good), 1, lambda a, b: _decode_chunks(*arrays, counts, rows, chunk_runs, a, b, *out))
    return good
