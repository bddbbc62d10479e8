"""Methods of two levels: BinGrad-pb, BinGrad-b and scaled sign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from thinwire.levels import clipped_pair, mean_magnitude, two_means
from thinwire.schemes.leveled import LeveledScheme
from thinwire.types import Traits

__all__ = ["BinGradB", "BinGradPB", "SignSGD"]


@dataclass(frozen=True, kw_only=True)
class _TwoLevels(LeveledScheme):
    @property
    def traits(self) -> Traits:
        return Traits(unbiased=False)

    @property
    def level_count(self) -> int:
        return 2


@dataclass(frozen=True, kw_only=True)
class _Pair(_TwoLevels):
    """Levels -m and +m: one number a block travels."""

    @property
    def sent_count(self) -> int:
        return 1

    def expand(self, sent: Tensor) -> Tensor:
        return torch.cat([0.0 - sent, sent], dim=1)


@dataclass(frozen=True, kw_only=True)
class BinGradPB(_Pair):
    """Levels +-b that balance clipping and rounding; stochastic inside, clipped outside; biased only where it clips.

    Args:
        block_size, level_dtype: see LeveledScheme.
    Raises:
        SchemeError: a block size below 2.
    Error: sum over |x| <= b of b^2 - x^2, plus sum over |x| > b of (|x| - b)^2; no other b has a lower one.
    Bits per value at block 2048, float32 levels: 1.02.
    References: arXiv 2002.11082 (BinGrad-pb).
    """

    method: ClassVar[str] = "bingrad-pb"
    rounding: ClassVar[Literal["stochastic", "nearest"]] = "stochastic"

    def solve(self, values: Tensor, table: Tensor) -> Tensor:
        return clipped_pair(values, table)


@dataclass(frozen=True, kw_only=True)
class BinGradB(_TwoLevels):
    """The two levels of least squared error, exactly; nearest rounding; biased.

    Args:
        block_size, level_dtype: see LeveledScheme.
    Raises:
        SchemeError: a block size below 2.
    Error: the optimum of 1-D 2-means over the block.
    Bits per value at block 2048, float32 levels: 1.03.
    References: arXiv 2002.11082 (BinGrad-b).
    """

    method: ClassVar[str] = "bingrad-b"
    rounding: ClassVar[Literal["stochastic", "nearest"]] = "nearest"

    def solve(self, values: Tensor, table: Tensor) -> Tensor:
        return two_means(values, table)


@dataclass(frozen=True, kw_only=True)
class SignSGD(_Pair):
    """The sign of each value times the block's mean magnitude; biased. A zero counts as negative.

    Args:
        block_size, level_dtype: see LeveledScheme.
    Raises:
        SchemeError: a block size below 2.
    Error: sum x^2 - (sum |x|)^2 / n by block.
    Bits per value at block 2048, float32 levels: 1.02.
    References: Karimireddy et al. 2019 (arXiv 1901.09847); there one scale for the whole vector.
    """

    method: ClassVar[str] = "signsgd"
    rounding: ClassVar[Literal["stochastic", "nearest"]] = "nearest"

    def solve(self, values: Tensor, table: Tensor) -> Tensor:
        return mean_magnitude(values, table)
