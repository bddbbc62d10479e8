"""The entropy coder on the CPU. A run is coded by rows of 8 values, one a lane, without a branch but for escapes.

`encode_run` and `decode_run` serve other kernels, too: a run's codes and phases are in small arrays that stay in the
first cache.
"""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.entropy.book import CENTER, LOG_TOTAL, TOTAL
from thinwire.kernels.entropy.reference import (
    FARTHEST,
    FIRST_CLASS,
    LANES,
    LARGEST_CLASS,
    LARGEST_DIGIT,
    MOST_DIGITS,
    ROOM,
    RUN,
    SCALED,
    STATE_LEAST,
)
from thinwire.kernels.machine import load, store
from thinwire.kernels.pool import for_ranges

__all__ = [
    "begin",
    "decode_class",
    "decode_codes",
    "decode_run",
    "encode_class",
    "encode_codes",
    "encode_run",
    "finish",
]

_U = np.uint64
_12, _16, _20, _44 = _U(LOG_TOTAL), _U(16), _U(20), _U(44)
_SLOT, _WORD, _ONE = _U(TOTAL - 1), _U(0xFFFF), _U(1)
_STATE = _U(STATE_LEAST)
_WIDTH = 2 * CENTER
SURE = LANES * (MOST_DIGITS + 4)  # words that a row of 8 values takes at most
_RECIPROCALS = np.array([0, *(-(-(1 << 44) // f) for f in range(1, TOTAL + 1))], dtype=np.uint64)
"""ceil(2^44 / f): x div f = (x r) >> 44, exactly, for every x < 2^20 f, and x r stays below 2^64."""


@njit(inline="always")
def _put(states, lane, first, frequency, words, at):
    """One encoding step: `words` fills from its end, `at` is where its first word lies."""
    x = states[lane]
    if x >= _U(frequency) << _20:
        at -= 1
        words[at] = np.uint16(x & _WORD)
        x >>= _16
    quotient = (x * _RECIPROCALS[frequency]) >> _44
    states[lane] = (quotient << _12) + (x - quotient * _U(frequency)) + _U(first)
    return at


@njit(inline="always")
def _put_plain(states, lane, value, bits, words, at):
    return _put(states, lane, value << (LOG_TOTAL - bits), TOTAL >> bits, words, at)


@njit(nogil=True, cache=True, error_model="numpy")
def row_and_low_bits(class_, rows):
    number = class_ - SCALED
    low_bits = max(0, -((rows - 1 - number) // 4))
    return number - 4 * low_bits, low_bits


@njit(nogil=True, cache=True, error_model="numpy")
def encode_class(class_, before, bounds, limits, states, words, at):
    edge = class_ - before - 1 + CENTER
    if not limits[0] <= edge < limits[1]:
        at = _put_plain(states, 0, class_, 7, words, at)
        edge = limits[0] - 1
    return _put(states, 0, np.int64(bounds[edge]), np.int64(bounds[edge + 1]) - np.int64(bounds[edge]), words, at)


@njit(nogil=True, cache=True, error_model="numpy")
def _encode_value(code, phase, lane, low_bits, bounds, origin, low, high, log_phases, states, words, at):
    """Any value, escapes and low bits included."""
    for piece in range((low_bits + 7) // 8 - 1, -1, -1):
        width = min(8, low_bits - 8 * piece)
        at = _put_plain(states, lane, (code >> (8 * piece)) & ((1 << width) - 1), width, words, at)
    edge = ((code >> low_bits) << log_phases) - (phase >> low_bits) - 1 + CENTER
    if edge < low or edge >= high:
        beyond = (low - 1 - edge) >> log_phases if edge < low else (edge - high) >> log_phases
        at = _put_plain(states, lane, beyond % LARGEST_DIGIT, 4, words, at)
        for _ in range(beyond // LARGEST_DIGIT):
            at = _put_plain(states, lane, LARGEST_DIGIT, 4, words, at)
        edge += (beyond if edge < low else -beyond) << log_phases
    first = np.int64(bounds[origin + edge])
    return _put(states, lane, first, np.int64(bounds[origin + edge + (1 << log_phases)]) - first, words, at)


@njit(forceinline=True, nogil=True, cache=True, error_model="numpy")
def _encode_rows(edges, count, bounds, origin, stride, states, words, at):
    """Whole rows of 8 values that do not escape, the last row first."""
    for row in range(count - LANES, -1, -LANES):
        for i in range(LANES):
            lane = LANES - 1 - i
            edge = np.int64(load(edges, row + lane))
            first = _U(load(bounds, origin + edge))
            frequency = _U(load(bounds, origin + edge + stride)) - first
            x = states[lane]
            emit = _U(x >= frequency << _20)
            store(words, at - 1, np.uint16(x & _WORD))
            at -= np.int64(emit)
            x >>= emit << _U(4)
            quotient = (x * _RECIPROCALS[frequency]) >> _44
            states[lane] = (quotient << _12) + (x - quotient * frequency) + first
    return at


@njit(forceinline=True, nogil=True, cache=True, error_model="numpy")
def _find_edges(codes, phases, begin, count, low, high, log_phases, edges):
    """Where each code begins; whether none escapes."""
    outside = np.int32(0)
    span = np.uint32(high - low)
    for j in range(count):
        edge = np.int32((load(codes, begin + j) << log_phases) - load(phases, begin + j) + np.int32(CENTER - 1))
        store(edges, j, edge)
        outside |= np.int32(np.uint32(edge - low) >= span)
    return outside == 0


@njit(forceinline=True, nogil=True, cache=True, error_model="numpy")
def encode_run(codes, phases, begin, count, low_bits, row, bounds, limits, log_phases, edges, states, words, at):
    """Code a run's values backwards: `at` afterwards, or -1 if a code is too far out.

    Args:
        codes, phases: int32, the run's from `begin` on; codes within 2^30 of zero.
        row: the run's in the tables.
        bounds, limits: the tables' rows back to back.
        edges: int32 of 256, scratch.
        states: uint64 `[8]`.
        words: uint16; before `at` there is room for a run.
    """
    low, high, origin = np.int32(load(limits, 2 * row)), np.int32(load(limits, 2 * row + 1)), row * _WIDTH
    whole = 0
    if low_bits == 0 and _find_edges(codes, phases, begin, count, low, high, np.int32(log_phases), edges):
        whole = count & ~(LANES - 1)
    else:
        for j in range(begin, begin + count):
            if abs(np.int64(codes[j]) >> low_bits) > FARTHEST:
                return -1
    for j in range(count - 1, whole - 1, -1):
        code, phase = np.int64(codes[begin + j]), np.int64(phases[begin + j])
        lane = j % LANES
        at = _encode_value(code, phase, lane, low_bits, bounds, origin, low, high, log_phases, states, words, at)
    return _encode_rows(edges, whole, bounds, origin, 1 << log_phases, states, words, at)


@njit(nogil=True, cache=True, error_model="numpy")
def finish(states, words, at):
    """Put the states in front of the words; returns where the chunk begins."""
    at -= 2 * LANES
    for lane in range(LANES):
        words[at + 2 * lane] = np.uint16(states[lane] & _WORD)
        words[at + 2 * lane + 1] = np.uint16(states[lane] >> _16)
    return at


@njit(nogil=True, cache=True, error_model="numpy")
def _encode_chunk(codes, phases, counts, classes, first, stop, end, tables, log_phases, buffer):
    """Runs first .. stop - 1 of a chunk, whose values end at `end`: where in the buffer it begins, or -1."""
    bounds, _, limits, map_bounds, _, map_limits = tables
    states, edges = np.full(LANES, STATE_LEAST, dtype=np.uint64), np.empty(RUN, dtype=np.int32)
    at = len(buffer)
    for run in range(stop - 1, first - 1, -1):
        if at < ROOM:
            return -1
        class_, count = np.int64(classes[run]), counts[run]
        end -= count
        if class_ >= SCALED:
            row, low_bits = row_and_low_bits(class_, len(limits) // 2)
            at = encode_run(
                codes, phases, end, count, low_bits, row, bounds, limits, log_phases, edges, states, buffer, at
            )
            if at < 0:
                return -1
        before = np.int64(classes[run - 1]) if run > first else FIRST_CLASS
        at = encode_class(class_, before, map_bounds, map_limits, states, buffer, at)
    return finish(states, buffer, at)


@njit(nogil=True, cache=True, error_model="numpy")
def _encode_chunks(codes, phases, counts, ends, classes, tables, log_phases, chunk_runs, first, stop, words, lengths):
    for chunk in range(first, stop):
        last = min((chunk + 1) * chunk_runs, len(counts))
        buffer = words[chunk]
        at = _encode_chunk(
            codes, phases, counts, classes, chunk * chunk_runs, last, ends[last - 1], tables, log_phases, buffer
        )
        lengths[chunk] = -1 if at < ROOM else len(buffer) - at


def flat_tables(tables: list[Tensor]) -> tuple[np.ndarray, ...]:
    """Tables as the kernels take them: uint16, but for the limits; rows back to back, since views of them cost time."""
    flat = [t.numpy().reshape(-1) for t in tables]
    return tuple(a.view(np.uint16) if a.dtype == np.int16 else a for a in flat)


def encode_codes(
    codes: Tensor,
    phases: Tensor,
    counts: Tensor,
    classes: Tensor,
    tables: list[Tensor],
    log_phases: int,
    chunk_runs: int,
    room: int,
) -> tuple[Tensor, Tensor]:
    chunks = -(-len(counts) // chunk_runs)
    words, lengths = torch.empty(chunks, room, dtype=torch.int16), torch.empty(chunks, dtype=torch.int64)
    arrays = (codes.numpy(), phases.numpy(), counts.numpy(), torch.cumsum(counts, 0).numpy(), classes.numpy())
    rows, out = flat_tables(tables), (words.numpy().view(np.uint16), lengths.numpy())
    for_ranges(chunks, 1, lambda a, b: _encode_chunks(*arrays, rows, log_phases, chunk_runs, a, b, *out))
    return words, lengths


@njit(inline="always")
def _take(states, lane, first, frequency, words, at, stop):
    """One decoding step, given what its slot says: where the next word is, or stop + 1 where there was none."""
    x = states[lane]
    x = _U(frequency) * (x >> _12) + (x & _SLOT) - _U(first)
    if x < _STATE:
        x <<= _16
        if at < stop:
            x |= _U(words[at])
        at += 1
    states[lane] = x
    return at


@njit(inline="always")
def _take_plain(states, lane, bits, words, at, stop):
    value = np.int64(states[lane] & _SLOT) >> (LOG_TOTAL - bits)
    at = _take(states, lane, value << (LOG_TOTAL - bits), TOTAL >> bits, words, at, stop)
    return value, at


@njit(nogil=True, cache=True, error_model="numpy")
def begin(states, words, at, stop):
    """Read the states: where the next word is, or stop + 1 where they are not there."""
    if stop - at < 2 * LANES:
        return stop + 1
    for lane in range(LANES):
        states[lane] = _U(words[at + 2 * lane]) | _U(words[at + 2 * lane + 1]) << _16
    return at + 2 * LANES


@njit(nogil=True, cache=True, error_model="numpy")
def ended(states, at, stop):
    """Whether a chunk has ended as an encoder's does."""
    good = at == stop
    for lane in range(LANES):
        good &= states[lane] == _STATE
    return good


@njit(nogil=True, cache=True, error_model="numpy")
def decode_class(before, bounds, boundary, limits, states, words, at, stop):
    """A run's class, -1 if it cannot be, and where the next word is."""
    edge = np.int64(boundary[states[0] & _SLOT])
    at = _take(states, 0, np.int64(bounds[edge]), np.int64(bounds[edge + 1]) - np.int64(bounds[edge]), words, at, stop)
    class_ = edge + 1 - CENTER + before
    if edge < limits[0] or edge >= limits[1]:
        class_, at = _take_plain(states, 0, 7, words, at, stop)
    return (class_ if 0 <= class_ <= LARGEST_CLASS else -1), at


@njit(nogil=True, cache=True, error_model="numpy")
def _take_escape(states, lane, words, at, stop):
    """How far beyond a code lies, and where the next word is: stop + 1 if no encoder wrote this."""
    beyond = 0
    for _ in range(MOST_DIGITS):
        digit, at = _take_plain(states, lane, 4, words, at, stop)
        beyond += digit
        if digit < LARGEST_DIGIT:
            return beyond, at
    return beyond, stop + 1


@njit(nogil=True, cache=True, error_model="numpy")
def _decode_value(phase, lane, low_bits, row, bounds, boundary, limits, log_phases, states, words, at, stop):
    """Any value, escapes and low bits included, and where the next word is: past `stop` if that was too far."""
    shifted, low, high = (phase >> low_bits) + 1 - CENTER, limits[2 * row], limits[2 * row + 1]
    begins = (np.int64(boundary[row * TOTAL + np.int64(states[lane] & _SLOT)]) + shifted) & -(1 << log_phases)
    edge, code = begins - shifted, begins >> log_phases
    first = np.int64(bounds[row * _WIDTH + edge])
    frequency = np.int64(bounds[row * _WIDTH + edge + (1 << log_phases)]) - first
    at = _take(states, lane, first, frequency, words, at, stop)
    if edge < low or edge >= high:
        beyond, at = _take_escape(states, lane, words, at, stop)
        code += -beyond if edge < low else beyond
    code <<= low_bits
    for piece in range((low_bits + 7) // 8):
        part, at = _take_plain(states, lane, min(8, low_bits - 8 * piece), words, at, stop)
        code += part << (8 * piece)
    return code, at


@njit(forceinline=True, nogil=True, cache=True, error_model="numpy")
def _decode_rows(phases, begin, count, row, bounds, boundary, limits, log_phases, states, words, at, stop, codes):
    """Whole rows of 8 values, as long as the words surely suffice: how many values, and where the next word is."""
    stride, mask = np.int64(1 << log_phases), np.int64(-(1 << log_phases))
    low, high = np.int64(load(limits, 2 * row)), np.int64(load(limits, 2 * row + 1))
    origin, slots, span = row * _WIDTH, row * TOTAL, _U(high - low)
    done = 0
    while done + LANES <= count and stop - at >= SURE:
        for lane in range(LANES):
            x = states[lane]
            slot = x & _SLOT
            shifted = np.int64(load(phases, begin + done + lane)) + (1 - CENTER)
            begins = (np.int64(load(boundary, slots + np.int64(slot))) + shifted) & mask
            edge = begins - shifted
            first = _U(load(bounds, origin + edge))
            x = (_U(load(bounds, origin + edge + stride)) - first) * (x >> _12) + (slot - first)
            take = _U(x < _STATE)
            x = (x << (take << _U(4))) | (_U(load(words, at)) & (_U(0) - take))
            at += np.int64(take)
            states[lane] = x
            code = begins >> log_phases
            if _U(edge - low) >= span:
                beyond, at = _take_escape(states, lane, words, at, stop)
                code += -beyond if edge < low else beyond
            store(codes, begin + done + lane, np.int32(code))
        done += LANES
    return done, at


@njit(forceinline=True, nogil=True, cache=True, error_model="numpy")
def decode_run(
    phases, begin, count, low_bits, row, bounds, boundary, limits, log_phases, states, words, at, stop, codes
):
    """Decode a run's values: where the next word is, past `stop` if that was too far.

    Args:
        phases: int32, the run's from `begin` on.
        row: the run's in the tables.
        bounds, boundary, limits: the tables' rows back to back.
        codes: int32, the result, from `begin` on.
    """
    done = 0
    if low_bits == 0:
        done, at = _decode_rows(
            phases, begin, count, row, bounds, boundary, limits, log_phases, states, words, at, stop, codes
        )
    for j in range(done, count):
        phase, lane = np.int64(phases[begin + j]), j % LANES
        code, at = _decode_value(
            phase, lane, low_bits, row, bounds, boundary, limits, log_phases, states, words, at, stop
        )
        codes[begin + j] = code
    return at


@njit(nogil=True, cache=True, error_model="numpy")
def _decode_chunk(words, at, stop, phases, counts, first, last, begins, tables, log_phases, codes, classes):
    """Runs first .. last - 1, whose first value is number `begins`: whether the chunk was what an encoder writes."""
    bounds, boundary, limits, map_bounds, map_boundary, map_limits = tables
    states, before = np.empty(LANES, dtype=np.uint64), FIRST_CLASS
    at = begin(states, words, at, stop)
    for run in range(first, last):
        if at > stop:
            return False
        before, at = decode_class(before, map_bounds, map_boundary, map_limits, states, words, at, stop)
        if before < 0:
            return False
        classes[run], count = before, counts[run]
        codes[begins : begins + count] = 0
        if before >= SCALED:
            row, low_bits = row_and_low_bits(before, len(limits) // 2)
            at = decode_run(
                phases,
                begins,
                count,
                low_bits,
                row,
                bounds,
                boundary,
                limits,
                log_phases,
                states,
                words,
                at,
                stop,
                codes,
            )
        begins += count
    return ended(states, at, stop)


@njit(nogil=True, cache=True, error_model="numpy")
def _decode_chunks(
    words, starts, phases, counts, ends, tables, log_phases, chunk_runs, first, stop, codes, classes, good
):
    for chunk in range(first, stop):
        run, last = chunk * chunk_runs, min((chunk + 1) * chunk_runs, len(counts))
        good[chunk] = _decode_chunk(
            words, starts[chunk], starts[chunk + 1], phases, counts, run, last, ends[run] - counts[run], tables,
            log_phases, codes, classes,
        )  # fmt: skip


def decode_codes(
    words: Tensor,
    starts: Tensor,
    phases: Tensor,
    counts: Tensor,
    tables: list[Tensor],
    log_phases: int,
    chunk_runs: int,
) -> tuple[Tensor, Tensor, Tensor]:
    codes = torch.empty(len(phases), dtype=torch.int32)
    classes = torch.zeros(len(counts), dtype=torch.uint8)
    good = torch.empty(len(starts) - 1, dtype=torch.bool)
    arrays = (words.numpy().view(np.uint16), starts.numpy(), phases.numpy(), counts.numpy())
    ends, rows = torch.cumsum(counts, 0).numpy(), flat_tables(tables)
    out = (codes.numpy(), classes.numpy(), good.numpy())
    for_ranges(len(good), 1, lambda a, b: _decode_chunks(*arrays, ends, rows, log_phases, chunk_runs, a, b, *out))
    return codes, classes, good
