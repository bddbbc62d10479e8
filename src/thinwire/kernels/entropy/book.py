"""The book of tables: integers that ship with the package, written by make_book and never computed at run time."""

from __future__ import annotations

import functools
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

__all__ = ["CENTER", "CLASSES", "LOG_PHASES", "Tables", "book", "make_tables"]

FILE = "book.bin"
LOG_TOTAL = 12
TOTAL = 1 << LOG_TOTAL  # a row's frequencies
LOG_PHASES = 5
CLASSES = 44  # quarter octaves of a run's root mean square, in steps
QUIETEST = -8  # log2 of class 0
SHAPES = (0.0, 0.2, 0.35, 0.5)  # spread of scales within a run, in nepers
MAPS = (0.02, 0.2, 0.5, 0.75)  # chance that the next run's class lies one further away
LENGTH_UNIT = 1024  # of expected code lengths, to the bit
CENTER = 37 << LOG_PHASES  # where a row's middle lies
WIDTH = 2 * CENTER


@dataclass(frozen=True)
class Tables:
    """Rows of cumulative frequencies, at 1 or 32 boundaries a step, and what decoders derive from them.

    A code q of phase p begins at boundary a = (q << log_phases) - p - 1 + CENTER and ends 1 << log_phases later: its
    slots are bounds[a] .. bounds[end] - 1 of 4096. Codes with a < low or a >= high escape.

    Args:
        bounds: int16 `[rows, 2 CENTER]`, ascending from 0 to 4096.
        boundary: int16 `[rows, 4096]`: the last boundary at or below each slot.
        limits: int32 `[rows, 2]`: low and high.
    """

    bounds: Tensor
    boundary: Tensor
    limits: Tensor


def make_tables(halves: list[np.ndarray], log_phases: int) -> Tables:
    """Tables whose rows have these integers at the boundaries below the middle, and mirror them above it."""
    bounds = np.zeros((len(halves), WIDTH), dtype=np.int16)
    boundary = np.zeros((len(halves), TOTAL), dtype=np.int16)
    limits = np.zeros((len(halves), 2), dtype=np.int32)
    for row, half in enumerate(halves):
        low, high = CENTER - len(half), CENTER + len(half)
        bounds[row, low:CENTER] = half
        bounds[row, CENTER:high] = TOTAL - half[::-1]
        bounds[row, high:] = TOTAL
        inner = bounds[row, low:high]
        boundary[row] = low - 1 + np.searchsorted(inner, np.arange(TOTAL), side="right")
        limits[row] = low, high - (1 << log_phases)
    return Tables(torch.from_numpy(bounds), torch.from_numpy(boundary), torch.from_numpy(limits))


@dataclass(frozen=True)
class Book:
    """The rows of all scale classes, shape by shape, the rows of class differences, and what values cost.

    Args:
        scales: rows shape * CLASSES + class.
        maps: rows of class differences, one boundary a step.
        expected: float64 `[shapes, CLASSES]`: bits a value under the law that the row was made from.
    """

    scales: Tables
    maps: Tables
    expected: np.ndarray


@functools.cache
def book() -> Book:
    """Read the book, once."""
    octets = zlib.decompress(Path(__file__).with_name(FILE).read_bytes())
    halves, costs, at = [], [], 0
    while at < len(octets):
        count, cost = struct.unpack_from("<HH", octets, at)
        halves.append(np.cumsum(np.frombuffer(octets, "<u2", count, at + 4)))
        costs.append(cost / LENGTH_UNIT)
        at += 4 + 2 * count
    rows = len(SHAPES) * CLASSES
    return Book(
        scales=make_tables(halves[:rows], LOG_PHASES),
        maps=make_tables(halves[rows:], 0),
        expected=np.array(costs[:rows]).reshape(len(SHAPES), CLASSES),
    )
