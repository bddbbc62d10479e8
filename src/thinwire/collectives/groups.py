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
from thinwire.collectives.stages import Stages
from thinwire.collectives.transport import parent_of
from thinwire.types import Key, Message

__all__ = ["submit"]

T = TypeVar("T")

_channels: WeakKeyDictionary[dist.ProcessGroup, dict[int | None, tuple[Channel, Iterator[int]]]] = WeakKeyDictionary()
_lock = threading.Lock()


def submit(
    group: dist.ProcessGroup | None,
    key: Key | None,
    message: Message,
    job: Callable[[Channel, Key], Stages[T]],
    ranks_per_node: int | None = None,
) -> Future[T]:
    """Run `job` on the group's channel (one for each node size; made at its first use), after all calls before it.

    Args:
        key: None means seed 0, and the number of the call on the channel as step.

    Raises:
        ChannelError: torch.distributed is not initialised, this process is not in `group`, a rank is missing, or
            the channel broke before.
    """
    with _lock:  # numbers and order of calls go together
        channels = _channels.setdefault(parent_of(group), {})
        if ranks_per_node not in channels:
            channels[ranks_per_node] = Channel(group, ranks_per_node), itertools.count()
        channel, numbers = channels[ranks_per_node]
        known = Key(step=next(numbers)) if key is None else key
        return channel.submit(job(channel, known), message.device)
