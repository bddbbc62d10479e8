"""Methods that give every block its levels: solve, round, pack. A subclass says how to solve and how to round."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from thinwire.errors import SchemeError
from thinwire.kernels import dequantize, packed_bytes, quantize
from thinwire.kernels.rows import gather_rows, pieces
from thinwire.levels.precision import narrow
from thinwire.schemes.base import Plan, Scheme, check_integer
from thinwire.schemes.group import Group
from thinwire.types import Key, Message

__all__ = ["LeveledScheme", "LevelsPlan"]

_LARGEST_BLOCK = 1 << 24


@dataclass(frozen=True, kw_only=True)
class LevelsPlan(Plan):
    """Levels by block. Scope: block.

    Args:
        sent: what travels, `[blocks, parameters]` in the group's level dtype.
        levels: what the receiver will see, float32 `[blocks, s]`, representable in the segments' dtype.
    """

    sent: Tensor
    levels: Tensor


@dataclass(frozen=True, kw_only=True)
class LeveledScheme(Scheme):
    """Levels by block, one code a value, codes packed by radix.

    Args:
        block_size: consecutive values that share one level set; higher => fewer bits for levels, more error; None: a
            whole tensor does.
        level_dtype: "float32", or "bfloat16" to halve what levels cost; the ends are then rounded outward, so that
            stochastic rounding stays unbiased. Segments of 16-bit dtypes send their levels in their own dtype, exactly.

    Bits per value: log2(s) within 2%, plus the levels' bits / block_size.
    """

    block_size: int | None = 2048
    level_dtype: Literal["float32", "bfloat16"] = "float32"

    rounding: ClassVar[Literal["stochastic", "nearest"]]

    def __post_init__(self) -> None:
        if self.block_size is not None:
            check_integer(self.method, "block_size", self.block_size, 2, _LARGEST_BLOCK)
        if self.level_dtype not in ("float32", "bfloat16"):
            raise SchemeError(f"{self.method}: level_dtype must be 'float32' or 'bfloat16', got {self.level_dtype!r}")

    @property
    @abstractmethod
    def level_count(self) -> int:
        """Levels s of a block, 2..256."""

    @property
    def sent_count(self) -> int:
        """Numbers that travel for each block, from which the receiver rebuilds the levels."""
        return self.level_count

    @abstractmethod
    def solve(self, values: Tensor, table: Tensor) -> Tensor:
        """Choose each block's levels as thinwire.levels does: float32 `[blocks, sent_count]`, NaN where not finite."""

    def expand(self, sent: Tensor) -> Tensor:
        """Rebuild levels, float32 `[blocks, s]` ascending, from what was sent, float32 `[blocks, sent_count]`."""
        return sent

    def _sent_dtype(self, group: Group) -> torch.dtype:
        return group.dtype if group.dtype.itemsize == 2 else getattr(torch, self.level_dtype)

    def _levels(self, sent: Tensor, group: Group) -> Tensor:
        """Levels as the receiver's dtype holds them, so that rounding decisions see what will be decoded."""
        levels = self.expand(sent.to(torch.float32))
        return levels.to(group.dtype).to(torch.float32) if group.dtype.itemsize == 2 else levels

    def part_bytes(self, group: Group) -> Mapping[str, int]:
        blocks = group.count_blocks(self.block_size)
        return {
            "levels": blocks * self.sent_count * self._sent_dtype(group).itemsize,
            "codes": packed_bytes(group.values, self.level_count),
        }

    def plan(self, message: Message, group: Group) -> LevelsPlan:
        table, _ = group.blocks(self.block_size, message.device)
        sent = narrow(self.solve(message.flat, table), self._sent_dtype(group), outward=self.rounding == "stochastic")
        levels = self._levels(sent, group)
        finite = torch.isfinite(levels[:, -1:] - levels[:, :1])
        sent, levels = torch.where(finite, sent, float("nan")), torch.where(finite, levels, float("nan"))
        return LevelsPlan(sent=sent, levels=levels)

    def encode(self, message: Message, group: Group, plan: Plan | None, key: Key) -> list[Tensor]:
        assert isinstance(plan, LevelsPlan)
        table, _ = group.blocks(self.block_size, message.device)
        keys = group.keys(key, self.block_size, message.device)
        packed = quantize(message.flat, plan.levels, table, keys, self.rounding == "nearest", key.shift)
        return [plan.sent.contiguous(), packed]

    def decode(self, parts: list[Tensor], group: Group, key: Key, total: Tensor, add: bool) -> None:
        table, _ = group.blocks(self.block_size, total.device)
        sent = parts[0].view(self._sent_dtype(group)).reshape(len(table), self.sent_count)
        dequantize(parts[1], self._levels(sent, group), table, total, add)

    def squared_error(self, message: Message, group: Group) -> float:
        error = _stochastic_error if self.rounding == "stochastic" else _nearest_error
        table, _ = group.blocks(self.block_size, message.device)
        levels = self.plan(message, group).levels.to(torch.float64)
        total, done = 0.0, 0
        for part in pieces(table):
            x = gather_rows(message.flat, part)[0].to(torch.float64)
            inside = torch.isfinite(x)
            found = error(torch.where(inside, x, 0.0), levels[done : done + len(part)])
            total += float((found * inside).sum())
            done += len(part)
        return total


def _stochastic_error(x: Tensor, levels: Tensor) -> Tensor:
    """(hi - x)(x - lo) between two levels, the squared distance to the nearer end outside: float64, like x."""
    below = torch.searchsorted(levels[:, 1:-1].contiguous(), x, right=True)
    low, high = levels.gather(1, below), levels.gather(1, below + 1)
    between = (high - x) * (x - low)
    return torch.where(between >= 0, between, torch.minimum((x - low) ** 2, (x - high) ** 2))


def _nearest_error(x: Tensor, levels: Tensor) -> Tensor:
    """Squared distance to the level that `quantize` picks, float64 `[blocks, width]`."""
    midpoints = 0.5 * levels[:, :-1] + 0.5 * levels[:, 1:]
    return (x - levels.gather(1, torch.searchsorted(midpoints, x))) ** 2
