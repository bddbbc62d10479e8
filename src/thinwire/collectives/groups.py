"""One channel for each process group that thinwire's own collectives are called with."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import TypeVar
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch.futures import Future

from thinwire.collectives.channel import Channel
from thinwire.collectives.transport import parent_of
from thinwire.types import Key, Message

__all__ = ["channel_of", "submit"]

T = TypeVar("T")

_channels: WeakKeyDictionary[dist.ProcessGroup, tuple[Channel, Iterator[int]]] = WeakKeyDictionary()
_lock = threading.Lock()


def channel_of(group: dist.ProcessGroup | None) -> Channel:
    """The channel of a group, made at its first use.

    Raises:
        ChannelError: torch.distributed is not initialised, this process is not in `group`, or a rank is missing.
    """
    with _lock:
        group = parent_of(group)
        if group not in _channels:
            _channels[group] = Channel(group), itertools.count()
        return _channels[group][0]


def submit(
    group: dist.ProcessGroup | None, key: Key | None, message: Message, job: Callable[[Channel, Key], T]
) -> Future[T]:
    """Run `job` on the group's channel, after all calls before it. Without a key: seed 0, the call's number as step."""
    channel = channel_of(group)
    with _lock:  # numbers and order of calls go together
        if key is None:
            key = Key(step=next(_channels[parent_of(group)][1]))
        return channel.submit(lambda: job(channel, key), message.device)
