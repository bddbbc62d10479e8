"""Globally optimal levels: Optimal for stochastic rounding, Lloyd-Max for nearest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import SchemeError
from thinwire.kernels.optimal import solve_mean_rows, solve_optimal_rows
from thinwire.kernels.rows import LARGEST, solve_sorted
from thinwire.kernels.table import LENGTH, START
from thinwire.levels import optimal_condition, optimal_levels, two_means
from thinwire.schemes.base import check_integer
from thinwire.schemes.leveled import LeveledScheme
from thinwire.types import Traits

__all__ = ["LloydMax", "Optimal"]


@dataclass(frozen=True, kw_only=True)
class _AnyLevels(LeveledScheme):
    levels: int = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self.method, "levels", self.levels, 2, 256)

    @property
    def label(self) -> str:
        return f"{self.method}-{self.levels}"

    @property
    def level_count(self) -> int:
        return self.levels


@dataclass(frozen=True, kw_only=True)
class Optimal(_AnyLevels):
    """Levels of globally least expected error under unbiased stochastic rounding.

    Levels are solved on the CPU, also for tensors on other devices.

    Args:
        levels: 2 to 256; higher => more bits, more accurate.
        effort: "exact" (certified within 1e-12 of the two-level error unless rounding forbids), or "fast": near-optimal
            levels in one round (docs/optimal-levels.md measures the excess). A whole tensor is always exact.
        block_size, level_dtype: see LeveledScheme; block_size=None solves one level set for each tensor.
    Raises:
        SchemeError: an impossible level count or effort, a block size below 2.
    Error: sum (hi - x)(x - lo); no unbiased rounding to as many levels of the block has less.
    Bits per value at block 2048, float32 levels: 1.65 (3 levels), 2.06 (4), 3.34 (9).
    References: docs/optimal-levels.md. With 3 levels it is ORQ.
    """

    effort: Literal["exact", "fast"] = "exact"

    method: ClassVar[str] = "optimal"
    rounding: ClassVar[Literal["stochastic", "nearest"]] = "stochastic"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.effort not in ("exact", "fast"):
            raise SchemeError(f"optimal: effort must be 'exact' or 'fast', got {self.effort!r}")
        if self.effort == "fast" and self.block_size is None:
            raise SchemeError(
                "optimal: effort='fast' has no effect with block_size=None: a whole tensor is solved exactly"
            )

    @property
    def traits(self) -> Traits:
        return Traits(unbiased=True)

    def solve(self, values: Tensor, table: Tensor) -> Tensor:
        if self.block_size is None:
            return _solve_whole(values, table, self.levels)
        if self.levels == 3:
            return optimal_condition(values, table, 3)  # one free level: the condition is the global optimum
        exact = self.effort == "exact"
        return _solve_rows(values, table, self.levels, lambda rows, n: solve_optimal_rows(rows, n, self.levels, exact))


@dataclass(frozen=True, kw_only=True)
class LloydMax(_AnyLevels):
    """Levels of globally least squared error under nearest rounding: exact 1-D k-means by dynamic programming; biased.

    Levels are solved on the CPU, also for tensors on other devices. Time grows with levels; with 2 it is BinGradB.

    Args:
        levels: 2 to 256; higher => more bits, more accurate.
        block_size, level_dtype: see LeveledScheme.
    Raises:
        SchemeError: an impossible level count, a block size below 2.
    Error: the optimum of 1-D k-means over the block.
    Bits per value at block 2048, float32 levels: 1.03 (2 levels), 2.06 (4), 3.34 (9).
    References: Lloyd 1982, Max 1960 (the fixed point); Wu 1991 (the exact programme, by monotone argmax).
    """

    method: ClassVar[str] = "lloydmax"
    rounding: ClassVar[Literal["stochastic", "nearest"]] = "nearest"

    @property
    def traits(self) -> Traits:
        return Traits(unbiased=False)

    def solve(self, values: Tensor, table: Tensor) -> Tensor:
        if self.levels == 2:
            return two_means(values, table)
        return _solve_rows(values, table, self.levels, lambda rows, n: solve_mean_rows(rows, n, self.levels))


def _solve_rows(values: Tensor, table: Tensor, levels: int, solve: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """Levels of every block from solve(sorted rows, lengths), on the CPU, to the device of values."""

    def chunk(rows: np.ndarray, lengths: np.ndarray, out: np.ndarray) -> None:
        out[:] = solve(torch.from_numpy(rows), torch.from_numpy(lengths)).numpy()

    return solve_sorted(values.cpu(), table.cpu(), levels, chunk).to(values.device)


def _solve_whole(values: Tensor, table: Tensor, levels: int) -> Tensor:
    """The optimal levels of each block as one array, NaN where a value is not finite."""
    solved = values.new_full((len(table), levels), float("nan"))
    for b, block in enumerate(table.tolist()):
        x = values[block[START] : block[START] + block[LENGTH]] + 0.0
        if bool((x.abs() < LARGEST).all()):
            solved[b] = optimal_levels(x, levels).levels
    return solved
