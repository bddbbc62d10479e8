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

__all__ = ["Place", "owed", "own_share"]


@dataclass(frozen=True)
class Place:
    """Where a residual belongs: the stream it is kept by, its count of values, and their device."""

    stream: int
    count: int
    device: torch.device


def owed(policy: Policy, options: Options, rank: int, world_size: int) -> dict[str, Place]:
    """All residuals that a rank may come to keep, by name: "layer.weight", or "layer.weight, piece 2" of an owner's.

    Raises:
        RegistrationError: a schedule would move an owner's pieces while it keeps residuals of them.
    """
    places: dict[str, Place] = {}
    cuts: dict[int, list[Layout]] = {}
    scatters = check_algorithm(options.algorithm, options.second_leg, world_size) == "reduce_scatter"
    for start in policy.starts:
        for parameter, segment in policy.segments(start).items():
            if not parameter.requires_grad:
                continue
            wanted: list[tuple[str, Segment]] = [(segment.name, segment)]
            if scatters:
                shards = [shard.under(options.second_leg) for shard in cut((segment,), world_size)]
                if segment.stream in cuts and [_sizes(s) for s in shards] != [_sizes(s) for s in cuts[segment.stream]]:
                    raise RegistrationError(
                        f"at step {start}, {segment.name} would be cut into other pieces, to which residuals do not "
                        "fit: give all phases of a schedule one block_size, or use algorithm='all_gather'"
                    )
                if any(wants_feedback(piece, options.error_feedback) for shard in shards for piece in shard):
                    cuts[segment.stream] = shards
                wanted += [(f"{piece.name}, piece {piece.stream >> 32}", piece) for piece in shards[rank]]
            for name, each in wanted:
                if wants_feedback(each, options.error_feedback):
                    places.setdefault(name, Place(each.stream, each.numel, parameter.device))
    return places


def own_share(layout: Layout, rank: int, world_size: int) -> int:
    """How many of a message's values a rank averages in reduce_scatter."""
    return cut(layout, world_size)[rank].numel


def _sizes(layout: Layout) -> list[tuple[int, int]]:
    return [(piece.stream, piece.numel) for piece in layout]
