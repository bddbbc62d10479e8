"""How segments are cut into blocks that are rotated."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import torch

from thinwire.kernels import coordinates
from thinwire.schemes.group import Group

__all__ = ["Cut", "cut"]

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
