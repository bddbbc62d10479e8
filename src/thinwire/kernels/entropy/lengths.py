"""What codes cost, from a book's integers: for choosing a step; nothing here is needed to decode."""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.entropy.book import CENTER, CLASSES, LENGTH_UNIT, LOG_PHASES, MAPS, QUIETEST, TOTAL, book
from thinwire.kernels.entropy.reference import FIRST_CLASS, LARGEST_CLASS

__all__ = ["code_lengths", "map_bits", "mean_lengths"]

_PHASES = 1 << LOG_PHASES
_CELLS = 2048  # on either side of zero
_AROUND = 2 * CENTER + _PHASES  # boundaries on either side of it


def _code_lengths(bounds: np.ndarray, low: int, high: int) -> np.ndarray:
    """Bits of the code that begins at each boundary, from _AROUND below the middle on, escapes included."""
    wide = np.full(2 * _AROUND + _PHASES, TOTAL)
    wide[:_AROUND] = 0
    wide[_AROUND - CENTER : _AROUND + CENTER] = bounds
    at = np.arange(2 * _AROUND)
    edge = at - _AROUND + CENTER
    beyond = np.maximum(np.where(edge < low, low - 1 - edge, edge - high) // _PHASES, 0)
    inside = (edge >= low) & (edge < high)
    first = at + np.where(edge < low, beyond, -beyond) * _PHASES
    bits = np.log2(TOTAL / (wide[first + _PHASES] - wide[first]))
    return np.where(inside, bits, bits + 4 * (1 + beyond // 15))


def code_lengths(shape: int, phase: int, most: int) -> np.ndarray:
    """Bits of the codes 0 .. most of one phase under each row of a shape: float64 `[CLASSES, most + 1]`."""
    scales, found = book().scales, []
    first = _AROUND - phase - 1
    for row in range(shape * CLASSES, (shape + 1) * CLASSES):
        lengths = _code_lengths(scales.bounds[row].numpy(), *scales.limits[row].tolist())
        found.append(lengths[first : first + _PHASES * most + 1 : _PHASES])
    return np.stack(found)


def _cells(row: int) -> int:
    """Cells a step in a row's lengths: 32 and, for classes below one step, as many more as their values are smaller."""
    return _PHASES << min(max(-(row // 4 + QUIETEST), 0), 5)


@functools.cache
def mean_lengths(shape: int) -> tuple[Tensor, Tensor]:
    """What a value in each cell costs on average over its dither.

    A value at the fraction t between two multiples of 1/32 step begins, over the 32 phases, at the 32 boundaries below
    the lower one with chance 1 - t, at those below the upper one with chance t.

    Returns:
        1/1024 bits, int16 `[CLASSES, 4096]`, cells -2048 .. 2047; and cells a step, float64 `[CLASSES]`.
    """
    scales, rows, per_step = book().scales, [], [_cells(row) for row in range(CLASSES)]
    for row, cells in enumerate(per_step):
        low, high = scales.limits[shape * CLASSES + row].tolist()
        lengths = _code_lengths(scales.bounds[shape * CLASSES + row].numpy(), low, high)
        sums = np.concatenate([[0.0], np.cumsum(lengths)])
        window = (sums[_PHASES:] - sums[:-_PHASES]) / _PHASES  # of the 32 boundaries from each on
        places = _AROUND - _PHASES + (np.arange(-_CELLS, _CELLS) + 0.5) * _PHASES / cells
        mean = np.interp(places, np.arange(len(window)), window)
        rows.append(np.minimum(np.rint(mean * LENGTH_UNIT), 32767).astype(np.int16))
    return torch.from_numpy(np.stack(rows)), torch.tensor(per_step, dtype=torch.float64)


@functools.cache
def _difference_bits() -> np.ndarray:
    """Bits of a class that lies -LARGEST_CLASS .. LARGEST_CLASS above the one before, under each map."""
    maps, found = book().maps, []
    for row in range(len(MAPS)):
        low, high = maps.limits[row].tolist()
        bounds = maps.bounds[row].to(torch.int64).numpy()
        edge = np.arange(-LARGEST_CLASS, LARGEST_CLASS + 1) - 1 + CENTER
        at = np.where((edge >= low) & (edge < high), edge, low - 1)
        found.append(np.log2(TOTAL / (bounds[at + 1] - bounds[at])) + 7 * (at == low - 1))
    return np.stack(found)


def map_bits(classes: np.ndarray, chunk_runs: int) -> np.ndarray:
    """Bits of all classes, uint8 `[runs]`, under each of the maps: float64 `[maps]`."""
    before = np.concatenate([[FIRST_CLASS], classes[:-1].astype(np.int64)])
    before[::chunk_runs] = FIRST_CLASS
    differences = np.bincount(classes - before + LARGEST_CLASS, minlength=2 * LARGEST_CLASS + 1)
    return _difference_bits() @ differences
