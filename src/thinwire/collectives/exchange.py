"""Averages over ranks: of encoded messages, and plain. Run on a channel's thread."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.futures import Future

from thinwire.collectives.channel import Channel
from thinwire.collectives.failure import failure_frame, raise_failures
from thinwire.collectives.feedback import Feedback, Observer
from thinwire.errors import FrameError, SchemeError
from thinwire.types import Key, Layout, Message
from thinwire.wire import accumulate, capacity, encode

__all__ = ["ALGORITHMS", "average", "mean_of_frames", "plain_mean"]

ALGORITHMS = ("auto", "all_gather")


def average(channel: Channel, message: Message, key: Key, algorithm: str = "auto") -> Future[Tensor]:
    """Average a message over the channel's ranks. See `mean_of_frames`."""
    return channel.submit(lambda: mean_of_frames(channel, message, key, algorithm=algorithm), message.device)


def mean_of_frames(
    channel: Channel,
    message: Message,
    key: Key,
    observer: Observer | None = None,
    *,
    algorithm: str = "auto",
    feedback: Feedback | None = None,
) -> Tensor:
    """Exchange frames and average what they decode to, this rank's own included.

    Args:
        message: of one layout on all ranks.
        key: of one seed and step on all ranks; its rank is set here.
        observer: called with `message` and the key before it is encoded; its failure is this rank's.
        algorithm: one of ALGORITHMS, on all ranks the same.
        feedback: what to add to the values before they are encoded, and who keeps the difference.

    Returns:
        float32 `[message.numel]` (float64 if any segment is): the frames' values added in rank order, divided
        by the number of ranks. Equal to the bit on all ranks.

    Raises:
        SchemeError: no such algorithm.
        PeerFailure: a rank could not encode.
        FrameError: a frame was altered, or is not the one expected. Both on all ranks alike.
        ChannelError: a rank is gone.
    """
    if algorithm not in ALGORITHMS:
        raise SchemeError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {algorithm!r}")
    key = key.replace(rank=channel.rank)
    outgoing = _Outgoing(message)
    with channel.timed("encode"):
        outgoing.encode(key, observer, feedback)
    with channel.timed("communicate"):
        frames = channel.link.gather(outgoing.frame)
    length = outgoing.frame.numel()
    others = (channel.world_size - 1) * length
    channel.count(bytes_sent=others, bytes_received=others, values=message.numel, frame_bytes=length)
    raise_failures(frames, outgoing.failure)
    with channel.timed("decode"):
        total = _empty_sum(message.layout, message.device)
        for rank, frame in enumerate(frames):
            _add(frame, rank, message.layout, total, key.replace(rank=rank))
        if feedback is not None:
            own = _empty_sum(message.layout, message.device)
            _add(frames[channel.rank], channel.rank, message.layout, own, key)
            feedback.keep(outgoing.message, own)
        return total.div_(channel.world_size)


def plain_mean(channel: Channel, values: Tensor) -> Tensor:
    """Average `values` over ranks without encoding: divided first, then summed, as DDP does. Not in place.

    Counted as reduce-scatter and all-gather: all but this rank's own shard, twice.
    """
    n = channel.world_size
    with channel.timed("communicate"):
        mean = channel.link.add(values / n) if values.numel() else values.clone()
    own = values.numel() // n + (channel.rank < values.numel() % n)
    moved = 2 * (values.numel() - own) * values.element_size()
    channel.count(bytes_sent=moved, bytes_received=moved)
    return mean


class _Outgoing:
    """What this rank sends: the message as compensated, and its frame or, in its place, why there is none."""

    frame: Tensor
    failure: Exception | None = None

    def __init__(self, message: Message) -> None:
        self.message = message

    def encode(self, key: Key, observer: Observer | None, feedback: Feedback | None) -> None:
        length = capacity(self.message.layout)
        try:
            if observer is not None:
                observer(self.message, key)
            if feedback is not None:
                self.message = feedback.compensate(self.message)
            self.frame = encode(self.message, key)
            assert self.frame.numel() == length
        except Exception as error:  # the other ranks wait for this rank's bytes: they get the cause
            self.failure = error
            self.frame = failure_frame(error, length).to(self.message.device)


def _empty_sum(layout: Layout, device: torch.device) -> Tensor:
    wide = any(segment.dtype == torch.float64 for segment in layout)
    values = sum(segment.numel for segment in layout)
    return torch.zeros(values, dtype=torch.float64 if wide else torch.float32, device=device)


def _add(frame: Tensor, rank: int, layout: Layout, total: Tensor, key: Key) -> None:
    try:
        accumulate(frame, layout, total, key)
    except FrameError as error:
        raise type(error)(f"frame of rank {rank}: {error}") from error
