"""Level solvers: one operator for each rule of thinwire.levels."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from thinwire.kernels.dispatch import operator
from thinwire.kernels.solve import cpu_sorted, cpu_unsorted, reference

__all__ = [
    "solve_clipped_pair",
    "solve_full_range",
    "solve_largest_magnitude",
    "solve_mean_magnitude",
    "solve_orq",
    "solve_quantiles",
    "solve_root_energy",
    "solve_two_means",
    "solve_within_deviations",
]


def _columns(count: int) -> Callable[..., Tensor]:
    """The fake kernel of a solver that returns `count` numbers a block."""

    def fake(values: Tensor, table: Tensor, *numbers: Any) -> Tensor:
        return values.new_empty((table.shape[0], count))

    return fake


def _levels(values: Tensor, table: Tensor, levels: int) -> Tensor:
    return values.new_empty((table.shape[0], levels))


solve_orq = operator(reference.solve_orq, cpu_sorted.solve_orq, _levels)
solve_quantiles = operator(reference.solve_quantiles, cpu_sorted.solve_quantiles, _levels)
solve_two_means = operator(reference.solve_two_means, cpu_sorted.solve_two_means, _columns(2))
solve_clipped_pair = operator(reference.solve_clipped_pair, cpu_sorted.solve_clipped_pair, _columns(1))
solve_full_range = operator(reference.solve_full_range, cpu_unsorted.solve_full_range, _columns(2))
solve_largest_magnitude = operator(reference.solve_largest_magnitude, cpu_unsorted.solve_largest_magnitude, _columns(1))
solve_mean_magnitude = operator(reference.solve_mean_magnitude, cpu_unsorted.solve_mean_magnitude, _columns(1))
solve_root_energy = operator(reference.solve_root_energy, cpu_unsorted.solve_root_energy, _columns(1))
solve_within_deviations = operator(reference.solve_within_deviations, cpu_unsorted.solve_within_deviations, _columns(1))
