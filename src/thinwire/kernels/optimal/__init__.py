"""Globally optimal levels of one array: the certified solver, and its two ways into the data."""

from thinwire.kernels.optimal.rows import solve_mean_rows, solve_optimal_rows
from thinwire.kernels.optimal.solve import Solution, solve_sorted, solve_unsorted

__all__ = ["Solution", "solve_mean_rows", "solve_optimal_rows", "solve_sorted", "solve_unsorted"]
