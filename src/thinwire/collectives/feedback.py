"""What an exchange tells its caller, and what the caller may change before values are encoded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from thinwire.types import Key, Message

__all__ = ["Feedback", "Observer"]

Observer = Callable[[Message, Key], None]


class Feedback(Protocol):
    """Keeps what an encoding lost, and adds it to what is encoded next. Called on the channel's thread.

    Each encoding of an exchange makes one pair of calls. Segments say what they are: a rank's own values come with
    the layout of the message; the mean that a shard's owner encodes comes with the shard's pieces, each named like
    its segment and of another `stream` (see `thinwire.collectives.shards`).
    """

    def compensate(self, message: Message) -> Message:
        """The message to encode in this one's place, of the same layout."""
        ...

    def keep(self, message: Message, decoded: Tensor) -> None:
        """Take note of what was sent. Called when the frames have reached the other ranks.

        Args:
            message: the compensated one.
            decoded: what all ranks decode it to, flat: float32 or float64 `[message.numel]`; it may be written over.
        """
        ...
