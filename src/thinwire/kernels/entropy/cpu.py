"""The entropy coder on the CPU. A run is coded by rows of 8 values, one a lane, without a branch but for escapes.

`encode_runs` and `decode_runs` serve other kernels, too: codes and phases of a few runs at a time stay in the first
cache.
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
    ZEROS,
)
from thinwire.kernels.machine import load, store
from thinwire.kernels.pool import for_ranges

__all__ = [
    "BLOCK",
    "begin",
    "decode_codes",
    "decode_runs",
    "encode_codes",
    "encode_runs",
    "ended",
    "finish",
    "flat_tables",
    "put_plain_run",
    "row_and_low_bits",
]

BLOCK = 8  # runs whose codes and phases fit into the first cache, for kernels that make them
_U = np.uint64
_12, _16, _20, _44 = _U(LOG_TOTAL), _U(16), _U(20), _U(44)
_SLOT, _WORD, _ONE = _U(TOTAL - 1), _U(0xFFFF), _U(1)
_STATE = _U(STATE_LEAST)
_WIDTH = 2 * CENTER
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


@njit(forceinline=True, nogil=True, cache=True, error_model="numpy")
def row_and_low_bits(class_, rows):
    number = class_ - SCALED
    low_bits = max(0, -((rows - 1 - number) // 4))
    return number - 4 * low_bits, low_bits


@njit(inline="always")
def _encode_class(class_, before, bounds, limits, states, words, at):
    edge = class_ - before - 1 + CENTER
    if not limits[0] <= edge < limits[1]:
        at = _put_plain(states, 0, class_, 7, words, at)
        edge = limits[0] - 1
    return _put(states, 0, np.int64(bounds[edge]), np.int64(bounds[edge + 1]) - np.int64(bounds[edge]), words, at)


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
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


@njit(inline="always")
def _encode_row(edges, begin, bounds, origin, stride, states, words, at):
    """Eight values that do not escape, one a lane."""
    for i in range(LANES):
        lane = LANES - 1 - i
        edge = np.int64(load(edges, begin + lane))
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


@njit(inline="always")
def _find_edges(codes, phases, begin, count, low, span, log_phases, edges):
    """Where each code begins in its row, or beyond it for codes that are too far out; whether none escapes."""
    outside = np.int32(0)
    for j in range(count):
        code = min(max(load(codes, begin + j), np.int32(-_WIDTH)), np.int32(_WIDTH))
        edge = np.int32((code << log_phases) - load(phases, begin + j) + np.int32(CENTER - 1))
        outside |= np.int32(np.uint32(edge - low) >= span)
        store(edges, j, edge)
    return outside == 0


@njit(inline="always")
def _inside(edges, begin, low, span):
    """Whether no value of a row escapes."""
    outside = np.int32(0)
    for lane in range(LANES):
        outside |= np.int32(np.uint32(load(edges, begin + lane) - low) >= span)
    return outside == 0


@njit(inline="always")
def _encode_run(codes, phases, begin, count, low_bits, row, bounds, limits, log_phases, edges, states, words, at):
    """A run's values, the last one first: `at` afterwards, or -1 if a code is too far out."""
    low, high, origin = np.int32(load(limits, 2 * row)), np.int32(load(limits, 2 * row + 1)), row * _WIDTH
    span = np.uint32(high - low) if low_bits == 0 else np.uint32(0)
    all_inside = _find_edges(codes, phases, begin, count, low, span, np.int32(log_phases), edges)
    stop = count
    while stop > 0:
        start = (stop - 1) & ~(LANES - 1)
        if stop - start == LANES and (all_inside or _inside(edges, start, low, span)):
            at = _encode_row(edges, start, bounds, origin, 1 << log_phases, states, words, at)
        else:
            for j in range(stop - 1, start - 1, -1):
                code, phase = np.int64(codes[begin + j]), np.int64(phases[begin + j])
                if abs(code >> low_bits) > FARTHEST:
                    return -1
                at = _encode_value(
                    code, phase, j - start, low_bits, bounds, origin, low, high, log_phases, states, words, at
                )
        stop = start
    return at


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
def encode_runs(codes, phases, end, counts, classes, begin, stop, first, tables, log_phases, edges, states, words, at):
    """Code runs stop - 1 .. begin of the chunk that begins at run `first`, backwards.

    Args:
        codes, phases: int32 and integers; those of these runs lie back to back, up to `end`. Codes within 2^30 of zero.
        tables: as `flat_tables` makes them.
        edges: int32 `[256]`, scratch.
        states: uint64 `[8]`.
        words: uint16, filled from its end; what is coded already begins at `at`.
    Returns:
        `at` afterwards, or -1 if a code is too far out or there is too little room.
    """
    bounds, _, limits, map_bounds, _, map_limits = tables
    for run in range(stop - 1, begin - 1, -1):
        if at < ROOM:
            return -1
        class_, count = np.int64(classes[run]), counts[run]
        end -= count
        if class_ >= SCALED:
            row, low_bits = row_and_low_bits(class_, len(limits) // 2)
            at = _encode_run(
                codes, phases, end, count, low_bits, row, bounds, limits, log_phases, edges, states, words, at
            )
            if at < 0:
                return -1
        before = np.int64(classes[run - 1]) if run > first else FIRST_CLASS
        at = _encode_class(class_, before, map_bounds, map_limits, states, words, at)
    return at


@njit(nogil=True, cache=True, error_model="numpy")
def finish(states, words, at):
    """Put the states in front of a chunk's words; returns its length, -1 if there is too little room (or at is -1)."""
    at -= 2 * LANES
    if at < ROOM:
        return -1
    for lane in range(LANES):
        words[at + 2 * lane] = np.uint16(states[lane] & _WORD)
        words[at + 2 * lane + 1] = np.uint16(states[lane] >> _16)
    return len(words) - at


@njit(nogil=True, cache=True, error_model="numpy")
def _encode_chunks(codes, phases, counts, ends, classes, tables, log_phases, chunk_runs, first, stop, words, lengths):
    edges = np.empty(RUN, dtype=np.int32)
    for chunk in range(first, stop):
        begin, last, buffer = chunk * chunk_runs, min((chunk + 1) * chunk_runs, len(counts)), words[chunk]
        states = np.full(LANES, STATE_LEAST, dtype=np.uint64)
        at = encode_runs(
            codes, phases, ends[last - 1], counts, classes, begin, last, begin, tables, log_phases, edges, states,
            buffer, len(buffer),
        )  # fmt: skip
        lengths[chunk] = finish(states, buffer, at)


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


@njit(inline="always")
def _decode_class(before, bounds, boundary, limits, states, words, at, stop):
    """A run's class, -1 if it cannot be, and where the next word is."""
    edge = np.int64(boundary[states[0] & _SLOT])
    at = _take(states, 0, np.int64(bounds[edge]), np.int64(bounds[edge + 1]) - np.int64(bounds[edge]), words, at, stop)
    class_ = edge + 1 - CENTER + before
    if edge < limits[0] or edge >= limits[1]:
        class_, at = _take_plain(states, 0, 7, words, at, stop)
    return (class_ if 0 <= class_ <= LARGEST_CLASS else -1), at


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
def _take_escape(states, lane, words, at, stop):
    """How far beyond a code lies, and where the next word is: stop + 1 if no encoder wrote this."""
    beyond = 0
    for _ in range(MOST_DIGITS):
        digit, at = _take_plain(states, lane, 4, words, at, stop)
        beyond += digit
        if digit < LARGEST_DIGIT:
            return beyond, at
    return beyond, stop + 1


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
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


@njit(inline="always")
def _decode_row(phases, begin, row, bounds, boundary, low, span, log_phases, states, here, words, at, codes):
    """Eight values, one a lane: where the next word is, and whether none was an escape; at most eight words.

    States are read from `here` on and written to the other half.
    """
    stride, outside = np.int64(1 << log_phases), False
    for lane in range(LANES):
        x = load(states, here + lane)
        slot = x & _SLOT
        shifted = np.int64(load(phases, begin + lane)) + (1 - CENTER)
        begins = (np.int64(load(boundary, row * TOTAL + np.int64(slot))) + shifted) & -stride
        edge = begins - shifted
        first = _U(load(bounds, row * _WIDTH + edge))
        x = (_U(load(bounds, row * _WIDTH + edge + stride)) - first) * (x >> _12) + (slot - first)
        longer = (x << _16) | _U(load(words, at))
        store(states, LANES - here + lane, longer if x < _STATE else x)
        at += np.int64(x < _STATE)
        outside |= _U(edge - low) >= span
        store(codes, begin + lane, np.int32(begins >> log_phases))
    return at, not outside


@njit(forceinline=True, _nrt=False, nogil=True, cache=True, error_model="numpy")
def put_plain_run(class_, start, count, total, add):
    """Write, or add, the values of a run without codes: zeros, or NaN."""
    value = total.dtype.type(0.0 if class_ == ZEROS else np.nan)
    for j in range(start, start + count):
        total[j] = total[j] + value if add else value


@njit(inline="always")
def _decode_run(
    phases, begin, count, low_bits, row, bounds, boundary, limits, log_phases, states, words, at, stop, codes
):
    """A run's values, from `begin` on: where the next word is, past `stop` if that was too far."""
    low, high = np.int64(load(limits, 2 * row)), np.int64(load(limits, 2 * row + 1))
    here = 0
    for start in range(0, count, LANES):
        if low_bits == 0 and count - start >= LANES and stop - at >= LANES:
            after, inside = _decode_row(
                phases, begin + start, row, bounds, boundary, low, _U(high - low), log_phases, states, here, words, at,
                codes,
            )  # fmt: skip
            if inside:
                at, here = after, LANES - here
                continue
        for j in range(start, min(start + LANES, count)):
            code, at = _decode_value(
                np.int64(phases[begin + j]), here + j - start, low_bits, row, bounds, boundary, limits, log_phases,
                states, words, at, stop,
            )  # fmt: skip
            codes[begin + j] = code
    if here:
        for lane in range(LANES):
            states[lane] = states[LANES + lane]
    return at


@njit(_nrt=False, nogil=True, cache=True, error_model="numpy")
def decode_runs(
    words, at, stop, phases, begin, counts, first, last, before, tables, log_phases, states, codes, classes
):
    """Decode runs first .. last - 1 of a chunk, the class before whose first is `before`.

    Args:
        words: uint16; the next word is at `at`, the chunk's last before `stop`.
        phases: integers, the runs' back to back from `begin` on.
        tables: as `flat_tables` makes them.
        states: uint64 `[16]`, of which the upper half is scratch.
        codes: int32, the result, from `begin` on: 0 in runs of classes 0 and 1.
        classes: uint8, the result, from `first` on.
    Returns:
        Where the next word is, past `stop` if the chunk is none that an encoder writes; the rest is undefined then.
    """
    bounds, boundary, limits, map_bounds, map_boundary, map_limits = tables
    for run in range(first, last):
        if at > stop:
            return at
        before, at = _decode_class(before, map_bounds, map_boundary, map_limits, states, words, at, stop)
        if before < 0:
            return stop + 1
        classes[run], count = before, counts[run]
        if before >= SCALED:
            row, low_bits = row_and_low_bits(before, len(limits) // 2)
            at = _decode_run(
                phases, begin, count, low_bits, row, bounds, boundary, limits, log_phases, states, words, at, stop,
                codes,
            )  # fmt: skip
        else:
            codes[begin : begin + count] = 0
        begin += count
    return at


@njit(nogil=True, cache=True, error_model="numpy")
def _decode_chunks(
    words, starts, phases, counts, ends, tables, log_phases, chunk_runs, first, stop, codes, classes, good
):
    states = np.empty(2 * LANES, dtype=np.uint64)
    for chunk in range(first, stop):
        run, last, end = chunk * chunk_runs, min((chunk + 1) * chunk_runs, len(counts)), starts[chunk + 1]
        at = decode_runs(
            words, begin(states, words, starts[chunk], end), end, phases, ends[run] - counts[run], counts, run, last,
            FIRST_CLASS, tables, log_phases, states, codes, classes,
        )  # fmt: skip
        good[chunk] = ended(states, at, end)


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
