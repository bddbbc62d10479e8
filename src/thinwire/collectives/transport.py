"""A process group of our own, and the few collectives that frames need, by one name from torch 2.6 on."""

from __future__ import annotations

import contextlib
import functools
import re
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d as c10d
from torch.nn.functional import pad

from thinwire.errors import ChannelError

__all__ = ["Link", "across_nodes", "parent_of"]

_FAULT = "thinwire/fault"
_SLICE = timedelta(milliseconds=20)  # of waiting, until what came meanwhile is seen to; each costs 0.3 ms
# torch 2.14 renamed it; the old name warns there.
_all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_all_to_all: Callable[..., Any] = dist.all_to_all_single


class Link:
    """A private process group over the ranks of `group` (None: all ranks), used from one thread at a time.

    Creating one is a collective call: every rank of `group` makes it, in the same order as its other groups.

    Args:
        parts: of the members of `group`, by their numbers in the world: each of these lists gets a link of its own, and
            this rank that of its list. None: there is one list.

    Raises:
        ChannelError: torch.distributed is not initialised, this process is not in `group`, or a rank is missing.
    """

    most = 1 << 30  # bytes that one collective of the transport moves on a rank; more go in several

    def __init__(self, group: dist.ProcessGroup | None = None, parts: list[list[int]] | None = None) -> None:
        parent = parent_of(group)
        members = [dist.get_process_group_ranks(parent)] if parts is None else parts
        self._group: dist.ProcessGroup | None = _private(members, parent)
        self.rank = dist.get_rank(self._group)
        self.world_size = dist.get_world_size(self._group)
        self._backends = dict(pair.split(":") for pair in dist.get_backend_config(self._group).split(","))
        self.meanwhile: Callable[[], None] = lambda: None  # called while an exchange is under way, again and again
        self._given_up: tuple[Any, ...] | None = None
        self._store = c10d._get_process_group_store(self._group)

    @property
    def group(self) -> dist.ProcessGroup:
        """The process group itself.

        Raises:
            ChannelError: the link was dropped.
        """
        group = self._group  # another thread may drop it
        if group is None:
            raise ChannelError("this channel is closed")
        return group

    def device_for(self, device: torch.device) -> torch.device:
        """Where the bytes of a tensor on `device` must lie to be sent: there, if the backend reaches it."""
        if self._backends.get(device.type, "gloo") != "gloo":
            return device
        return torch.device("cpu" if "cpu" in self._backends else next(iter(self._backends)))

    def gather(self, mine: Tensor) -> Tensor:
        """Every rank's bytes, in rank order.

        Args:
            mine: contiguous uint8 `[length]`, of one length on all ranks.

        Returns:
            uint8 `[world_size, length]` on the device of `mine`.

        Raises:
            ChannelError: another rank is gone, or the group was closed.
        """
        if self.world_size == 1:
            return mine[None]
        pieces = [self._gather(piece) for piece in mine.to(self.device_for(mine.device)).split(self._share)]
        rows = pieces[0] if len(pieces) == 1 else torch.cat(pieces, dim=1)
        return rows.to(mine.device)

    def _gather(self, mine: Tensor) -> Tensor:
        rows = mine.new_empty(self.world_size * mine.numel())
        self._carry(functools.partial(_all_gather, rows, mine), rows, mine)
        return rows.view(self.world_size, -1)

    @property
    def _share(self) -> int:
        """The part of `most` that one rank's bytes may take in a collective."""
        return max(1, self.most // self.world_size)

    @property
    def ragged(self) -> bool:
        """Whether `exchange` may send less than the receiver has room for: gloo may, others want equal lengths."""
        return set(self._backends.values()) == {"gloo"}

    def fit(self, frame: Tensor, limit: int) -> Tensor:
        """A frame of at most `limit` bytes as `exchange` must be given it: padded unless short ones may be sent, and
        then to a byte at least in each of the collectives that its limit takes."""
        least = (limit - 1) // self._share * self._share + 1 if self.ragged else limit
        return pad(frame, (0, max(0, least - frame.numel())))

    def exchange(
        self, outgoing: Mapping[int, Tensor], slots: Mapping[int, int], largest: int, device: torch.device
    ) -> dict[int, Tensor]:
        """Send bytes to some ranks while receiving from some. Every rank of the group makes the call.

        Args:
            outgoing: rank -> contiguous uint8, never empty; see `fit`.
            slots: rank -> most bytes that arrive from it.
            largest: most bytes that any rank may send another here; the same on all ranks.
            device: where `outgoing` lies, and what arrives shall.

        Returns:
            rank -> uint8 `[slot]`, of which the rest is undefined where less was sent.

        Raises:
            ChannelError: another rank is gone, or the group was closed.
        """
        if self.world_size == 1:
            return {rank: outgoing[rank] for rank in slots}
        share = self._share
        if largest <= share:
            return self._exchange(outgoing, slots, device)
        arrived = {rank: torch.empty(slot, dtype=torch.uint8, device=device) for rank, slot in slots.items()}
        for at in range(0, largest, share):
            parts = {rank: frame[at : at + share] for rank, frame in outgoing.items() if frame.numel() > at}
            room = {rank: min(slot - at, share) for rank, slot in slots.items() if slot > at}
            for rank, piece in self._exchange(parts, room, device).items():
                arrived[rank][at : at + piece.numel()] = piece
        return arrived

    def _exchange(
        self, outgoing: Mapping[int, Tensor], slots: Mapping[int, int], device: torch.device
    ) -> dict[int, Tensor]:
        room = dict(slots)
        if self.rank in outgoing:  # gloo copies these itself, and wants equal lengths
            room[self.rank] = outgoing[self.rank].numel()
        wire_device = self.device_for(device)
        parts = [outgoing[rank] for rank in sorted(outgoing)]
        wire = torch.cat(parts).to(wire_device) if parts else torch.empty(0, dtype=torch.uint8, device=wire_device)
        rows = wire.new_empty(sum(room.values()))
        every = range(self.world_size)
        sent = [outgoing[rank].numel() if rank in outgoing else 0 for rank in every]
        self._carry(functools.partial(_all_to_all, rows, wire, [room.get(rank, 0) for rank in every], sent), rows, wire)
        return dict(zip(sorted(room), rows.to(device).split([room[rank] for rank in sorted(room)])))

    def add(self, values: Tensor) -> Tensor:
        """The sum of `values` (contiguous, any shape) over all ranks; may be written over `values`.

        Raises:
            ChannelError: another rank is gone, or the group was closed.
        """
        if self.world_size == 1:
            return values
        wire = values.to(self.device_for(values.device))
        for piece in wire.view(-1).split(max(1, self.most // wire.element_size())):
            self._carry(functools.partial(dist.all_reduce, piece), piece)
        return wire.to(values.device)

    def report(self, fault: str) -> None:
        """Tell the other ranks what went wrong here, if the store still runs. The first report stays."""
        with contextlib.suppress(RuntimeError):
            self._store.compare_set(_FAULT, "", fault)

    def reported(self) -> str | None:
        """What a rank reported before it left, if one did and the store still runs."""
        with contextlib.suppress(RuntimeError):
            return self._store.get(_FAULT).decode() if self._store.check([_FAULT]) else None
        return None

    def drop(self) -> None:
        """Leave the group, so that its connections close and no other rank waits for this one."""
        group, self._group = self._group, None
        if group is None:
            return
        backends = [group._get_backend(device) for device in group._device_types]
        if hasattr(group, "abort"):
            group.abort()
        with contextlib.suppress(ValueError):  # the program has destroyed all groups itself
            dist.destroy_process_group(group)
        # Freed after the group, a backend lets go of the interpreter while it waits for its threads, which may need it.
        del group, backends

    def linger(self) -> None:
        """Stay here for good if an exchange was given up: the transport may still write to its buffers, and
        freeing its group would wait for the other ranks."""
        if self._given_up is not None:
            threading.Event().wait()

    def _carry(self, collective: Callable[..., Any], *tensors: Tensor) -> None:
        """Run a collective on its `tensors`, which stay alive until the transport has finished with them."""
        group = self.group
        try:
            work = collective(group=group, async_op=True)
            if tensors[0].device.type == "cpu":
                self._watch(work, group, tensors)
            else:
                self.meanwhile()
            work.wait()
            return
        except RuntimeError as error:
            cause = re.sub(r"^\[/\S+\] ", "", str(error))  # not the transport's own source file and line
        # Raised outside the handler: a chained traceback would keep the group, hence its sockets, alive.
        raise ChannelError(f"lost contact with another rank: {cause}")

    def _watch(self, work: dist.Work, group: dist.ProcessGroup, tensors: tuple[Tensor, ...]) -> None:
        """Return when the work is done or has failed; give it up when the link is dropped meanwhile.

        A thread that is blocked in the transport while the interpreter ends can bring the process down.
        """
        while not work.is_completed():
            self.meanwhile()
            with contextlib.suppress(RuntimeError):  # the slice is over, or the work failed: asked for later
                work.wait(_SLICE)
            if self._group is None and not work.is_completed():
                self._given_up = work, group, tensors
                raise ChannelError("closed while waiting for the other ranks")


def parent_of(group: object) -> dist.ProcessGroup:
    """The group that is meant: `group`, or that of all ranks.

    Raises:
        ChannelError: torch.distributed is not initialised, or this process is not in `group`.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise ChannelError("torch.distributed is not initialised: call its init_process_group() first")
    chosen = dist.group.WORLD if group is None else group
    if not isinstance(chosen, dist.ProcessGroup) or dist.get_rank(chosen) < 0:
        raise ChannelError(f"this process is not a member of the process group {group!r}")
    return chosen


def across_nodes(link: Link, ranks_per_node: int) -> Link:
    """A link among the ranks that have this rank's place in their nodes.

    Raises:
        ChannelError: the link's ranks cannot be shared out so.
    """
    ranks = dist.get_process_group_ranks(link.group)
    if ranks_per_node < 1 or len(ranks) % ranks_per_node:
        raise ChannelError(f"{len(ranks)} ranks do not form nodes of {ranks_per_node}: set ranks_per_node to a divisor")
    return Link(link.group, [ranks[place::ranks_per_node] for place in range(ranks_per_node)])


def _private(parts: list[list[int]], group: dist.ProcessGroup) -> dist.ProcessGroup:
    """A new group of that list of ranks which this one is in, with the time limit of `group`.

    If the lists make up the world, every rank makes all their groups. Otherwise it makes its own, and those inside
    synchronize among themselves: older versions of torch then name it after how many groups a rank has, and cannot
    form it where that differs.
    """
    own = next(part for part in parts if dist.get_rank() in part)
    local = sum(map(len, parts)) < dist.get_world_size()
    new_group = functools.partial(
        dist.new_group, timeout=_timeout(group), use_local_synchronization=local, group_desc="thinwire"
    )
    try:
        made = {part[0]: new_group(part) for part in ([own] if local else parts)}
        copy = parent_of(made[own[0]])
        if "gloo" in dist.get_backend_config(copy):
            dist.barrier(copy)  # a rank that leaves at once would break the connections that others still make
    except RuntimeError as error:
        raise ChannelError(f"not all ranks came to form a private process group: {error}") from error
    return copy


def _timeout(group: dist.ProcessGroup) -> timedelta | None:
    """The time limit that the program chose for `group`; new groups do not inherit it."""
    backend = group._get_backend(group._device_types[0])
    return getattr(getattr(backend, "options", None), "_timeout", None)
