"""Messages for the entropy coder: rows of tables from mild to absurd, and the coder's format read by hand."""

from __future__ import annotations

import numpy as np
import torch

from thinwire.kernels.entropy import Tables, book, make_tables

MIDDLE = 37 * 32


def tables(rows: Tables, maps: Tables, map_: int = 0) -> list[torch.Tensor]:
    """What the coder takes."""
    return [rows.bounds, rows.boundary, rows.limits, maps.bounds[map_], maps.boundary[map_], maps.limits[map_]]


def book_tables(shape: int = 0, map_: int = 1) -> list[torch.Tensor]:
    scales = book().scales
    rows = slice(44 * shape, 44 * (shape + 1))
    return tables(Tables(scales.bounds[rows], scales.boundary[rows], scales.limits[rows]), book().maps, map_)


def small_tables(*halves: list[int], log_phases: int = 0) -> list[torch.Tensor]:
    """Rows, without phases unless asked for: the cumulative counts below the middle."""
    return tables(make_tables([np.array(half) for half in halves], log_phases), book().maps)


def ideal_bits(code: int, phase: int, row: int, low_bits: int, found: list[torch.Tensor], log_phases: int) -> float:
    """The negative logarithm of what the tables give a code, and the plain bits that follow it."""
    stride, (low, high) = 1 << log_phases, found[2][row].tolist()
    at = (code >> low_bits) * stride - (phase >> low_bits) - 1 + MIDDLE
    beyond = max(0, (low - 1 - at) // stride if at < low else (at - high) // stride)
    escape = 0 if low <= at < high else 4 * (1 + beyond // 15)
    at += beyond * stride * (1 if at < low else -1)
    bounds = found[0][row].to(torch.int64)
    return 12 - float(torch.log2((bounds[at + stride] - bounds[at]).double())) + escape + low_bits


def by_hand(words: list[int], counts: list[int], phases: list[int], found: list[torch.Tensor], log_phases: int):
    """One chunk, read as FORMAT.md says: its classes and codes, or None where it says that there is no such chunk."""
    states = [words[2 * lane] + 65536 * words[2 * lane + 1] for lane in range(8)]
    stream, rows = iter(words[16:]), len(found[0])

    def step(lane, first, end):
        states[lane] = (end - first) * (states[lane] // 4096) + states[lane] % 4096 - first
        if states[lane] < 65536:
            states[lane] = 65536 * states[lane] + next(stream)

    def plain(lane, bits):
        value = states[lane] % 4096 * 2**bits // 4096
        step(lane, value * 4096 // 2**bits, (value + 1) * 4096 // 2**bits)
        return value

    def coded(lane, phase, bounds, limits, log_phases):
        """A code and how far it escapes: (code, 0), or (code, -1 or 1)."""
        slot = states[lane] % 4096
        code = -37
        while bounds[((code + 1) << log_phases) - phase - 1 + MIDDLE] <= slot:
            code += 1
        at = (code << log_phases) - phase - 1 + MIDDLE
        step(lane, bounds[at], bounds[at + (1 << log_phases)])
        return code, (at >= limits[1]) - (at < limits[0])

    bounds, limits = found[0].tolist(), found[2].tolist()
    classes, codes, before, at = [], [], 24, 0
    for count in counts:
        difference, escaped = coded(0, 0, found[3].tolist(), found[5].tolist(), 0)
        before = plain(0, 7) if escaped else before + difference
        classes.append(before)
        low_bits = max(0, (before - 2 - rows) // 4 + 1)
        row = before - 2 - 4 * low_bits
        for j in range(count if before >= 2 else 0):
            code, escaped = coded(j % 8, phases[at + j] >> low_bits, bounds[row], limits[row], log_phases)
            while escaped:
                digit = plain(j % 8, 4)
                code += escaped * digit
                escaped *= digit == 15
            code <<= low_bits
            for shift in range(0, low_bits, 8):
                code += plain(j % 8, min(8, low_bits - shift)) << shift
            codes.append(code)
        at += count
    return classes, codes, states, list(stream)
