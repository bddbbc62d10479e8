"""hierarchical: plain within a node, where links are fast; encoded between nodes, where they are not.

Every rank sends its values in their own dtype to its node's first rank, the leader; leaders average them in float32,
exchange encoded means, and send the result back plainly. With error feedback, leaders keep the residuals.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

import torch
from torch import Tensor

from thinwire.collectives.call import Call, exchange, zeros
from thinwire.collectives.failure import failure_frame, failure_in, frames_or_failure, raise_failures
from thinwire.collectives.stages import Stages, finish
from thinwire.errors import ChannelError, PeerFailure, SchemeError
from thinwire.schemes import NoCompression
from thinwire.types import Layout, Message, Segment
from thinwire.wire import capacity

__all__ = ["node_mean", "node_ranks"]

_ROOM = 512  # bytes at least on the way back, so that a cause can be read


def node_ranks(given: int | None) -> int:
    """How many ranks a node has: `given`, or what torchrun says.

    Raises:
        SchemeError: neither is there.
    """
    if given is None and "LOCAL_WORLD_SIZE" not in os.environ:
        raise SchemeError(
            "hierarchical needs ranks_per_node, or LOCAL_WORLD_SIZE in the environment (torchrun sets it)"
        )
    return int(os.environ["LOCAL_WORLD_SIZE"]) if given is None else given


def node_mean(call: Call, message: Message, mean_of: Callable[[Call, Message], Stages[Tensor]]) -> Stages[Tensor]:
    """The mean over all ranks, flat.

    Args:
        mean_of: how leaders average their nodes' means over the call given to it.
    """
    channel, size = call.channel, call.channel.ranks_per_node
    if size is None:
        raise SchemeError("this channel knows no nodes: create it with ranks_per_node")
    first = channel.rank // size * size
    frames, layout = yield from _to_leader(call, message, range(first, first + size))
    if channel.leaders is None:
        return _from_leader(call, message, None, range(first, first + size))
    node: Message = message
    failure: Exception | None = None
    try:
        node = _average(call, message, frames, layout)
    except Exception as error:  # told to the other leaders when they meet, and by them to their nodes
        failure = error

    def tell(*_: object) -> None:
        if failure is not None:
            raise failure

    ranks = range(0, channel.world_size, size)
    leaders = dataclasses.replace(call, link=channel.leaders, ranks=ranks, observer=tell)
    result: Tensor | Exception
    try:
        result = finish(mean_of(leaders, node))
    except Exception as error:
        if isinstance(error, ChannelError) and not isinstance(error, PeerFailure):
            raise
        result = error
    return _from_leader(call, message, result, range(first, first + size))


def _to_leader(call: Call, message: Message, node: range) -> Stages[tuple[dict[int, Tensor], Layout]]:
    """Send plain frames to the leader; what arrived there, and their layout."""
    layout = tuple(dataclasses.replace(segment, scheme=NoCompression()) for segment in message.layout)
    slot, leader = capacity(layout), node[0]

    def make() -> list[Tensor]:
        if call.observer is not None:
            call.observer(message, call.key)
        return [call.encode(Message(layout, message.values))]

    with call.channel.timed("encode"):
        (mine,), _ = frames_or_failure(make, [slot], message.device)
    yield
    slots = dict.fromkeys(node if call.channel.rank == leader else (), slot)
    return exchange(call.channel, call.link, {leader: mine}, {leader: slot}, slots, message.device), layout


def _average(call: Call, message: Message, frames: dict[int, Tensor], layout: Layout) -> Message:
    """The node's mean, as a message of the layout of `message`."""
    raise_failures(list(frames.values()), list(frames))
    with call.channel.timed("decode"):
        total = zeros(layout, message.device)
        for rank, frame in frames.items():
            call.add(frame, rank, layout, total)
        total.div_(len(frames))
    parts = total.split([segment.numel for segment in layout])
    values = [part.to(segment.dtype) for part, segment in zip(parts, layout)]
    return Message(message.layout, values, total if total.dtype == torch.float32 else None)


def _from_leader(call: Call, message: Message, result: Tensor | Exception | None, node: range) -> Tensor:
    """Hand the leader's result to its node, exactly; or why there is none, in the same words for all."""
    mean = zeros(message.layout, message.device)
    layout = (Segment(shape=(mean.numel(),), dtype=mean.dtype, scheme=NoCompression()),)
    leader = node[0]
    slot = max(capacity(layout), _ROOM)
    outgoing: dict[int, Tensor] = {}
    if isinstance(result, Tensor):
        outgoing = dict.fromkeys(node, call.encode(Message(layout, [result])))
    elif result is not None:
        known = isinstance(result, PeerFailure)
        said = str(result) if known else f"rank {leader} could not average: {type(result).__name__}: {result}"
        outgoing = dict.fromkeys(node, failure_frame(said, slot).to(message.device))
    limits = dict.fromkeys(outgoing, slot)
    frame = exchange(call.channel, call.link, outgoing, limits, {leader: slot}, message.device)[leader]
    cause = failure_in(frame)
    if cause is not None:
        raise PeerFailure(cause) from (result if isinstance(result, Exception) else None)
    with call.channel.timed("decode"):
        call.add(frame, leader, layout, mean)
    return mean
