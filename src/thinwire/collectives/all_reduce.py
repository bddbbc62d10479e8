"""Average tensors over ranks in one call, and the two halves of it."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch import Tensor

from thinwire.collectives.by_gather import gather_frames
from thinwire.collectives.by_node import node_ranks
from thinwire.collectives.by_scatter import shard_mean
from thinwire.collectives.call import Call, zeros
from thinwire.collectives.channel import Channel
from thinwire.collectives.exchange import check_algorithm, mean_of_frames
from thinwire.collectives.groups import submit
from thinwire.collectives.shards import cut
from thinwire.collectives.stages import Stages
from thinwire.errors import SchemeError
from thinwire.schemes import Scheme
from thinwire.types import Key, Layout, Segment
from thinwire.wire import Shape, compose, layout_of
from thinwire.wire.message import Schemes, Tensors

__all__ = ["all_gather", "all_reduce", "reduce_scatter", "shares"]


def all_reduce(
    x: Tensors,
    scheme: Schemes,
    *,
    group: dist.ProcessGroup | None = None,
    key: Key | None = None,
    algorithm: str = "auto",
    second_leg: Scheme | None = None,
    ranks_per_node: int | None = None,
    checksum: bool = True,
    correlate: bool = False,
    async_op: bool = False,
) -> Any:
    """Average `x` over the ranks of `group` by exchanging frames. Not in place.

    Every rank calls it with the same shapes, dtypes and scheme, in the same order on one group. The first call on
    a group creates a private one, which is a collective call like `torch.distributed.new_group`.

    Args:
        x: a floating-point tensor, a list of them or a mapping name -> tensor, on one device.
        scheme: for all; or, with a mapping, a mapping name -> scheme.
        group: None means all ranks.
        key: which random numbers, of one seed and step on all ranks (its rank is set here). None: seed 0, and
            the number of this call on the group as step.
        algorithm: "all_gather", "reduce_scatter", "hierarchical" or "auto" (one of the first two, by the number of
            ranks): see docs/collectives.md. On all ranks the same.
        second_leg: the scheme for the mean on its way back from a shard's owner; None: `scheme`.
        ranks_per_node: for "hierarchical": so many consecutive ranks form a node; None: the environment's
            LOCAL_WORLD_SIZE, which torchrun sets.
        checksum: whether frames bear one, by which bytes altered in transit are seen; on all ranks the same.
        correlate: spread the ranks' random numbers evenly, each rank's being uniform as before, so that rounding errors
            of like values nearly cancel in the mean; on all ranks the same. No more bytes. No effect on methods that
            round to the nearest level.
        async_op: return at once. Leave `x` unchanged until the Future is done.

    Returns:
        New tensors in the structure of `x`, of its shapes, dtypes and device; equal to the bit on all ranks. With
        async_op a torch.futures.Future of them, whose `wait` raises what is listed here as of other ranks.

    Raises:
        MessageError, SchemeError: `x` cannot be encoded, or there is no such algorithm. On this rank, before anything
            is sent.
        PeerFailure, FrameError: a rank failed to encode, or its frame is not the one expected; on all ranks.
        ChannelError: torch.distributed is not initialised, a rank is gone, or the group's channel broke before.
    """
    message, shape = compose(x, scheme)
    check_algorithm(algorithm, second_leg, 1)
    if algorithm == "hierarchical":
        ranks_per_node = node_ranks(ranks_per_node)
    elif ranks_per_node is not None:
        raise SchemeError(f"{algorithm} knows no nodes: ranks_per_node needs algorithm='hierarchical'")

    def job(channel: Channel, key: Key) -> Stages[Any]:
        mean = yield from mean_of_frames(
            channel, message, key, algorithm=algorithm, second_leg=second_leg, checked=checksum, correlate=correlate
        )
        return _restore(mean, message.layout, shape)

    future = submit(group, key, message, job, ranks_per_node)
    return future if async_op else future.wait()


def all_gather(
    x: Tensors,
    scheme: Schemes,
    *,
    group: dist.ProcessGroup | None = None,
    key: Key | None = None,
    checksum: bool = True,
    correlate: bool = False,
    async_op: bool = False,
) -> Any:
    """Give every rank what each rank's `x` decodes to. Arguments and errors as `all_reduce`.

    Returns:
        A list over ranks of new tensors in the structure of `x`; or a Future of it. Equal to the bit on all ranks.
    """
    message, shape = compose(x, scheme)

    def job(channel: Channel, key: Key) -> Stages[list[Any]]:
        call = Call.among_all(channel, key, checked=checksum, correlate=correlate)
        _, frames = yield from gather_frames(call, message)
        decoded = [zeros(message.layout, message.device) for _ in frames]
        with channel.timed("decode"):
            for rank, (frame, values) in enumerate(zip(frames, decoded)):
                call.add(frame, rank, message.layout, values)
        return [_restore(values, message.layout, shape) for values in decoded]

    future = submit(group, key, message, job)
    return future if async_op else future.wait()


def reduce_scatter(
    x: Tensors,
    scheme: Schemes,
    *,
    group: dist.ProcessGroup | None = None,
    key: Key | None = None,
    checksum: bool = True,
    correlate: bool = False,
    async_op: bool = False,
) -> Any:
    """Give each rank the mean of its share of `x`. Arguments and errors as `all_reduce`.

    An altered frame is seen by one rank alone; the others learn of it at their next exchange.

    Returns:
        New tensors in the structure of `x`, 1-D, of its dtypes: of each tensor's values those of
        `shares(x, scheme, ranks)[rank]`; or a Future of them.
    """
    message, shape = compose(x, scheme)

    def job(channel: Channel, key: Key) -> Stages[Any]:
        mean = yield from shard_mean(Call.among_all(channel, key, checked=checksum, correlate=correlate), message)
        own = [share[channel.rank] for share in _by_segment(message.layout, channel.world_size)]
        layout = tuple(
            Segment(shape=(part.stop - part.start,), dtype=segment.dtype, scheme=segment.scheme, name=segment.name)
            for part, segment in zip(own, message.layout)
        )
        return _restore(mean, layout, shape)

    future = submit(group, key, message, job)
    return future if async_op else future.wait()


def shares(x: Tensors, scheme: Schemes, ranks: int) -> list[list[slice]]:
    """Which values `reduce_scatter` leaves to which rank: for each of `ranks`, a slice of each flattened tensor of `x`.

    From shapes, dtypes and schemes alone; meta tensors will do.
    """
    return [list(share) for share in zip(*_by_segment(layout_of(x, scheme)[0], ranks))] or [[] for _ in range(ranks)]


def _by_segment(layout: Layout, ranks: int) -> list[list[slice]]:
    found = [[slice(0, 0)] * ranks for _ in layout]
    for rank, shard in enumerate(cut(layout, ranks)):
        for piece in shard.pieces:
            found[piece.segment][rank] = slice(piece.start, piece.stop)
    return found


def _restore(flat: Tensor, layout: Layout, shape: int) -> Tensor | list[Tensor] | dict[str, Tensor]:
    parts = flat.split([segment.numel for segment in layout])
    tensors = [part.to(s.dtype, copy=True).reshape(s.shape) for part, s in zip(parts, layout)]
    if shape == Shape.MAPPING:
        return {segment.name: tensor for segment, tensor in zip(layout, tensors)}
    return tensors if shape == Shape.LIST else tensors[0]
