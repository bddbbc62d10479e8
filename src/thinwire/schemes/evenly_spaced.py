"""Evenly spaced levels: TernGrad, QSGD and MinMax differ by the rule for the range alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from thinwire.errors import SchemeError
from thinwire.levels import evenly_spaced, full_range, largest_magnitude, root_energy, within_deviations
from thinwire.schemes.base import check_integer
from thinwire.schemes.leveled import LeveledScheme
from thinwire.types import Traits

__all__ = ["QSGD", "MinMax", "TernGrad"]


@dataclass(frozen=True, kw_only=True)
class _EvenlySpaced(LeveledScheme):
    """Only the range travels: a magnitude m for -m..m, or both ends."""

    rounding: ClassVar[Literal["stochastic", "nearest"]] = "stochastic"

    @property
    def traits(self) -> Traits:
        return Traits(unbiased=True)

    @property
    def sent_count(self) -> int:
        return 1

    def expand(self, sent: Tensor) -> Tensor:
        low = 0.0 - sent[:, 0] if sent.shape[1] == 1 else sent[:, 0]
        return evenly_spaced(low, sent[:, -1], self.level_count)


@dataclass(frozen=True, kw_only=True)
class TernGrad(_EvenlySpaced):
    """Levels -m, 0, m with m = max |x|, or `clip` standard deviations of the block if that is less.

    Args:
        clip: in standard deviations of the block, positive; lower => less error, more bias; None does not clip.
        block_size, level_dtype: see LeveledScheme.
    Raises:
        SchemeError: a clip that is not a positive number, a block size below 2.
    Error: sum |x| (m - |x|) inside, (|x| - m)^2 outside. Unbiased only with clip=None. As published, the deviation is
        about the mean: a block whose values lie far from zero on one side is clipped to almost nothing.
    Bits per value at block 2048, float32 levels: 1.62.
    References: Wen et al. 2017 (arXiv 1705.07878); there scaler and deviation are a layer's.
    """

    clip: float | None = 2.5

    method: ClassVar[str] = "terngrad"

    def __post_init__(self) -> None:
        super().__post_init__()
        clip = self.clip
        numeric = isinstance(clip, (int, float)) and not isinstance(clip, bool)
        if clip is not None and not (numeric and 0 < clip < 1e30):
            raise SchemeError(f"terngrad: clip must be a positive number of standard deviations or None, got {clip!r}")
        if clip is not None:
            object.__setattr__(self, "clip", float(clip))  # 2 and 2.0 are one scheme, and one text in a header

    @property
    def traits(self) -> Traits:
        return Traits(unbiased=self.clip is None)

    @property
    def label(self) -> str:
        return "terngrad-noclip" if self.clip is None else "terngrad"

    @property
    def level_count(self) -> int:
        return 3

    def solve(self, values: Tensor, table: Tensor) -> Tensor:
        return within_deviations(values, table, self.clip)


@dataclass(frozen=True, kw_only=True)
class QSGD(_EvenlySpaced):
    """Levels evenly spaced in -m..m, zero among them; m is the block's norm; unbiased.

    Args:
        levels: odd, 3 to 255; higher => more bits, more accurate.
        norm: "max" (m = max |x|) or "l2" (m = ||x||, as published; far more error in blocks of many values).
        block_size, level_dtype: see LeveledScheme.
    Raises:
        SchemeError: an even or impossible level count, another norm, a block size below 2.
    Error: sum (hi - x)(x - lo), at most n (m / (levels - 1))^2.
    Bits per value at block 2048, float32 levels: 1.62 (3 levels), 2.35 (5), 3.22 (9).
    References: Alistarh et al. 2017 (arXiv 1610.02132): its s is (levels - 1) / 2, its code Elias's.
    """

    levels: int = 9
    norm: Literal["max", "l2"] = "max"

    method: ClassVar[str] = "qsgd"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self.method, "levels", self.levels, 3, 255)
        if self.levels % 2 == 0:
            raise SchemeError(f"qsgd: levels must be odd, so that zero is a level, got {self.levels}")
        if self.norm not in ("max", "l2"):
            raise SchemeError(f"qsgd: norm must be 'max' or 'l2', got {self.norm!r}")

    @property
    def label(self) -> str:
        return f"qsgd-{self.levels}" if self.norm == "max" else f"qsgd-l2-{self.levels}"

    @property
    def level_count(self) -> int:
        return self.levels

    def solve(self, values: Tensor, table: Tensor) -> Tensor:
        return largest_magnitude(values, table) if self.norm == "max" else root_energy(values, table)


@dataclass(frozen=True, kw_only=True)
class MinMax(_EvenlySpaced):
    """Levels evenly spaced from the block's least to its greatest value; unbiased.

    Args:
        levels: 2 to 256; higher => more bits, more accurate.
        block_size, level_dtype: see LeveledScheme.
    Raises:
        SchemeError: an impossible level count, a block size below 2.
    Error: sum (hi - x)(x - lo), at most n ((max - min) / (2 (levels - 1)))^2.
    Bits per value at block 2048, float32 levels: 1.03 (2 levels), 2.03 (4), 4.03 (16).
    References: the usual affine quantizer with stochastic rounding; CGX (arXiv 2111.08617).
    """

    levels: int = 4

    method: ClassVar[str] = "minmax"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self.method, "levels", self.levels, 2, 256)

    @property
    def label(self) -> str:
        return f"minmax-{self.levels}"

    @property
    def level_count(self) -> int:
        return self.levels

    @property
    def sent_count(self) -> int:
        return 2

    def solve(self, values: Tensor, table: Tensor) -> Tensor:
        return full_range(values, table)
