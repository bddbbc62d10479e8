"""Write the book of tables, book.bin: `python -m thinwire.kernels.entropy.make_book`.

Only this script computes with real numbers. What it writes are integers that every encoder and decoder reads, so that a
last bit that differs between two machines can never part them.

The law of a run of values with root mean square rho steps is a scale mixture of Gaussians: the logarithm of the scale
is normal with deviation tau (a shape), and uniform over the class's quarter octave besides. With u the dither, a value
y becomes floor(y + u); 32 phases cut [0, 1), and for u in phase p the boundary below code q lies within 1/32 of a step
above y = q - (p + 1) / 32. So one cumulative distribution with 32 cells a step, averaged over each cell, serves all
phases: a phase is an offset into it.

Rows are cut at T steps on either side, beyond which codes escape, and no code within has a frequency of 0: cells are
lifted where the law gives less than 1/4096 a step. T is what costs least under the law.
"""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path

import numpy as np

from thinwire.kernels.entropy.book import CLASSES, FILE, LENGTH_UNIT, LOG_PHASES, MAPS, QUIETEST, SHAPES, TOTAL

PHASES = 1 << LOG_PHASES
NODES = 15  # of the Gauss-Hermite sum over scales
WIDTHS = 5  # points within a class
ESCAPE_BITS = 4.5  # what a code beyond the table costs besides, about


def _integral(z: np.ndarray) -> np.ndarray:
    """The integral of the standard normal distribution function up to z."""
    cumulative = 0.5 * (1 + np.vectorize(math.erf)(z / math.sqrt(2)))
    return z * cumulative + np.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def law(scale: float, tau: float, cells: int) -> np.ndarray:
    """The distribution function averaged over cells -cells .. -1 of 1/32 step; 1 minus it, reversed, is the rest."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    spread = np.exp(tau * nodes - tau * tau)  # its mean square is 1
    places = np.arange(-cells, 1) / PHASES
    total = np.zeros(cells + 1)
    for octaves in (np.arange(WIDTHS) - WIDTHS // 2) / WIDTHS / 4:
        for factor, weight in zip(spread, weights / weights.sum()):
            width = scale * factor * 2.0**octaves
            total += weight / WIDTHS * width * _integral(places / width)
    return np.diff(total) * PHASES


def lifted(cumulative: np.ndarray, cells: int, phases: int) -> np.ndarray:
    """Integers of a distribution function at its last `cells` places below the middle, ascending from at least 1.

    Over any `phases` neighbours they rise by at least 1, so that no code has a frequency of 0.
    """
    wanted = cumulative[-cells:] * TOTAL
    mass, middle = np.diff(wanted, prepend=0.0), TOTAL / 2 - wanted[-1]
    least = np.full(cells, 1 / phases + 1e-9)
    least[0] = 1 + 1e-9
    low, high = 0.0, 1.0
    for _ in range(60):
        share = (low + high) / 2
        if np.maximum(share * mass, least).sum() + share * middle > TOTAL / 2:
            high = share
        else:
            low = share
    return np.floor(np.cumsum(np.maximum(low * mass, least)) + 0.5).astype(np.int64)


def _bits(cumulative: np.ndarray, row: np.ndarray, phases: int) -> float:
    """Expected bits a value of a row, under the law that it was made from."""
    full = np.concatenate([cumulative, 1 - cumulative[::-1]])
    beyond = np.zeros(len(cumulative) - len(row), dtype=np.int64)
    below = np.concatenate([beyond, row])
    bounds = np.concatenate([below, TOTAL - below[::-1]])
    chance, frequency = full[phases:] - full[:-phases], bounds[phases:] - bounds[:-phases]
    escapes = (bounds[:-phases] == 0) | (bounds[phases:] == TOTAL)
    cost = np.where(frequency > 0, np.log2(TOTAL / np.maximum(frequency, 1)), np.log2(TOTAL)) + ESCAPE_BITS * escapes
    return float((chance * cost).sum() / phases)


def scale_row(number: int, tau: float) -> tuple[np.ndarray, float]:
    """The row of a scale class and shape, and its expected bits."""
    scale = 2.0 ** (number / 4 + QUIETEST)
    cells = int(PHASES * (3 + scale * (9 if tau < 0.4 else 16)))
    cumulative = law(scale, tau, cells)
    tries = range(PHASES + 1, cells - PHASES, PHASES // 2)
    rows = [lifted(cumulative, n, PHASES) for n in tries if n <= 36 * PHASES]
    costs = [_bits(cumulative, row, PHASES) for row in rows]
    return rows[int(np.argmin(costs))], min(costs)


def map_row(share: float) -> np.ndarray:
    """The row of a two-sided geometric law of class differences."""
    steps = np.arange(-12, 0)
    return lifted(share ** -(steps + 1.0) * share / (1 + share), 12, 1)


def _packed(row: np.ndarray, bits: float) -> bytes:
    return struct.pack("<HH", len(row), round(bits * LENGTH_UNIT)) + np.diff(row, prepend=0).astype("<u2").tobytes()


def main() -> None:
    out = bytearray()
    for tau in SHAPES:
        for number in range(CLASSES):
            row, bits = scale_row(number, tau)
            out += _packed(row, bits)
    for share in MAPS:
        out += _packed(map_row(share), 0.0)
    path = Path(__file__).with_name(FILE)
    path.write_bytes(zlib.compress(bytes(out), 9))
    print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
