"""Optimal levels of a float32 array, by sorting it or from an exact histogram of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from thinwire.kernels.optimal.atoms import (
    CELLS,
    cells_of,
    gather_marked,
    height_error,
    histogram,
    merge_atoms,
    objective_sorted,
    two_level_cost,
    value_atoms,
)
from thinwire.kernels.optimal.chain import solve_chain

__all__ = ["Solution", "solve_sorted", "solve_unsorted"]

_LARGEST_TABLE = 1 << 24  # values that one table counts exactly
_LEAST_SHARE = 1e-8  # of f(2): an objective from f(2) - P is good to 1e-6 of itself from here on
_ROUNDS = 64
_GATHERED = 16  # at most one value in so many is sorted after a histogram: 24 bytes each

_Atoms = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


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
        return (self.objective - self.lower_bound) / self.two_level if self.two_level else 0.0


def _centre(least: np.float32, greatest: np.float32) -> float:
    """What is subtracted before sums: zero, or the end nearest to it."""
    return float(min(max(np.float32(0), least), greatest))


def _solution(atoms: _Atoms, two_level: float, centre: float, s: int, tolerance: float) -> tuple[Solution, np.ndarray]:
    """Solve over atoms (N, S, lo, hi); also the ranks that confine each level. The objective is f(2) - P."""
    N, S, lo, hi = atoms
    wanted = max(64, 4 * s)
    curve = np.zeros((2, s + 1))
    close = 0.5 * tolerance * two_level
    v, found, bound, ranks = solve_chain(N, S, lo, hi, centre, s, close, wanted, _ROUNDS, curve)
    levels = np.where(v < len(lo), lo[np.minimum(v, len(lo) - 1)], hi[-1])
    span = float(hi[-1]) - float(lo[0])
    rounding = 2 * span * height_error(N, S, lo, hi, centre) + 2.0**-45 * two_level if s > 2 else 0.0
    curves = np.maximum(two_level - curve[:, 2:], 0.0)
    curves[1] = np.maximum(curves[1] - rounding, 0.0)
    solution = Solution(
        levels=levels,
        two_level=two_level,
        objective=max(two_level - found, 0.0),
        lower_bound=max(two_level - bound - rounding, 0.0),
        curve=curves,
    )
    return solution, ranks


def solve_sorted(x: np.ndarray, s: int, tolerance: float) -> Solution:
    """Solve from sorted values; 12 bytes a value of extra memory.

    Sums from the left lose what lies beyond an outlier there; so data that does not close is solved from the right as
    well, with 4 more for the mirrored copy.

    Args:
        x: float32 `[values]`, ascending, finite, at most 2^31 - 1, with x[-1] > x[0].
        s: levels, at least 2.
        tolerance: stop when the bound is this near, relative to f(2).
    """
    solution = _solve_sorted(x, s, tolerance)
    if solution.gap <= tolerance:
        return solution
    mirrored = _solve_sorted(np.ascontiguousarray(-x[::-1]), s, tolerance)
    if mirrored.gap >= solution.gap:
        return solution
    return replace(mirrored, levels=np.ascontiguousarray(-mirrored.levels[::-1]))


def _solve_sorted(x: np.ndarray, s: int, tolerance: float) -> Solution:
    """Sum from the left; the objective by its definition: f(2) - P cancels where f(s) is far below f(2)."""
    centre = _centre(x[0], x[-1])
    N, S, two_level = value_atoms(x, centre)
    solution, _ = _solution((N, S, x, x), two_level, centre, s, tolerance)
    objective = objective_sorted(x, solution.levels)
    lower_bound = min(solution.lower_bound, objective)
    curve = solution.curve.copy()
    curve[:, -1] = objective, lower_bound
    return replace(solution, objective=objective, lower_bound=lower_bound, curve=curve)


def solve_unsorted(x: np.ndarray, s: int, tolerance: float) -> Solution | None:
    """Solve from values in any order, sorting only those near a level.

    Extra memory: 2 MiB for the table and 24 bytes for each value near a level, so at most 1.5 bytes a value; then what
    does not grow with the values.

    Args:
        x, s, tolerance: as solve_sorted, in any order; at most 2^24 values.
    Returns:
        None where more than a sixteenth of the values would have to be sorted, the bound stays away, or f(s) is so far
        below f(2) that their difference loses it: sort then.
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
    room = np.empty(len(x) // _GATHERED + 1, np.float32)
    count = gather_marked(bits, x, marked, room)
    if count >= len(room):
        return None
    near = room[:count]
    near.sort()
    atoms = merge_atoms(N, S, lo, hi, keys, marked, near, centre)
    solution, _ = _solution(atoms, two_level, centre, s, tolerance)
    accurate = solution.objective >= _LEAST_SHARE * two_level or two_level == 0.0
    solution.curve[:, -1] = solution.objective, solution.lower_bound
    return solution if solution.gap <= tolerance and accurate else None
