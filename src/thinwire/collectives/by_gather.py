"""all_gather: every rank sends its whole frame to every other, and averages them all."""

from __future__ import annotations

from torch import Tensor

from thinwire.collectives.call import Call, zeros
from thinwire.collectives.failure import frames_or_failure, raise_failures
from thinwire.collectives.stages import Stages
from thinwire.types import Message
from thinwire.wire import capacity

__all__ = ["gather_frames", "gather_mean"]


def gather_mean(call: Call, message: Message) -> Stages[Tensor]:
    """The mean over `call.ranks`, flat. One encoding's error; (n - 1) frames sent, n decoded."""
    message, frames = yield from gather_frames(call, message)
    with call.channel.timed("decode"):
        total = zeros(message.layout, message.device)
        for rank, frame in zip(call.ranks, frames):
            call.add(frame, rank, message.layout, total)
        if call.feedback is not None:
            own = zeros(message.layout, message.device)
            call.add(frames[call.index], call.channel.rank, message.layout, own)
            call.feedback.keep(message, own)
        return total.div_(len(call.ranks))


def gather_frames(call: Call, message: Message) -> Stages[tuple[Message, list[Tensor]]]:
    """Encode a message and exchange the frames: what was encoded, and the frames in the order of `call.ranks`."""
    channel, prepared = call.channel, message

    def make() -> list[Tensor]:
        nonlocal prepared
        prepared = call.prepare(message)
        return [call.encode(prepared)]

    with channel.timed("encode"):
        (mine,), failure = frames_or_failure(make, [capacity(message.layout)], message.device)
    yield
    frames = call.spread(mine, [message.layout] * len(call.ranks))
    channel.count(values=message.numel, frame_bytes=mine.numel())
    raise_failures(frames, call.ranks, own=failure)
    return prepared, frames
