"""Rounding to the levels that are best for N(0, 1), which rotated blocks nearly follow."""

from thinwire.kernels.gaussian.reference import levels_of
from thinwire.kernels.gaussian.tables import MEAN_SQUARED_ERROR

__all__ = ["MEAN_SQUARED_ERROR", "levels_of"]
