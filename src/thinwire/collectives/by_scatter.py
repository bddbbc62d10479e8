"""reduce_scatter: each rank averages its shard of the values, and sends the mean to every other.

First leg: encode a frame for each shard's owner, all to all; the owner decodes n frames and averages them. Second leg:
the owner encodes the mean, and every rank decodes n shards. Each rank sends its shards once and its mean n - 1 times,
however many ranks there are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from thinwire.collectives.call import Call, zeros
from thinwire.collectives.failure import frames_or_failure, raise_failures
from thinwire.collectives.shards import Shard, cut
from thinwire.collectives.stages import Stages
from thinwire.schemes import Scheme
from thinwire.types import Layout, Message
from thinwire.wire import capacity

__all__ = ["scatter_mean", "shard_mean"]


def scatter_mean(call: Call, message: Message, second_leg: Scheme | None) -> Stages[Tensor]:
    """The mean over `call.ranks`, flat: of two encodings, each with its own error."""
    shards = cut(message.layout, len(call.ranks))
    first = _FirstLeg(call, message, shards)
    layouts = [shard.under(second_leg) for shard in shards]
    yield
    first.exchange()
    return _second_leg(call, first, shards, layouts)


def shard_mean(call: Call, message: Message) -> Stages[Tensor]:
    """The mean of this rank's shard `cut(message.layout, n)[index]`, back to back: the first leg alone."""
    first = _FirstLeg(call, message, cut(message.layout, len(call.ranks)))
    yield
    first.exchange()
    return first.finish()


class _FirstLeg:
    """Frames of all shards: encoded, then exchanged, then averaged."""

    def __init__(self, call: Call, message: Message, shards: Sequence[Shard]) -> None:
        self.call, self.shards = call, shards
        self.message = message
        self.slots = [capacity(shard.layout) for shard in shards]
        self.received: list[Tensor] = []
        with call.channel.timed("encode"):
            self.sent, self.failure = frames_or_failure(self._encode, self.slots, message.device)

    def _encode(self) -> list[Tensor]:
        self.message = self.call.prepare(self.message)
        return [self.call.encode(shard.of(self.message)) for shard in self.shards]

    def exchange(self) -> None:
        """Send each shard's frame to its owner.

        Raises:
            PeerFailure: a rank could not encode; on all ranks.
            ChannelError: a rank is gone.
        """
        call, slots = self.call, self.slots
        self.received = call.swap(self.sent, slots, [slots[call.index]] * len(slots))
        call.channel.count(values=self.message.numel, frame_bytes=sum(frame.numel() for frame in self.sent))
        raise_failures(self.received, call.ranks, own=self.failure)

    def finish(self) -> Tensor:
        """The mean of this rank's shard; and the feedback's due."""
        call, layout = self.call, self.shards[self.call.index].layout
        with call.channel.timed("decode"):
            total = zeros(layout, self.message.device)
            for rank, frame in zip(call.ranks, self.received):
                call.add(frame, rank, layout, total)
            if call.feedback is not None:
                call.feedback.keep(self.message, self._decode_sent())
            return total.div_(len(call.ranks))

    def _decode_sent(self) -> Tensor:
        flat = zeros(self.message.layout, self.message.device)
        for shard, frame in zip(self.shards, self.sent):
            part = zeros(shard.layout, flat.device)
            self.call.add(frame, self.call.channel.rank, shard.layout, part)
            shard.scatter(part, flat)
        return flat


def _second_leg(call: Call, first: _FirstLeg, shards: Sequence[Shard], layouts: Sequence[Layout]) -> Tensor:
    """Encode this rank's mean, or say why there is none; decode everybody's."""
    device, own = first.message.device, call.index
    back = dataclasses.replace(call, key=call.key.replace(stratum=call.key.stratum + 1), correlate=False)
    mean: Message | None = None

    def make() -> list[Tensor]:
        nonlocal mean
        values = first.finish()
        with call.channel.timed("encode"):
            mean = call.compensate(_message(layouts[own], values))
            return [back.encode(mean)]

    (mine,), failure = frames_or_failure(make, [capacity(layouts[own])], device)
    frames = call.spread(mine, layouts)
    call.channel.count(frame_bytes=mine.numel())
    raise_failures(frames, call.ranks, "average its shard", failure)
    with call.channel.timed("decode"):
        flat = zeros(first.message.layout, device)
        for index, (rank, shard, layout) in enumerate(zip(call.ranks, shards, layouts)):
            part = zeros(layout, device)
            back.add(frames[index], rank, layout, part)
            shard.scatter(part, flat)
            if call.feedback is not None and index == own:
                assert mean is not None
                call.feedback.keep(mean, part)
    return flat


def _message(layout: Layout, mean: Tensor) -> Message:
    parts = mean.split([segment.numel for segment in layout])
    values = [part.to(segment.dtype) for part, segment in zip(parts, layout)]
    return Message(layout, values, mean if mean.dtype.itemsize == 4 else None)
