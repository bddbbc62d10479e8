"""The specification of the entropy coder: interleaved rANS, a value at a time.

Runs of up to 256 values are coded in chunks of `chunk_runs`, each of which decodes alone. A chunk has 8 lanes, each a
state x in [2^16, 2^32); value j of a run belongs to lane j mod 8, a run's class to lane 0. All lanes share one stream
of 16-bit words. Decoding a step of frequency f that begins at slot s (of 4096) from state x: the slot is x mod 4096,
and x becomes f (x div 4096) + slot - s; if that is below 2^16, it takes the next word: x becomes 65536 x + word. k
plain bits are a step of frequency 4096 / 2^k.

In a chunk, in the decoder's order: the states, low words first; then for each run its class, then its values.

A class is coded as its difference from the one before (24 before a chunk's first) by the map's row; a difference
outside it by the step below the row's first code, then the class itself in 7 plain bits. Class 0 marks a run that is
not finite, class 1 one of zeros: neither has values. Class 2 + c has the table row c; above the last row, four classes
double the scale: class 2 + c + 4 b has row c and codes q >> b, then the b low bits of q plainly, the lowest 8 first.

A code's boundaries are given by the phase of its value, shifted right by b: see `Tables`. An escape is followed by how
far its code lies beyond the one that it stands for, in plain 4-bit digits: each 15 adds 15 and is followed by another.

Every state must end at 2^16 and the stream at its last word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.kernels.entropy.book import CENTER, LOG_TOTAL, TOTAL

__all__ = [
    "FIRST_CLASS",
    "LANES",
    "LARGEST_CLASS",
    "NOT_FINITE",
    "ROOM",
    "RUN",
    "SCALED",
    "ZEROS",
    "decode_codes",
    "encode_codes",
]

RUN = 256
LANES = 8
ROOM = 5 * RUN + 32  # words that a run and its class, or the states, take at most
NOT_FINITE, ZEROS, SCALED = 0, 1, 2  # classes: the third is the first of those with values
FIRST_CLASS = 24
LARGEST_CLASS = 111
FARTHEST = 240  # the largest code, low bits taken off, that is encoded
LARGEST_DIGIT, MOST_DIGITS = 15, 17
STATE_LEAST = 1 << 16


@dataclass(frozen=True)
class _Row:
    """One row of `Tables`, as lists."""

    bounds: list[int]
    boundary: list[int]
    limits: list[int]
    log_phases: int

    def end(self, at: int) -> int:
        return self.bounds[at + (1 << self.log_phases)]


def _rows(tables: Sequence[Tensor], log_phases: int) -> tuple[list[_Row], _Row]:
    """The rows of values, and the row of class differences."""
    bounds, boundary, limits, *of_map = (t.tolist() for t in tables)
    return [_Row(*row, log_phases) for row in zip(bounds, boundary, limits)], _Row(of_map[0], of_map[1], of_map[2], 0)


def _row_and_low_bits(class_: int, rows: int) -> tuple[int, int]:
    number = class_ - SCALED
    low_bits = max(0, -((rows - 1 - number) // 4))
    return number - 4 * low_bits, low_bits


def _pieces(low_bits: int) -> list[tuple[int, int]]:
    """(shift, width) of the plain bits of a code, in order."""
    return [(shift, min(8, low_bits - shift)) for shift in range(0, low_bits, 8)]


class _Encoder:
    """Collects steps in the decoder's order, and codes them backwards."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, int, int]] = []  # lane, first slot, frequency

    def plain(self, lane: int, value: int, bits: int) -> None:
        self.steps.append((lane, value << (LOG_TOTAL - bits), TOTAL >> bits))

    def class_(self, class_: int, before: int, row: _Row) -> None:
        at, (low, high) = class_ - before - 1 + CENTER, row.limits
        if not low <= at < high:
            at = low - 1
        self.steps.append((0, row.bounds[at], row.end(at) - row.bounds[at]))
        if at < low:
            self.plain(0, class_, 7)

    def value(self, lane: int, code: int, phase: int, row: _Row) -> None:
        at, (low, high) = (code << row.log_phases) - phase - 1 + CENTER, row.limits
        beyond = (low - 1 - at) >> row.log_phases if at < low else (at - high) >> row.log_phases
        inside = low <= at < high
        if not inside:
            at += (beyond if at < low else -beyond) << row.log_phases
        self.steps.append((lane, row.bounds[at], row.end(at) - row.bounds[at]))
        if not inside:
            for _ in range(beyond // LARGEST_DIGIT):
                self.plain(lane, LARGEST_DIGIT, 4)
            self.plain(lane, beyond % LARGEST_DIGIT, 4)

    def finish(self) -> list[int]:
        states, words = [STATE_LEAST] * LANES, []
        for lane, first, frequency in reversed(self.steps):
            x = states[lane]
            if x >= frequency << 20:
                words.append(x & 0xFFFF)
                x >>= 16
            states[lane] = (x // frequency << LOG_TOTAL) + x % frequency + first
        return [half for x in states for half in (x & 0xFFFF, x >> 16)] + words[::-1]


def encode_codes(
    codes: Tensor,
    phases: Tensor,
    counts: Tensor,
    classes: Tensor,
    tables: Sequence[Tensor],
    log_phases: int,
    chunk_runs: int,
    room: int,
) -> tuple[Tensor, Tensor]:
    """Encode integers, run by run.

    Args:
        codes: int32 `[values]`, of the runs in order.
        phases: uint8 `[values]`, below 1 << log_phases.
        counts: int64 `[runs]`: values in each run, 1 to 256.
        classes: uint8 `[runs]`; the values of classes 0 and 1 are not coded.
        tables: bounds, boundary and limits of the rows of values, then of the one row of class differences. Classes may
            go beyond the rows if these are 4 at least.
        log_phases: of the rows of values.
        chunk_runs: runs in a chunk; the last may have fewer.
        room: words of memory for a chunk, ROOM of them to spare.
    Returns:
        int16 `[chunks, room]`, a chunk's words at the end of its row (what lies before is undefined), and each chunk's
        length in words, int64 `[chunks]`: -1 if it leaves less than ROOM, or a code without its low bits is beyond 240.
    """
    rows, map_row = _rows(tables, log_phases)
    values, value_phases, sizes, chosen = codes.tolist(), phases.tolist(), counts.tolist(), classes.tolist()
    chunks, at = -(-len(sizes) // chunk_runs), 0
    words = torch.zeros(chunks, room, dtype=torch.int16)
    lengths = torch.full((chunks,), -1)
    for chunk in range(chunks):
        encoder, before, far = _Encoder(), FIRST_CLASS, False
        for run in range(chunk * chunk_runs, min((chunk + 1) * chunk_runs, len(sizes))):
            encoder.class_(chosen[run], before, map_row)
            before = chosen[run]
            row, low_bits = _row_and_low_bits(before, len(rows))
            for j in range(sizes[run] if before >= SCALED else 0):
                code = values[at + j]
                far |= abs(code >> low_bits) > FARTHEST
                if not far:
                    encoder.value(j % LANES, code >> low_bits, value_phases[at + j] >> low_bits, rows[row])
                    for shift, width in _pieces(low_bits):
                        encoder.plain(j % LANES, code >> shift & ((1 << width) - 1), width)
            at += sizes[run]
        found = encoder.finish()
        if len(found) <= room - ROOM and not far:
            words[chunk, room - len(found) :] = torch.tensor([w - (w >> 15 << 16) for w in found], dtype=torch.int16)
            lengths[chunk] = len(found)
    return words, lengths


class _NotEncoded(Exception):
    """No encoder writes this."""


class _Decoder:
    def __init__(self, words: list[int]) -> None:
        if len(words) < 2 * LANES:
            raise _NotEncoded
        self.states = [words[2 * lane] | words[2 * lane + 1] << 16 for lane in range(LANES)]
        self.words, self.at = words, 2 * LANES

    def slot(self, lane: int) -> int:
        return self.states[lane] & (TOTAL - 1)

    def step(self, lane: int, first: int, frequency: int) -> None:
        x = frequency * (self.states[lane] >> LOG_TOTAL) + self.slot(lane) - first
        if x < STATE_LEAST:
            if self.at == len(self.words):
                raise _NotEncoded
            x = x << 16 | self.words[self.at]
            self.at += 1
        self.states[lane] = x

    def plain(self, lane: int, bits: int) -> int:
        value = self.slot(lane) >> (LOG_TOTAL - bits)
        self.step(lane, value << (LOG_TOTAL - bits), TOTAL >> bits)
        return value

    def class_(self, before: int, row: _Row) -> int:
        at = row.boundary[self.slot(0)]
        self.step(0, row.bounds[at], row.end(at) - row.bounds[at])
        class_ = at + 1 - CENTER + before if row.limits[0] <= at < row.limits[1] else self.plain(0, 7)
        if not 0 <= class_ <= LARGEST_CLASS:
            raise _NotEncoded
        return class_

    def value(self, lane: int, phase: int, row: _Row) -> int:
        last, phases = row.boundary[self.slot(lane)], 1 << row.log_phases
        at = last - (last + phase + 1 - CENTER) % phases
        self.step(lane, row.bounds[at], row.end(at) - row.bounds[at])
        code = (at + phase + 1 - CENTER) >> row.log_phases
        if row.limits[0] <= at < row.limits[1]:
            return code
        beyond = 0
        for _ in range(MOST_DIGITS):
            digit = self.plain(lane, 4)
            beyond += digit
            if digit < LARGEST_DIGIT:
                return code - beyond if at < row.limits[0] else code + beyond
        raise _NotEncoded

    def finish(self) -> None:
        if self.at != len(self.words) or any(x != STATE_LEAST for x in self.states):
            raise _NotEncoded


def decode_codes(
    words: Tensor,
    starts: Tensor,
    phases: Tensor,
    counts: Tensor,
    tables: Sequence[Tensor],
    log_phases: int,
    chunk_runs: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Decode what encode_codes returned.

    Args:
        words: int16 `[words]`, the chunks back to back.
        starts: int64 `[chunks + 1]`: where each chunk begins and the last one ends, ascending, within `words`.
        phases, counts, tables, log_phases, chunk_runs: as in encode_codes.
    Returns:
        codes, int32 `[values]`, 0 in runs of classes 0 and 1; classes, uint8 `[runs]`; and whether each chunk ended as
        an encoder's does, bool `[chunks]`: if not, what was decoded of it is undefined.
    """
    rows, map_row = _rows(tables, log_phases)
    sizes, value_phases, borders = counts.tolist(), phases.tolist(), starts.tolist()
    stream = [w & 0xFFFF for w in words.tolist()]
    codes, classes, good = [0] * len(value_phases), [0] * len(sizes), [False] * (len(borders) - 1)
    firsts = (torch.cumsum(counts, 0) - counts).tolist()
    for chunk in range(len(good)):
        runs = range(chunk * chunk_runs, min((chunk + 1) * chunk_runs, len(sizes)))
        before = FIRST_CLASS
        try:
            decoder = _Decoder(stream[borders[chunk] : borders[chunk + 1]])
            for run in runs:
                before = classes[run] = decoder.class_(before, map_row)
                row, low_bits = _row_and_low_bits(before, len(rows))
                for j in range(sizes[run] if before >= SCALED else 0):
                    phase = value_phases[firsts[run] + j] >> low_bits
                    code = decoder.value(j % LANES, phase, rows[row]) << low_bits
                    low = (decoder.plain(j % LANES, width) << shift for shift, width in _pieces(low_bits))
                    codes[firsts[run] + j] = code + sum(low)
            decoder.finish()
            good[chunk] = True
        except _NotEncoded:
            pass
    return torch.tensor(codes, dtype=torch.int32), torch.tensor(classes, dtype=torch.uint8), torch.tensor(good)
