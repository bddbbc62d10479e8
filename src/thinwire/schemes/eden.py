"""EDEN and DRIVE: rotate, round to the best levels for normal values, and scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.errors import SchemeError
from thinwire.kernels import dequantize_rotated, pack, packed_bytes, quantize_rotated, rotate, unpack
from thinwire.kernels.gaussian import MEAN_SQUARED_ERROR, levels_of
from thinwire.schemes.base import Plan, Scheme, check_integer
from thinwire.schemes.group import Group
from thinwire.schemes.rotation import Cut, cut
from thinwire.types import Key, Message, Traits

__all__ = ["DRIVE", "EDEN"]


@dataclass(frozen=True, kw_only=True)
class _OneRotation(Scheme):
    """One randomized Hadamard transform a block, 2^bits levels, one float32 scale a block."""

    block_size: int = 8192

    def __post_init__(self) -> None:
        size = self.block_size
        check_integer(self.method, "block_size", size, 256, 1 << 24)
        if size & (size - 1):
            raise SchemeError(f"{self.method}: block_size must be a power of two, got {size}")

    @property
    def level_count(self) -> int:
        raise NotImplementedError

    def _scales(self, sizes: Tensor, counts: Tensor, products: Tensor) -> Tensor:
        raise NotImplementedError

    def part_bytes(self, group: Group) -> Mapping[str, int]:
        blocks = cut(group, self.block_size, torch.device("cpu"))
        return {"scales": 4 * len(blocks.table), "codes": packed_bytes(blocks.coordinates, self.level_count)}

    def _rows(self, blocks: Cut) -> Tensor:
        return _rows_of(blocks.counts, torch.full_like(blocks.counts, self.level_count))

    def plan(self, message: Message, group: Group) -> Plan | None:
        return None

    def encode(self, message: Message, group: Group, plan: Plan | None, key: Key) -> list[Tensor]:
        blocks = cut(group, self.block_size, message.device)
        keys = group.place_keys(key, message.device)[blocks.owner]
        codes, products, sizes = quantize_rotated(message.flat, blocks.table, keys, 1, self._rows(blocks))
        return [self._scales(sizes, blocks.counts, products), pack(codes, self.level_count)]

    def decode(self, parts: list[Tensor], group: Group, key: Key, total: Tensor, add: bool) -> None:
        blocks = cut(group, self.block_size, total.device)
        codes = unpack(parts[1], self.level_count, blocks.coordinates)
        keys = group.place_keys(key, total.device)[blocks.owner]
        dequantize_rotated(codes, self._rows(blocks), parts[0].view(torch.float32), blocks.table, keys, 1, total, add)


@dataclass(frozen=True, kw_only=True)
class EDEN(_OneRotation):
    """A rotated block, rounded to the 2^bits best levels for N(0, 1), with the scale that makes it nearly unbiased.

    Args:
        bits: 1, 2, 3 or 4, a value; higher => more bytes, less error.
        block_size: values that are rotated together and share a scale, a power of two from 256 on; higher => fewer
            bits for scales.
    Raises:
        SchemeError: any other bits or block size.
    Error: vNMSE D / (1 - D), D the mean squared error of the levels: 0.571, 0.133, 0.0358, 0.0096. Bias: none over
        uniform rotations; with one Hadamard transform its square is below 0.2% of the values', but more in blocks where
        few values are not small (of 1 and 1/2, the second is lost at one bit).
    Bits per value: bits + 32 / block_size.
    References: Vargaftik et al. 2022 (arXiv 2108.08842), EDEN with fixed bits and a randomized Hadamard transform.
        There a whole vector is rotated, filled up with zeros to a power of two; here blocks are, and what is left of a
        segment is cut so that little is filled up (schemes/rotation.py).
    """

    method: ClassVar[str] = "eden"
    number: ClassVar[str] = "bits"

    bits: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer(self.method, "bits", self.bits, 1, 4)

    @property
    def label(self) -> str:
        return f"eden-{self.bits}"

    @property
    def traits(self) -> Traits:
        return Traits(unbiased=False, nearly_unbiased=True)

    @property
    def level_count(self) -> int:
        return 1 << self.bits

    def _scales(self, sizes: Tensor, counts: Tensor, products: Tensor) -> Tensor:
        return _unbiased_scales(sizes, counts, products)

    def squared_error(self, message: Message, group: Group) -> float:
        energies, kept = _block_errors(message, cut(group, self.block_size, message.device))
        error = MEAN_SQUARED_ERROR[self.level_count]
        return float((energies * kept).sum()) * error / (1 - error)


@dataclass(frozen=True, kw_only=True)
class DRIVE(_OneRotation):
    """The signs of a rotated block, times their mean magnitude; biased, with the least error that signs allow.

    Args:
        block_size: as EDEN's.
    Raises:
        SchemeError: a block size that is not a power of two from 256 on.
    Error: vNMSE 1 - 2 / pi = 0.363.
    Bits per value: 1 + 32 / block_size.
    References: Vargaftik et al. 2021 (arXiv 2105.08339), the scale |R x|_1 / d of its equation for the biased variant;
        its unbiased one is `EDEN(bits=1)`. Blocks as EDEN's.
    """

    method: ClassVar[str] = "drive"

    @property
    def traits(self) -> Traits:
        return Traits(unbiased=False)

    @property
    def level_count(self) -> int:
        return 2

    def _scales(self, sizes: Tensor, counts: Tensor, products: Tensor) -> Tensor:
        level = float(levels_of(2)[1])
        return sizes * (products / (counts.to(torch.float32) * level * level))

    def squared_error(self, message: Message, group: Group) -> float:
        energies, kept = _block_errors(message, cut(group, self.block_size, message.device))
        error = MEAN_SQUARED_ERROR[2]
        along, across = error**2, error * (1 - error)  # what is decoded is shorter than the block, and beside it
        return float((energies * (along + kept * across)).sum())


def _rows_of(counts: Tensor, levels: Tensor) -> Tensor:
    """Rows for quantize_rotated, int64 `[blocks, 4]`: codes in the order of blocks.

    Args:
        counts: coordinates of each block, int64 `[blocks]`.
        levels: of each block, int64 `[blocks]`.
    """
    first = torch.cumsum(counts, 0) - counts
    return torch.stack([first, counts, first, levels], dim=1)


def _unbiased_scales(sizes: Tensor, counts: Tensor, products: Tensor) -> Tensor:
    """What decoded blocks are multiplied by, float32 `[blocks]`: |x|^2 / <R x, Q(R x)>, so that <x, decoded> = |x|^2.

    Over uniform rotations the mean of what is decoded is then x itself (Vargaftik et al. 2022, Theorem 2.1).

    Args:
        sizes: the root of each block's mean square, as rotate returns it.
        counts: coordinates of each block.
        products: each block's sum of z Q(z), z of unit mean square.
    """
    scales = sizes * (counts.to(torch.float32) / products)
    return torch.where(sizes == 0, sizes, scales)


def _block_errors(message: Message, blocks: Cut) -> tuple[Tensor, Tensor]:
    """Each block's sum of squares, NaN where a value is not finite, and how much of it errors keep across it.

    An error at right angles to the block, as rotation makes it, is spread evenly over coordinates: the part in those
    that were filled up is left behind.

    Returns:
        float64 `[blocks]`, twice.
    """
    sizes = rotate(message.flat, blocks.table, torch.zeros_like(blocks.owner), 0)[1]
    return sizes.to(torch.float64) ** 2 * blocks.counts, blocks.table[:, 1] / blocks.counts
