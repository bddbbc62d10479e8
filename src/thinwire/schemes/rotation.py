"""What methods share that rotate blocks before they round: sizes, rows, and the scale that takes most bias away."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from thinwire.kernels import coordinates, rotate
from thinwire.schemes.group import Group
from thinwire.types import Message

__all__ = ["Cut", "block_errors", "cut", "rows_of", "unbiased_scales"]

_SHORTEST = 32


class Cut:
    """A group's blocks: as many of `block_size` as fit into each segment, then shorter ones.

    A rest of r values becomes one block, filled up to the next power of two p >= 32, if that adds at most p / 4;
    otherwise its first p / 2 values are a block, and so on.
    """

    def __init__(self, group: Group, block_size: int, device: torch.device) -> None:
        rows, owners = [], []
        code = 0
        for index, place in enumerate(group.places):
            for position, length in _lengths(place.count, block_size):
                rows.append((place.start + position, length, code, position))
                owners.append(index)
                code += length
        self.table = torch.tensor(rows, dtype=torch.int64, device=device).reshape(-1, 4)
        self.owner = torch.tensor(owners, dtype=torch.int64, device=device)
        self.counts = coordinates(self.table)
        self.coordinates = int(self.counts.sum())


@functools.lru_cache(maxsize=256)
def cut(group: Group, block_size: int, device: torch.device) -> Cut:
    """Cut a group, once."""
    return Cut(group, block_size, device)


def _lengths(count: int, block_size: int) -> Iterator[tuple[int, int]]:
    """First position and length of each block of a segment."""
    whole = count // block_size * block_size
    yield from ((position, block_size) for position in range(0, whole, block_size))
    position, rest = whole, count - whole
    while rest:
        power = max(1 << (rest - 1).bit_length(), _SHORTEST)
        length = rest if power == _SHORTEST or 4 * rest >= 3 * power else power // 2
        yield position, length
        position, rest = position + length, rest - length


def rows_of(counts: Tensor, levels: Tensor) -> Tensor:
    """Rows for quantize_normal, int64 `[blocks, 4]`: codes in the order of blocks.

    Args:
        counts: coordinates of each block, int64 `[blocks]`.
        levels: of each block, int64 `[blocks]`.
    """
    first = torch.cumsum(counts, 0) - counts
    return torch.stack([first, counts, first, levels], dim=1)


def unbiased_scales(sizes: Tensor, counts: Tensor, products: Tensor) -> Tensor:
    """What decoded blocks are multiplied by, float32 `[blocks]`: |x|^2 / <R x, Q(R x)>, so that <x, decoded> = |x|^2.

    Over uniform rotations the mean of what is decoded is then x itself (Vargaftik et al. 2022, Theorem 2.1).

    Args:
        sizes: the root of each block's mean square, as rotate returns it.
        counts: coordinates of each block.
        products: each block's sum of z Q(z), z of unit mean square.
    """
    scales = sizes * (counts.to(torch.float32) / products)
    return torch.where(sizes == 0, sizes, scales)


def block_errors(message: Message, blocks: Cut) -> tuple[Tensor, Tensor]:
    """Each block's sum of squares, NaN where a value is not finite, and how much of it errors keep across it.

    An error at right angles to the block, as rotation makes it, is spread evenly over coordinates: the part in those
    that were filled up is left behind.

    Returns:
        float64 `[blocks]`, twice.
    """
    sizes = rotate(message.flat, blocks.table, torch.zeros_like(blocks.owner), 0)[1]
    return sizes.to(torch.float64) ** 2 * blocks.counts, blocks.table[:, 1] / blocks.counts
