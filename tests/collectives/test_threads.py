"""Threads of the transport and ours: none is left by a channel that was closed, forgotten or broken."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.collectives import Channel, all_reduce, average, call
from thinwire.errors import ChannelError
from thinwire.types import Key
from thinwire.wire import compose
from workers import Workers

TIMES = 2
SETTLED = 5.0  # seconds: a broken channel leaves its group after two


def two_steps(channel: Channel) -> None:
    message, _ = compose(torch.ones(100), thinwire.ORQ())
    for step in range(2):
        average(channel, message, Key(step=step)).wait()


def closed(rank: int) -> None:
    channel = Channel()
    two_steps(channel)
    channel.close()


def closed_with_nodes(rank: int) -> None:
    Channel(None, 2).close()


def wrong_nodes(rank: int) -> None:
    with pytest.raises(ChannelError, match="do not form nodes of 3"):
        Channel(None, 3)


def forgotten(rank: int) -> None:
    two_steps(Channel())


def group_destroyed(rank: int) -> None:
    group = dist.new_group()
    for algorithm, size in (("all_gather", None), ("hierarchical", 2)):
        all_reduce(torch.ones(100), thinwire.ORQ(), group=group, algorithm=algorithm, ranks_per_node=size)
    dist.destroy_process_group(group)


def broken(rank: int, name: str) -> None:
    channel = Channel()

    def raising(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(call, name, raising)
        with pytest.raises(ChannelError, match="rank 1"):
            two_steps(channel)


def told_by_its_frame(rank: int) -> None:
    broken(rank, "encode")


def told_by_the_store(rank: int) -> None:
    broken(rank, "accumulate")


def hooked(rank: int, failing: bool, close: bool) -> None:
    model = DistributedDataParallel(torch.nn.Linear(50, 50))
    handle = thinwire.ddp.register(model, thinwire.ORQ())

    def observe(*_: object) -> None:
        if failing and rank == 1:
            raise MemoryError("no room")

    handle.observer = observe
    try:
        model(torch.ones(3, 50)).sum().backward()
    except ChannelError:
        assert failing
    if close:
        handle.close()


def handle_closed(rank: int) -> None:
    hooked(rank, failing=False, close=True)


def handle_forgotten(rank: int) -> None:
    hooked(rank, failing=False, close=False)


def handle_forgotten_after_a_failure(rank: int) -> None:
    hooked(rank, failing=True, close=False)


def count_job(rank: int, n: int, use: Callable[[int], None]) -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    use(rank)  # what is started once, and stays
    dist.barrier()
    gc.collect()
    before = threads()
    for _ in range(TIMES):
        use(rank)
    gc.collect()
    assert _least(threads, before) <= before


def _least(count: Callable[[], int], wanted: int) -> int:
    """The count when it is no more than wanted, or does not fall any further."""
    deadline = time.monotonic() + SETTLED
    while (now := count()) > wanted and time.monotonic() < deadline:
        time.sleep(0.02)
    return now


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads as Linux lists them")
@pytest.mark.parametrize(
    "use",
    [
        closed,
        closed_with_nodes,
        wrong_nodes,
        forgotten,
        group_destroyed,
        told_by_its_frame,
        told_by_the_store,
        handle_closed,
        handle_forgotten,
        handle_forgotten_after_a_failure,
    ],
    ids=lambda use: use.__name__,
)
def test_no_thread_is_left_of_a_channel_that_is(four: Workers, use: Callable[[int], None]) -> None:
    four.run(count_job, use)
