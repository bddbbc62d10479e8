"""Average tensors over ranks in one call."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from weakref import WeakKeyDictionary

import torch.distributed as dist
from torch import Tensor

from thinwire.collectives.channel import Channel
from thinwire.collectives.exchange import average, check_algorithm
from thinwire.collectives.transport import parent_of
from thinwire.schemes import Scheme
from thinwire.types import Key, Layout
from thinwire.wire import Shape, compose
from thinwire.wire.message import Schemes, Tensors

__all__ = ["all_reduce"]

_channels: WeakKeyDictionary[dist.ProcessGroup, tuple[Channel, Iterator[int]]] = WeakKeyDictionary()
_lock = threading.Lock()


def all_reduce(
    x: Tensors,
    scheme: Schemes,
    *,
    group: dist.ProcessGroup | None = None,
    key: Key | None = None,
    algorithm: str = "auto",
    second_leg: Scheme | None = None,
) -> Tensor | list[Tensor] | dict[str, Tensor]:
    """Average `x` over the ranks of `group` by exchanging frames. Not in place.

    Every rank calls it with the same shapes, dtypes and scheme, in the same order on one group. The first call on
    a group creates a private one, which is a collective call like `torch.distributed.new_group`.

    Args:
        x: a floating-point tensor, a list of them or a mapping name -> tensor, on one device.
        scheme: for all; or, with a mapping, a mapping name -> scheme.
        group: None means all ranks.
        key: which random numbers, of one seed and step on all ranks (its rank is set here). None: seed 0, and
            the number of this call on the group as step.
        algorithm: "all_gather", "reduce_scatter" or "auto": see docs/collectives.md. On all ranks the same.
        second_leg: the scheme for the mean on its way back from a shard's owner; None: `scheme`.

    Returns:
        New tensors in the structure of `x`, of its shapes, dtypes and device; equal to the bit on all ranks.

    Raises:
        MessageError, SchemeError: `x` cannot be encoded, or there is no such algorithm. On this rank, before anything
            is sent.
        PeerFailure, FrameError: a rank failed to encode, or its frame is not the one expected; on all ranks.
        ChannelError: torch.distributed is not initialised, a rank is gone, or the group's channel broke before.
    """
    message, shape = compose(x, scheme)
    channel, steps = _channel(group)
    check_algorithm(algorithm, second_leg, channel.world_size)
    with _lock:  # numbers and order of calls go together
        key = Key(step=next(steps)) if key is None else key
        future = average(channel, message, key, algorithm, second_leg)
    return _restore(future.wait(), message.layout, shape)


def _restore(mean: Tensor, layout: Layout, shape: int) -> Tensor | list[Tensor] | dict[str, Tensor]:
    parts = mean.split([segment.numel for segment in layout])
    tensors = [part.to(s.dtype, copy=True).reshape(s.shape) for part, s in zip(parts, layout)]
    if shape == Shape.MAPPING:
        return {segment.name: tensor for segment, tensor in zip(layout, tensors)}
    return tensors if shape == Shape.LIST else tensors[0]


def _channel(group: dist.ProcessGroup | None) -> tuple[Channel, Iterator[int]]:
    """The channel of a group, made at its first use, and the numbers of the calls on it."""
    with _lock:
        group = parent_of(group)
        if group not in _channels:
            _channels[group] = Channel(group), itertools.count()
        return _channels[group]
