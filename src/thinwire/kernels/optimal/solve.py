"""Optimal levels of a float32 array, by sorting it or from an exact histogram of it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from thinwire.kernels.optimal.atoms import (
    CELLS,
    cells_of,
    gather_marked,
    histogram,
    merge_atoms,
    two_level_cost,
    value_atoms,
)
from thinwire.kernels.optimal.chain import solve_chain

__all__ = ["Solution", "solve_sorted", "solve_unsorted"]

_LARGEST_TABLE = 1 << 24  # values that one table counts exactly
_UNIT = 2.0**-53
_ROUNDS = 64


@dataclass(frozen=True, kw_only=True)
class Solution:
    """Levels and what is known of them, in the units of f, the sum of (hi - x)(x - lo).

    Args:
        levels: float32 `[s]`, ascending, values of the array.
        two_level: f(2), with levels at min and max alone.
        objective: f of the levels.
        lower_bound: no s levels have a lower f; what rounding can have cost is subtracted.
        curve: objective and lower bound for 2..s levels, float64 `[2, s - 1]`, from the first and coarsest round.
    """

    levels: np.ndarray
    two_level: float
    objective: float
    lower_bound: float
    curve: np.ndarray

    @property
    def gap(self) -> float:
        """How far objective and bound are apart, relative to f(2)."""
        return (self.objective - self.lower_bound) / self.two_level


def _centre(least: np.float32, greatest: np.float32) -> float:
    """What is subtracted before sums: zero, or the end nearest to it."""
    return float(min(max(np.float32(0), least), greatest))


def _solution(atoms: tuple, two_level: float, centre: float, s: int, tolerance: float) -> tuple[Solution, np.ndarray]:
    """Solve over atoms (N, S, lo, hi); also the ranks that confine each level."""
    N, S, lo, hi = atoms
    wanted = max(64, 8 * s)
    v, found, bound, ranks, curve = solve_chain(N, S, lo, hi, centre, s, 0.5 * tolerance * two_level, wanted, _ROUNDS)
    levels = np.where(v < len(lo), lo[np.minimum(v, len(lo) - 1)], hi[-1])
    rounding = 2 * _rounding(levels.astype(np.float64) - centre, N[v], S[v])
    curves = two_level - curve[:, 2:]
    curves[:, -1] = two_level - found, two_level - bound
    solution = Solution(
        levels=levels,
        two_level=two_level,
        objective=max(two_level - found, 0.0),
        lower_bound=max(two_level - bound - rounding, 0.0),
        curve=np.maximum(curves, 0.0),
    )
    return solution, ranks


def _rounding(p: np.ndarray, N: np.ndarray, S: np.ndarray) -> float:
    """What rounding can change in P: each height is a difference of terms this large; the ends' are exactly zero."""
    slope = (N[-1] * p[-1] - S[-1]) / (p[-1] - p[0])
    height = 16 * _UNIT * (np.abs(slope * (p - p[0])) + np.abs(N * p) + np.abs(S))
    height[[0, -1]] = 0.0
    return float((np.diff(p) * (height[1:] + height[:-1])).sum())


def solve_sorted(x: np.ndarray, s: int, tolerance: float) -> Solution:
    """Solve from sorted values; 16 bytes a value of extra memory.

    Args:
        x: float32 `[values]`, ascending, finite, at most 2^31 - 1, with x[-1] > x[0].
        s: levels, at least 2.
        tolerance: stop when the bound is this near, relative to f(2).
    """
    centre = _centre(x[0], x[-1])
    N, S, two_level = value_atoms(x, centre)
    return _solution((N, S, x, x), two_level, centre, s, tolerance)[0]


def solve_unsorted(x: np.ndarray, s: int, tolerance: float) -> Solution | None:
    """Solve from values in any order, sorting only those near a level; 2 MiB and a byte a value of extra memory.

    Args:
        x, s, tolerance: as solve_sorted, in any order; at most 2^24 values.
    Returns:
        None where more than a quarter of the values would have to be sorted, or the bound stays away: sort then.
    """
    if len(x) > _LARGEST_TABLE:
        return None
    bits = x.view(np.uint32)
    table = np.zeros(CELLS, np.int64)
    histogram(bits, table)
    least, greatest = x.min(), x.max()
    centre = _centre(least, greatest)
    N, S, lo, hi, keys = cells_of(table, least, greatest, centre)
    two_level = two_level_cost(x, least, greatest)
    _, ranks = _solution((N, S, lo, hi), two_level, centre, s, tolerance)
    marked = np.zeros(CELLS, np.bool_)
    for first, stop in ranks[1:-1]:
        marked[keys[max(first, 0) : stop]] = True
    marked[keys[lo == hi]] = False
    room = np.empty(len(x) // 4 + 1, np.float32)
    count = gather_marked(bits, x, marked, room)
    if count >= len(room):
        return None
    near = room[:count]
    near.sort()
    atoms = merge_atoms(N, S, lo, hi, keys, marked, near, centre)
    solution, _ = _solution(atoms, two_level, centre, s, tolerance)
    return solution if solution.gap <= tolerance else None
