"""Linear: equal-mass quantile levels (the baseline of Xu, Huo, Huang 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from thinwire.levels import quantiles
from thinwire.schemes.base import check_integer
from thinwire.schemes.leveled import LeveledScheme
from thinwire.types import Traits

__all__ = ["Linear"]


@dataclass(frozen=True, kw_only=True)
class Linear(LeveledScheme):
    """Levels at evenly spaced ranks of the block's values, ends at min and max; stochastic rounding; unbiased.

    Args:
        levels: 2 to 256; higher => more bits, more accurate.
        block_size, level_dtype: see LeveledScheme.
    Raises:
        SchemeError: an impossible level count, a block size below 2.
    Error: sum (hi - x)(x - lo).
    Bits per value at block 2048, float32 levels: 1.65 (3 levels), 2.41 (5), 3.34 (9).
    References: arXiv 2002.11082.
    """

    levels: int = 9

    method: ClassVar[str] = "linear"
    rounding: ClassVar[Literal["stochastic", "nearest"]] = "stochastic"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self.method, "levels", self.levels, 2, 256)

    @property
    def traits(self) -> Traits:
        return Traits(unbiased=True)

    @property
    def label(self) -> str:
        return f"linear-{self.levels}"

    @property
    def level_count(self) -> int:
        return self.levels

    def solve(self, values: Tensor, table: Tensor) -> Tensor:
        return quantiles(values, table, self.levels)
