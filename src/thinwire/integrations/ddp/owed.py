"""Which residuals a rank keeps: one a parameter, and as a shard's owner one for each piece that it encodes again."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from thinwire.collectives import check_algorithm
from thinwire.collectives.shards import cut
from thinwire.errors import RegistrationError
from thinwire.feedback import wants_feedback
from thinwire.integrations.ddp.options import Options
from thinwire.policies import Policy
from thinwire.types import Layout, Segment

__all__ = ["ONE_NODE", "Place", "Route", "owed", "route"]


ONE_NODE = "within which values travel uncompressed"


@dataclass(frozen=True)
class Place:
    """Where a residual belongs: the stream it is kept by, its count of values, and their device."""

    stream: int
    count: int
    device: torch.device


@dataclass(frozen=True)
class Route:
    """Who encodes: `count` ranks, of which this one is number `index`, or None if it sends plainly to one of them.

    Args:
        scatters: they average by reduce_scatter; otherwise by all_gather.
        local: ranks that exchange plainly with each of them, itself included.
    """

    index: int | None
    count: int
    scatters: bool
    local: int = 1

    @property
    def one_node(self) -> bool:
        """Whether there is nobody to send an encoded frame to, though there are other ranks."""
        return self.count == 1 and self.local > 1

    def values_sent(self, layout: Layout) -> int:
        """How many values this rank hands to the transport for a message, each copy counted."""
        values = sum(segment.numel for segment in layout)
        if self.index is None:
            return values
        back = (self.local - 1) * values
        if not self.scatters:
            return back + (self.count - 1) * values
        own = cut(layout, self.count)[self.index].numel
        return back + values - own + (self.count - 1) * own


def route(options: Options, rank: int, world_size: int) -> Route:
    """What the options mean for a rank.

    Raises:
        SchemeError, RegistrationError: there is no such algorithm, or ranks do not form nodes.
    """
    local = options.nodes() or 1
    if world_size % local:
        raise RegistrationError(f"{world_size} ranks do not form nodes of {local}")
    count = world_size // local
    algorithm = "auto" if options.algorithm == "hierarchical" else options.algorithm
    scatters = check_algorithm(algorithm, options.second_leg, count) == "reduce_scatter"
    return Route(None if rank % local else rank // local, count, scatters, local)


def owed(policy: Policy, options: Options, way: Route) -> dict[str, Place]:
    """All residuals that a rank may come to keep, by name: "layer.weight", or "layer.weight, piece 2" of an owner's.

    Raises:
        RegistrationError: a schedule would move an owner's pieces while it keeps residuals of them.
    """
    places: dict[str, Place] = {}
    cuts: dict[int, list[Layout]] = {}
    for start in policy.starts:
        for parameter, segment in policy.segments(start).items():
            if not parameter.requires_grad:
                continue
            wanted: list[tuple[str, Segment]] = [(segment.name, segment)]
            if way.scatters:
                shards = [shard.under(options.second_leg) for shard in cut((segment,), way.count)]
                _check_cut(start, segment, shards, cuts)
                if any(wants_feedback(piece, options.error_feedback) for shard in shards for piece in shard):
                    cuts[segment.stream] = shards
                wanted += [(f"{piece.name}, piece {piece.stream >> 32}", piece) for piece in shards[way.index or 0]]
            for name, each in wanted:
                if wants_feedback(each, options.error_feedback):
                    places.setdefault(name, Place(each.stream, each.numel, parameter.device))
    return places if way.index is not None else {}


def _check_cut(start: int, segment: Segment, shards: list[Layout], cuts: dict[int, list[Layout]]) -> None:
    if segment.stream in cuts and [_sizes(s) for s in shards] != [_sizes(s) for s in cuts[segment.stream]]:
        raise RegistrationError(
            f"at step {start}, {segment.name} would be cut into other pieces, to which residuals do not "
            "fit: give all phases of a schedule one block_size, or use algorithm='all_gather'"
        )


def _sizes(layout: Layout) -> list[tuple[int, int]]:
    return [(piece.stream, piece.numel) for piece in layout]
