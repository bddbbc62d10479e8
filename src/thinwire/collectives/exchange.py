"""Averages over ranks: of encoded messages, and plain. Run on a channel's thread."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.futures import Future

from thinwire.collectives.by_gather import gather_mean
from thinwire.collectives.by_node import node_mean
from thinwire.collectives.by_scatter import scatter_mean
from thinwire.collectives.call import Call
from thinwire.collectives.channel import Channel
from thinwire.collectives.feedback import Feedback, Observer
from thinwire.collectives.sparse import sparse_sum
from thinwire.collectives.stages import Stages
from thinwire.errors import SchemeError
from thinwire.schemes import Scheme
from thinwire.types import Key, Message

__all__ = ["ALGORITHMS", "average", "check_algorithm", "mean_of_frames", "plain_mean"]

ALGORITHMS = ("auto", "all_gather", "reduce_scatter", "hierarchical")
_FEW = 3  # ranks: up to here all_gather sends little more and loses less


def check_algorithm(algorithm: str, second_leg: Scheme | None, ranks: int) -> str:
    """The algorithm that is meant: "auto" is all_gather up to 3 ranks and reduce_scatter beyond.

    Raises:
        SchemeError: no such algorithm, or it has no second leg to use the scheme given for it.
    """
    if algorithm not in ALGORITHMS:
        raise SchemeError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    if second_leg is not None and not isinstance(second_leg, Scheme):
        raise SchemeError(f"second_leg must be a scheme such as thinwire.ORQ(levels=9), got {second_leg!r}")
    if algorithm == "all_gather" and second_leg is not None:
        raise SchemeError("all_gather has no second leg: second_leg needs algorithm='reduce_scatter' or 'auto'")
    if algorithm != "auto":
        return algorithm
    return "all_gather" if ranks <= _FEW else "reduce_scatter"


def mean_of_frames(
    channel: Channel,
    message: Message,
    key: Key,
    observer: Observer | None = None,
    *,
    algorithm: str = "all_gather",
    second_leg: Scheme | None = None,
    feedback: Feedback | None = None,
    checked: bool = True,
    correlate: bool = False,
) -> Stages[Tensor]:
    """Exchange frames and average what they decode to, this rank's own included. Pauses when it has encoded.

    Args:
        message: of one layout on all ranks.
        key: of one seed and step on all ranks; its rank is set here, and the second leg's stratum is one more.
        observer: called with `message` and the key before it is encoded; its failure is this rank's.
        algorithm: one of ALGORITHMS, on all ranks the same. "auto" is all_gather up to 3 ranks and reduce_scatter
            beyond; "hierarchical" needs a channel with `ranks_per_node`.
        second_leg: the scheme for the mean on its way back, where there is one and the message's scheme is not
            exact; None: the message's.
        feedback: what to add to the values before they are encoded, and who keeps the difference.
        checked: whether frames bear checksums; on all ranks the same.
        correlate: whether ranks' uniforms are spread evenly where their means are taken (Key.stratified); on all ranks
            the same.

    Returns:
        float32 `[message.numel]` (float64 if any segment is), equal to the bit on all ranks. With all_gather: the
        frames' values added in rank order, divided by the number of ranks; with reduce_scatter: that, encoded again;
        with hierarchical: one of these, over the nodes' exact means.

    Raises:
        SchemeError: as check_algorithm, which callers ask before.
        PeerFailure: a rank could not encode, or not average its shard (an altered frame, say).
        FrameError: a frame was altered, or is not the one expected.
        ChannelError: a rank is gone.
    """
    chosen = check_algorithm(algorithm, second_leg, channel.world_size)
    call = Call.among_all(channel, key, observer=observer, feedback=feedback, checked=checked, correlate=correlate)
    if chosen == "hierarchical":
        return (yield from node_mean(call, message, lambda leaders, mean: _mean(leaders, mean, "auto", second_leg)))
    return (yield from _mean(call, message, chosen, second_leg))


def _mean(call: Call, message: Message, algorithm: str, second_leg: Scheme | None) -> Stages[Tensor]:
    if check_algorithm(algorithm, second_leg, len(call.ranks)) == "all_gather":
        return gather_mean(call, message)
    return scatter_mean(call, message, second_leg)


def plain_mean(channel: Channel, values: Tensor) -> tuple[Tensor, int]:
    """Average `values` over ranks without encoding: divided first, then summed, as DDP does. Not in place.

    Counted as reduce-scatter and all-gather: all but this rank's own shard, twice. Of sparse values (COO, also hybrid),
    indices and values are gathered, and counted.

    Returns:
        The mean, and the bytes that would have been sent had the values been float32.
    """
    n = channel.world_size
    if values.is_sparse:
        with channel.timed("communicate"):
            total, moved, fp32_bytes = sparse_sum(channel.link, values / n)
        channel.count(calls=1, bytes_sent=moved, bytes_received=moved)
        return total, fp32_bytes
    with channel.timed("communicate"):
        mean = channel.link.add(values / n) if values.numel() else values.clone()
    own = values.numel() // n + (channel.rank < values.numel() % n)
    moved = 2 * (values.numel() - own) * values.element_size()
    channel.count(calls=1, bytes_sent=moved, bytes_received=moved)
    return mean, moved * 32 // torch.finfo(values.dtype).bits


def average(
    channel: Channel, message: Message, key: Key, algorithm: str = "all_gather", **options: Any
) -> Future[Tensor]:
    """Submit `mean_of_frames`; options as there."""
    return channel.submit(mean_of_frames(channel, message, key, algorithm=algorithm, **options), message.device)
