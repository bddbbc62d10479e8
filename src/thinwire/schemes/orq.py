"""ORQ (Xu, Huo, Huang 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from thinwire.errors import SchemeError
from thinwire.levels import optimal_condition
from thinwire.schemes.base import check_integer
from thinwire.schemes.leveled import LeveledScheme
from thinwire.types import Traits

__all__ = ["ORQ"]


@dataclass(frozen=True, kw_only=True)
class ORQ(LeveledScheme):
    """Optimal-condition levels, solved greedily by halving; stochastic rounding; unbiased.

    Args:
        levels: 2^K + 1, 3 to 129; higher => more bits, more accurate.
        block_size, level_dtype: see LeveledScheme.
    Raises:
        SchemeError: any other level count, or a block size below 2.
    Error: E||x - Q(x)||^2 = sum (hi - x)(x - lo).
    Bits per value at block 2048, float32 levels: 1.65 (3 levels), 2.41 (5), 3.34 (9).
    References: arXiv 2002.11082; levels as in thinwire.levels.optimal_condition.
    """

    levels: int = 9

    method: ClassVar[str] = "orq"
    rounding: ClassVar[Literal["stochastic", "nearest"]] = "stochastic"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self.method, "levels", self.levels, 3, 129)
        if (self.levels - 1) & (self.levels - 2):
            raise SchemeError(f"orq: levels must be 2^K + 1 (3, 5, 9, 17, 33, 65 or 129), got {self.levels}")

    @property
    def traits(self) -> Traits:
        return Traits(unbiased=True)

    @property
    def label(self) -> str:
        return f"orq-{self.levels}"

    @property
    def level_count(self) -> int:
        return self.levels

    def solve(self, values: Tensor, table: Tensor) -> Tensor:
        return optimal_condition(values, table, self.levels)
