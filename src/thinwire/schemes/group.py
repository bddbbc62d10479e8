"""Segments of one scheme and dtype within a message: they share one block table and are encoded together."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels import block_table, stream_keys
from thinwire.types import Key, Layout

if TYPE_CHECKING:
    from thinwire.schemes.base import Scheme

__all__ = ["Group", "Place", "partition"]


@dataclass(frozen=True)
class Place:
    """Where one segment's values lie in the message's flat values."""

    segment: int  # index in the layout
    start: int
    count: int
    stream: int


class Group:
    """A scheme, a dtype, and the places of the segments that share them."""

    def __init__(self, scheme: Scheme, dtype: torch.dtype, places: tuple[Place, ...]) -> None:
        self.scheme = scheme
        self.dtype = dtype
        self.places = places
        self.values = sum(place.count for place in places)
        self._cuts: dict[tuple[int | None, torch.device], tuple[Tensor, Tensor]] = {}

    def count_blocks(self, block_size: int | None) -> int:
        return sum(-(-place.count // (block_size or max(place.count, 1))) for place in self.places)

    def blocks(self, block_size: int | None, device: torch.device) -> tuple[Tensor, Tensor]:
        """The block table and each block's index in `places`, int64, on a device; cut once and kept."""
        if (block_size, device) not in self._cuts:
            table, owner = block_table([(place.start, place.count) for place in self.places], block_size)
            self._cuts[block_size, device] = table.to(device), owner.to(device)
        return self._cuts[block_size, device]

    def keys(self, key: Key, block_size: int | None, device: torch.device) -> Tensor:
        """Each block's stream key for uniforms, int64 `[blocks]`; under a shifted key all ranks have the same."""
        key = key.replace(rank=0) if key.shift else key
        return self.place_keys(key, device)[self.blocks(block_size, device)[1]]

    def place_keys(self, key: Key, device: torch.device) -> Tensor:
        """Each place's stream key, int64 `[places]`."""
        streams = np.array([place.stream for place in self.places], dtype=np.uint64)
        return torch.from_numpy(stream_keys(key, streams).view(np.int64)).to(device)

    @functools.cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """The group's places as (start, stop) in the flat values, neighbours merged."""
        merged: list[tuple[int, int]] = []
        for place in self.places:
            stop = place.start + place.count
            if merged and merged[-1][1] == place.start:
                merged[-1] = (merged[-1][0], stop)
            elif place.count:
                merged.append((place.start, stop))
        return tuple(merged)


@functools.lru_cache(maxsize=256)
def partition(layout: Layout) -> tuple[tuple[int, ...], tuple[Group, ...]]:
    """Group a layout's segments by scheme and dtype, in order of first appearance.

    Returns:
        The index of each segment's group, and the groups.
    """
    index: dict[object, int] = {}
    places: list[list[Place]] = []
    member: list[int] = []
    start = 0
    for number, segment in enumerate(layout):
        which = index.setdefault((segment.scheme, segment.dtype), len(index))
        if which == len(places):
            places.append([])
        places[which].append(Place(number, start, segment.numel, segment.stream))
        member.append(which)
        start += segment.numel
    groups = tuple(Group(layout[p[0].segment].scheme, layout[p[0].segment].dtype, tuple(p)) for p in places)
    return tuple(member), groups
