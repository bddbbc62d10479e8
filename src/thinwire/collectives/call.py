"""One exchange as its algorithms see it: who takes part, under which key, and the steps that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from thinwire.collectives.channel import Channel
from thinwire.collectives.feedback import Feedback, Observer
from thinwire.collectives.transport import Link
from thinwire.errors import FrameError
from thinwire.types import Key, Layout, Message
from thinwire.wire import accumulate, capacity, elastic, encode, plan, trim

__all__ = ["Call", "exchange", "zeros"]


@dataclass(frozen=True, kw_only=True)
class Call:
    """Args:
    channel: this exchange runs on its thread.
    link: between those that take part.
    ranks: their ranks on the channel, in the link's order.
    key: of this rank, not shifted.
    observer, feedback, checked, correlate: see `mean_of_frames`.
    """

    channel: Channel
    link: Link
    ranks: Sequence[int]
    key: Key
    observer: Observer | None = None
    feedback: Feedback | None = None
    checked: bool = True
    correlate: bool = False

    @classmethod
    def among_all(cls, channel: Channel, key: Key, **options: Any) -> Call:
        """Count a call between all ranks of a channel; options as the fields."""
        channel.count(calls=1)
        ranks = range(channel.world_size)
        return cls(channel=channel, link=channel.link, ranks=ranks, key=key.replace(rank=channel.rank), **options)

    @property
    def index(self) -> int:
        """This rank's place among `ranks`."""
        return self.link.rank

    def key_of(self, rank: int) -> Key:
        """The key under which one of `ranks` encodes."""
        key = self.key.replace(rank=rank)
        return key.stratified(self.ranks.index(rank), len(self.ranks)) if self.correlate else key

    def prepare(self, message: Message) -> Message:
        """Show a message to the observer, and let the feedback add to it."""
        if self.observer is not None:
            self.observer(message, self.key)
        return self.compensate(message)

    def compensate(self, message: Message) -> Message:
        return message if self.feedback is None else self.feedback.compensate(message)

    def encode(self, message: Message) -> Tensor:
        """The frame of a message, under this call's key."""
        with self.channel.timed("plan"):
            plans = plan(message)
        with self.channel.timed("encode"):
            return encode(message, self.key_of(self.channel.rank), checked=self.checked, plans=plans)

    def swap(self, outgoing: Sequence[Tensor], limits: Sequence[int], slots: Sequence[int]) -> list[Tensor]:
        """Send a frame to each of `ranks` and receive one from each.

        Args:
            outgoing: uint8, one a rank, on one device.
            limits: most bytes that each of these can have; every rank knows them.
            slots: most bytes of each that arrives.

        Raises:
            ChannelError: a rank is gone.
        """
        assert len(outgoing) == len(limits) == len(slots) == len(self.ranks)
        outgoing_by, slots_by = dict(enumerate(outgoing)), dict(enumerate(slots))
        limits_by, device = dict(enumerate(limits)), outgoing[0].device
        return list(exchange(self.channel, self.link, outgoing_by, limits_by, slots_by, device).values())

    def spread(self, frame: Tensor, layouts: Sequence[Layout]) -> list[Tensor]:
        """Send one frame to all of `ranks` and receive theirs, of these layouts. As `swap`."""
        slots = [capacity(layout) for layout in layouts]
        uneven = len(set(slots)) > 1 or any(elastic(layout) for layout in layouts)
        if uneven:
            return self.swap([frame] * len(slots), [slots[self.index]] * len(slots), slots)
        with self.channel.timed("communicate"):
            frames = self.link.gather(frame)
        others = (len(slots) - 1) * frame.numel()
        self.channel.count(bytes_sent=others, bytes_received=others)
        return list(frames)

    def add(self, frame: Tensor, rank: int, layout: Layout, total: Tensor) -> None:
        """Check a rank's frame and add its values to `total`.

        Raises:
            FrameError: the cause, and whose frame it is.
        """
        try:
            accumulate(frame, layout, total, self.key_of(rank), checked=self.checked)
        except FrameError as error:
            raise type(error)(f"frame of rank {rank}: {error}") from error


def exchange(
    channel: Channel,
    link: Link,
    outgoing: Mapping[int, Tensor],
    limits: Mapping[int, int],
    slots: Mapping[int, int],
    device: torch.device,
) -> dict[int, Tensor]:
    """Send frames to some ranks of a link and receive from some; count the bytes and the time.

    Args:
        outgoing: rank -> frame, on `device`.
        limits: rank -> most bytes that its frame can have.
        slots: rank -> most bytes of what arrives from it. The largest of these and of the limits is the same on all
            ranks.

    Raises:
        ChannelError: a rank is gone.
    """
    with channel.timed("communicate"):
        fitted = {rank: link.fit(frame, limits[rank]) for rank, frame in outgoing.items()}
        largest = max([*limits.values(), *slots.values()])
        arrived = link.exchange(fitted, slots, largest, device)
        frames = {rank: trim(slot) for rank, slot in arrived.items()}
    counted = frames if link.ragged else arrived
    channel.count(
        bytes_sent=sum(part.numel() for rank, part in fitted.items() if rank != link.rank),
        bytes_received=sum(part.numel() for rank, part in counted.items() if rank != link.rank),
    )
    return frames


def zeros(layout: Layout, device: torch.device) -> Tensor:
    """Where frames of this layout are added up: float32 `[values]`, float64 if any segment is."""
    wide = any(segment.dtype == torch.float64 for segment in layout)
    values = sum(segment.numel for segment in layout)
    return torch.zeros(values, dtype=torch.float64 if wide else torch.float32, device=device)
