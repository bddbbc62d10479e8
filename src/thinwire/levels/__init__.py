"""Choosing the representable values of a block: one file per idea.

Every solver takes values, float32 `[values]`, and a block table, int64 `[blocks, 4]`, and returns float32
`[blocks, columns]`: the levels of each block, or the numbers that say them; NaN for a block with a non-finite value or
a magnitude of 2^127 and more. They know no bytes and no ranks.
"""

from thinwire.levels.clipped_pair import clipped_pair
from thinwire.levels.evenly_spaced import (
    evenly_spaced,
    full_range,
    largest_magnitude,
    root_energy,
    within_deviations,
)
from thinwire.levels.mean_magnitude import mean_magnitude
from thinwire.levels.optimal import OptimalLevels, optimal_levels
from thinwire.levels.optimal_condition import optimal_condition
from thinwire.levels.quantiles import quantiles
from thinwire.levels.two_means import two_means

__all__ = [
    "OptimalLevels",
    "clipped_pair",
    "evenly_spaced",
    "full_range",
    "largest_magnitude",
    "mean_magnitude",
    "optimal_condition",
    "optimal_levels",
    "quantiles",
    "root_energy",
    "two_means",
    "within_deviations",
]
