"""Which rank averages which values: a function of segment and block, whatever message they travel in."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.schemes import Scheme
from thinwire.types import Layout, Message, Segment

__all__ = ["Piece", "Shard", "cut"]

_GRAIN = 1024  # values that stay together where the scheme has no blocks
_LEAST = 2  # blocks of a piece, where the segment has as many: each piece costs an entry in its frame's header
_PIECE_BITS = 32  # a piece's number, from 1, stands above the bits of its segment's stream


@dataclass(frozen=True)
class Piece:
    """Consecutive values of one segment."""

    segment: int  # index in the layout
    start: int  # in the segment
    stop: int
    at: int  # of the first value in the message's flat values

    @property
    def count(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Shard:
    """Some pieces of a message's segments, in order, at most one of each, and the layout of a message of them."""

    pieces: tuple[Piece, ...]
    layout: Layout

    @property
    def numel(self) -> int:
        return sum(piece.count for piece in self.pieces)

    def under(self, scheme: Scheme | None) -> Layout:
        """The layout with `scheme` in place of each one that loses something."""
        if scheme is None:
            return self.layout
        return tuple(s if s.scheme.traits.exact else dataclasses.replace(s, scheme=scheme) for s in self.layout)

    def of(self, message: Message) -> Message:
        """The message of these pieces. Views wherever possible."""
        values = [message.values[piece.segment][piece.start : piece.stop] for piece in self.pieces]
        return Message(self.layout, values, None if message.known_flat is None else self.gather(message.known_flat))

    def gather(self, flat: Tensor) -> Tensor:
        """These pieces' values back to back, out of all values `[message.numel]`."""
        parts = [flat[piece.at : piece.at + piece.count] for piece in self.pieces]
        return parts[0] if len(parts) == 1 else torch.cat(parts) if parts else flat[:0]

    def scatter(self, values: Tensor, flat: Tensor) -> None:
        """Write these pieces' values, back to back, to their places in `flat`, `[message.numel]`."""
        for piece, part in zip(self.pieces, values.split([piece.count for piece in self.pieces])):
            flat[piece.at : piece.at + piece.count] = part


@functools.lru_cache(maxsize=256)
def cut(layout: Layout, ranks: int) -> tuple[Shard, ...]:
    """Share a layout's values out among ranks.

    Each segment is cut at multiples of its block into at most `ranks` pieces, of two blocks or more, that differ by at
    most one block; piece p goes to rank (p + stream) % ranks. Where a scheme has no blocks, 1024 values stay together;
    where the whole segment is a block (block_size=None), it is cut into equal parts, each with its own levels.

    Returns:
        A shard a rank; some may be empty. Pieces bear their segment's name.
    """
    pieces: list[list[Piece]] = [[] for _ in range(ranks)]
    segments: list[list[Segment]] = [[] for _ in range(ranks)]
    at = 0
    for index, segment in enumerate(layout):
        for number, (start, stop) in enumerate(_bounds(segment, ranks)):
            rank = (number + segment.stream) % ranks
            stream = segment.stream | (number + 1) << _PIECE_BITS
            pieces[rank].append(Piece(index, start, stop, at + start))
            segments[rank].append(dataclasses.replace(segment, shape=(stop - start,), stream=stream))
        at += segment.numel
    return tuple(Shard(tuple(p), tuple(s)) for p, s in zip(pieces, segments))


def _bounds(segment: Segment, ranks: int) -> list[tuple[int, int]]:
    grain = getattr(segment.scheme, "block_size", _GRAIN)
    if grain is None:
        grain = max(1, -(-segment.numel // ranks))
        blocks = count = -(-segment.numel // grain)
    else:
        blocks = -(-segment.numel // grain)
        count = min(ranks, blocks, max(1, blocks // _LEAST))
    ends = [min(blocks * p // count * grain, segment.numel) for p in range(count + 1)] if count else []
    return list(itertools.pairwise(ends))
