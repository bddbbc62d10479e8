"""Averages over ranks: of encoded messages, and plain. Run on a channel's thread."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.futures import Future

from thinwire.collectives.channel import Channel
from thinwire.collectives.failure import failure_frame, raise_failures
from thinwire.errors import FrameError
from thinwire.types import Key, Message
from thinwire.wire import accumulate, capacity, encode

__all__ = ["average", "mean_of_frames", "plain_mean"]

Observer = Callable[[Message, Key], None]


def average(channel: Channel, message: Message, key: Key) -> Future[Tensor]:
    """Average a message over the channel's ranks. See `mean_of_frames`."""
    return channel.submit(lambda: mean_of_frames(channel, message, key), message.device)


def mean_of_frames(channel: Channel, message: Message, key: Key, observer: Observer | None = None) -> Tensor:
    """Exchange frames and average what they decode to, this rank's own included.

    Args:
        message: of one layout on all ranks.
        key: of one seed and step on all ranks; its rank is set here.
        observer: called with `message` and the key before it is encoded; its failure is this rank's.

    Returns:
        float32 `[message.numel]` (float64 if any segment is): the frames' values added in rank order, divided
        by the number of ranks. Equal to the bit on all ranks.

    Raises:
        PeerFailure: a rank could not encode.
        FrameError: a frame was altered, or is not the one expected. Both on all ranks alike.
        ChannelError: a rank is gone.
    """
    frames = _exchange(channel, message, key.replace(rank=channel.rank), observer)
    wide = any(segment.dtype == torch.float64 for segment in message.layout)
    total = torch.zeros(message.numel, dtype=torch.float64 if wide else torch.float32, device=message.device)
    for rank, frame in enumerate(frames):
        try:
            accumulate(frame, message.layout, total, key.replace(rank=rank))
        except FrameError as error:
            raise type(error)(f"frame of rank {rank}: {error}") from error
    return total.div_(channel.world_size)


def plain_mean(channel: Channel, values: Tensor) -> Tensor:
    """Average `values` over ranks without encoding: divided first, then summed, as DDP does. Not in place.

    Counted as reduce-scatter and all-gather: all but this rank's own shard, twice.
    """
    n = channel.world_size
    mean = channel.link.add(values / n) if values.numel() else values.clone()
    own = values.numel() // n + (channel.rank < values.numel() % n)
    moved = 2 * (values.numel() - own) * values.element_size()
    channel.count(bytes_sent=moved, bytes_received=moved)
    return mean


def _exchange(channel: Channel, message: Message, key: Key, observer: Observer | None) -> Tensor:
    length = capacity(message.layout)
    failure: Exception | None = None
    try:
        if observer is not None:
            observer(message, key)
        mine = encode(message, key)
        assert mine.numel() == length
    except Exception as error:  # the other ranks wait for this rank's bytes: they get the cause
        failure = error
        mine = failure_frame(error, length).to(message.device)
    frames = channel.link.gather(mine)
    others = (channel.world_size - 1) * length
    channel.count(bytes_sent=others, bytes_received=others, values=message.numel, frame_bytes=length)
    raise_failures(frames, failure)
    return frames
