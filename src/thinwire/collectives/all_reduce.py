"""Average tensors over ranks in one call."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor

from thinwire.collectives.channel import Channel
from thinwire.collectives.exchange import average
from thinwire.schemes import Scheme
from thinwire.types import Key
from thinwire.wire import message_of, restore

__all__ = ["all_reduce"]

_channels: WeakKeyDictionary[dist.ProcessGroup, tuple[Channel, Iterator[int]]] = WeakKeyDictionary()
_lock = threading.Lock()


def all_reduce(
    x: Any, scheme: Scheme | Mapping[str, Scheme], *, group: dist.ProcessGroup | None = None, key: Key | None = None
) -> Any:
    """Average `x` over the ranks of `group` by exchanging frames. Not in place.

    Every rank calls it with the same shapes, dtypes and scheme, in the same order on one group; the first call on a
    group creates a private one, which is a collective call like `torch.distributed.new_group`.

    Args:
        x: a floating-point tensor, a list of them or a mapping name -> tensor, on one device.
        scheme: for all; or, with a mapping, a mapping name -> scheme.
        group: None means all ranks.
        key: which random numbers (its rank is set here), of one seed and step on all ranks. None: seed 0, and the
            number of this call on the group as step.

    Returns:
        New tensors in the structure of `x`, of its shapes, dtypes and device; equal to the bit on all ranks.

    Raises:
        MessageError: `x` cannot be encoded. On this rank, before anything is sent.
        PeerFailure, FrameError: a rank failed to encode, or its frame is not the one expected; on all ranks.
        ChannelError: torch.distributed is not initialised, a rank is gone, or the group's channel broke earlier.
    """
    message = message_of(x, scheme)
    channel, steps = _channel(group)
    with _lock:  # number and order of calls agree
        chosen = Key(step=next(steps)) if key is None else key
        mean = average(channel, message, chosen)
    return restore(x, mean.wait())


def _channel(group: dist.ProcessGroup | None) -> tuple[Channel, Iterator[int]]:
    """The channel of a group, made at its first use, and the numbers of the calls on it."""
    if group is None and dist.is_available():
        group = dist.group.WORLD
    with _lock:
        found = _channels.get(group) if isinstance(group, dist.ProcessGroup) else None
        if found is None:
            found = Channel(group), itertools.count()
            _channels[group] = found
        return found
