"""The globally optimal levels of one tensor, with a certificate."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import MessageError, SchemeError
from thinwire.kernels.optimal import Solution, solve_sorted, solve_unsorted
from thinwire.types import DTYPES

__all__ = ["OptimalLevels", "optimal_levels"]

_SORT_BELOW = 1 << 17  # values; the histogram's table costs more than the sort saves below
_SORT_ABOVE = 16  # levels; too many values are near one above
_MOST_VALUES = (1 << 31) - 1
_MOST_LEVELS = 1024  # memory grows with their square


@dataclass(frozen=True, kw_only=True)
class OptimalLevels:
    """Levels of least expected error under unbiased stochastic rounding, and how certain that is.

    Args:
        levels: `[s]` of x's dtype and device, ascending, values of x (float64 ones as float32), the ends min and max.
        objective: f = sum (hi - x)(x - lo) of these levels, float32 values, float64 arithmetic.
        lower_bound: no s levels have a lower f. Allowance for rounding: already subtracted.
        two_level: f(2), the objective with levels at min and max alone, the unit of all tolerances.
        tolerance: what was asked for.
        curve: upper and lower bound of the optimum for 2, 3, ..., s levels, each a pair; the last one is this
            solution, the others come from the first round of the same run.
    """

    levels: Tensor
    objective: float
    lower_bound: float
    two_level: float
    tolerance: float
    curve: tuple[tuple[float, float], ...]

    @property
    def gap(self) -> float:
        """(objective - lower_bound) / f(2); 0 where f(2) is."""
        return (self.objective - self.lower_bound) / self.two_level if self.two_level else 0.0

    @property
    def closed(self) -> bool:
        """Whether the levels are certainly optimal within the tolerance."""
        return self.gap <= self.tolerance


@torch.no_grad()
def optimal_levels(x: Tensor, levels: int, *, tolerance: float = 1e-12) -> OptimalLevels:
    """Solve the levels of least sum (hi - x)(x - lo) for a whole tensor, globally, on the CPU.

    Args:
        x: any shape, float32, bfloat16, float16 or float64 (rounded to float32), 1 to 2^31 - 1 values, all finite.
        levels: s, 2 to 1024.
        tolerance: stop when objective and bound are this near, relative to f(2), the objective of two levels.
    Returns:
        OptimalLevels. `closed` says whether the bound came as near as asked; where double precision cannot close it
        (an outlier of 1e6 standard deviations), the true gap is there to read. Fewer distinct values than levels:
        each is a level, and some repeat.
    Raises:
        MessageError: no values, a non-finite value, another dtype. SchemeError: an impossible count or tolerance.
    Error: objective - optimum <= gap f(2).
    References: docs/optimal-levels.md.
    """
    if not isinstance(levels, int) or isinstance(levels, bool) or not 2 <= levels <= _MOST_LEVELS:
        raise SchemeError(f"optimal_levels: levels must be an integer in 2..{_MOST_LEVELS}, got {levels!r}")
    if not 0 < tolerance < 1:
        raise SchemeError(f"optimal_levels: tolerance must be in (0, 1), got {tolerance!r}")
    values = _values(x)
    least, greatest = values.min(), values.max()
    if least == greatest:
        same = torch.full((levels,), float(least), dtype=x.dtype, device=x.device)
        flat = ((0.0, 0.0),) * (levels - 1)
        return OptimalLevels(
            levels=same, objective=0.0, lower_bound=0.0, two_level=0.0, tolerance=tolerance, curve=flat
        )
    solution = _solve(values, levels, tolerance)
    return OptimalLevels(
        levels=torch.from_numpy(solution.levels).to(x.dtype).to(x.device),
        objective=solution.objective,
        lower_bound=solution.lower_bound,
        two_level=solution.two_level,
        tolerance=tolerance,
        curve=tuple(zip(*solution.curve.tolist())),
    )


def _values(x: Tensor) -> np.ndarray:
    """The tensor's values, float32 `[values]`, checked."""
    if not isinstance(x, Tensor) or x.dtype not in DTYPES or x.layout != torch.strided:
        raise MessageError(f"optimal_levels: expected a dense floating-point tensor, got {getattr(x, 'dtype', x)}")
    if not 0 < x.numel() <= _MOST_VALUES:
        raise MessageError(f"optimal_levels: expected 1 to 2^31 - 1 values, got {x.numel()}")
    values = x.detach().reshape(-1).to("cpu", torch.float32).numpy()
    if not np.isfinite(values.min()) or not np.isfinite(values.max()):
        raise MessageError("optimal_levels: x has a value that is not finite (in float32)")
    return values


def _solve(values: np.ndarray, levels: int, tolerance: float) -> Solution:
    if len(values) >= _SORT_BELOW and levels <= _SORT_ABOVE:
        solution = solve_unsorted(values, levels, tolerance)
        if solution is not None:
            return solution
    return solve_sorted(np.sort(values), levels, tolerance)
