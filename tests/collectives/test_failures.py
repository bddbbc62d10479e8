"""What the other ranks see when one cannot encode, altered bytes, fails by itself, is killed or leaves."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import thinwire
from thinwire.collectives import Channel, all_reduce, average, call
from thinwire.errors import AlteredFrameError, ChannelError, PeerFailure
from thinwire.types import Key
from thinwire.wire import compose, encode
from workers import Workers, join, new_group


def attempt(channel: Channel, values: int = 300) -> str:
    """The kind and text of the error that averaging ends with."""
    message, _ = compose(torch.ones(values), thinwire.ORQ(levels=3))
    with pytest.raises(thinwire.ThinwireError) as caught:
        average(channel, message, Key()).wait()
    return f"{type(caught.value).__name__}: {caught.value}"


def encode_job(rank: int, n: int, failing: list[int], text: str, values: int) -> tuple[str, str]:
    channel = Channel()

    def broken(*_: object, **__: object) -> torch.Tensor:
        raise MemoryError(f"{text} {rank}")

    with pytest.MonkeyPatch.context() as patch:
        if rank in failing:
            patch.setattr(call, "encode", broken)
        first = attempt(channel, values)
    return first, attempt(channel, values)


@pytest.mark.parametrize("values", [0, 300])
def test_a_rank_that_cannot_encode_is_named_by_all(four: Workers, values: int) -> None:
    expected = "PeerFailure: rank 2 could not encode: MemoryError: no room on 2"
    assert four.run(encode_job, [2], "no room on", values) == [(expected, expected)] * 4


def test_all_ranks_that_cannot_encode_are_named(team: Workers) -> None:
    everyone = list(range(len(team.processes)))
    for first, _ in team.run(encode_job, everyone, "full", 300):
        assert all(f"rank {r} could not encode: MemoryError: full {r}" in first for r in everyone)


def test_a_long_cause_is_cut_to_the_frame(four: Workers) -> None:
    results = four.run(encode_job, [1], "ä" * 10_000, 0)
    assert results[0][0].startswith("PeerFailure: rank 1 could not encode: MemoryError: ää")
    assert len(results[0][0]) < 200
    assert all(result == results[0] for result in results)


def altered_job(rank: int, n: int) -> str:
    channel = Channel()

    def flipped(*args: object, **options: bool) -> torch.Tensor:
        frame = encode(*args, **options)  # type: ignore[arg-type]
        frame[-20] ^= 4
        return frame

    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(call, "encode", flipped)
        return attempt(channel)


def test_an_altered_frame_is_refused_on_all_ranks_alike(four: Workers) -> None:
    results = four.run(altered_job)
    assert results[0].startswith(f"{AlteredFrameError.__name__}: frame of rank 1: ")
    assert all(result == results[0] for result in results)


def alone_job(rank: int, n: int) -> str:
    """Rank 2 fails after its bytes have gone out: only it knows. The others learn of it at their next exchange."""
    channel = Channel()
    message, _ = compose(torch.ones(300), thinwire.ORQ(levels=3))

    def broken(*_: object, **__: object) -> None:
        raise MemoryError("nothing left")

    with pytest.MonkeyPatch.context() as patch:
        if rank == 2:
            patch.setattr(call, "accumulate", broken)
        else:
            average(channel, message, Key()).wait()
        return attempt(channel)


def test_a_failure_of_one_rank_alone_reaches_all_with_its_cause(four: Workers) -> None:
    start = time.monotonic()
    assert four.run(alone_job) == ["ChannelError: rank 2 failed: MemoryError: nothing left"] * 4
    assert time.monotonic() - start < 10


def late_job(rank: int, n: int) -> str:
    """Rank 0 lives but does not come: the time limit is that of the group that the program made."""
    channel = Channel(new_group(timeout=timedelta(seconds=1)))
    said = attempt(channel) if rank else ""
    channel.close()
    return said


def test_a_rank_that_hangs_ends_the_others_at_the_groups_time_limit(four: Workers) -> None:
    start = time.monotonic()
    assert all("lost contact" in said for said in four.run(late_job)[1:])
    assert time.monotonic() - start < 10


def absent_job(rank: int, n: int) -> str:
    group = new_group(timeout=timedelta(seconds=1))
    if rank == 0:
        return ""
    with pytest.raises(ChannelError) as caught:
        Channel(group)
    return str(caught.value)


def test_a_channel_that_not_all_ranks_make_is_a_clear_error() -> None:
    team = Workers(2)
    assert "not all ranks came" in team.run(absent_job)[1]
    team.stop()


def forgotten_job(rank: int, n: int) -> None:
    def threads() -> int:
        return sum(thread.name == "thinwire" for thread in threading.enumerate())

    before = threads()
    group = dist.new_group()
    all_reduce(torch.ones(4), thinwire.ORQ(), group=group)
    assert threads() == before + 1
    dist.destroy_process_group(group)
    del group
    gc.collect()
    deadline = time.monotonic() + 10
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == before


def test_a_channel_ends_with_its_group(team: Workers) -> None:
    team.run(forgotten_job)


def broken_for_good_job(rank: int, n: int) -> None:
    group = new_group()
    with pytest.MonkeyPatch.context() as patch:
        if rank == 0:
            patch.delattr(call, "encode")
        with pytest.raises(PeerFailure) as first:
            all_reduce(torch.ones(10), thinwire.ORQ(), group=group, algorithm="all_gather")
    with pytest.raises(PeerFailure) as second:
        all_reduce(torch.ones(10), thinwire.ORQ(), group=group)
    assert str(first.value) == str(second.value)
    assert (first.value.__cause__ is not None) == (rank == 0)
    fresh = all_reduce(torch.ones(10), thinwire.NoCompression(), group=new_group())
    assert fresh.sum() == 10  # other groups are not touched


def test_a_broken_channel_refuses_further_work_with_the_first_cause(four: Workers) -> None:
    four.run(broken_for_good_job)


def die_or_tell(rank: int, count: int, store: str, pipe: Connection) -> None:
    join(rank, count, store)
    x = torch.ones(100_000)
    all_reduce(x, thinwire.ORQ())
    pipe.send("ready")
    if pipe.recv() == "die":
        os.kill(os.getpid(), 9)
    try:
        while True:
            all_reduce(x, thinwire.ORQ())
    except ChannelError as error:
        pipe.send(str(error))
    pipe.recv()  # stay alive: the others must not need this process to end


@pytest.mark.parametrize("victim", [0, 2])
def test_when_a_rank_is_killed_the_others_end_at_once(victim: int) -> None:
    """Rank 0 is the harder case where it also keeps the store."""
    team = Workers(4, die_or_tell)
    assert [team.answer(r) for r in range(4)] == ["ready"] * 4
    for rank, pipe in enumerate(team.pipes):
        pipe.send("die" if rank == victim else "go")
    start = time.monotonic()
    for rank in {0, 1, 2, 3} - {victim}:
        assert "lost contact with another rank" in team.answer(rank)
    assert time.monotonic() - start < 10
    for process in team.processes:
        process.kill()
    team.stop()


LEAVE = """
import os, sys, time
import torch, torch.distributed as dist, thinwire
from thinwire.collectives import Channel, all_reduce, average
from thinwire.types import Key
from thinwire.wire import compose

x = torch.ones(5000)
message, _ = compose(x, thinwire.ORQ())

def leave(way, rank):
    channel = Channel()
    assert torch.equal(all_reduce(x, thinwire.ORQ()), x)
    if way == "destroyed":
        dist.destroy_process_group()
    elif way == "raised" and rank == 1:
        raise SystemExit(3)
    elif way == "raised":
        try:
            all_reduce(x, thinwire.ORQ())
        except thinwire.errors.ChannelError:
            raise SystemExit(3)
    elif way == "stuck" and rank == 1:
        average(channel, message, Key())  # the other rank never joins in
    elif way == "stuck":
        time.sleep(float(sys.argv[2]))
        os._exit(0)

def run():
    thinwire.warmup(thinwire.ORQ())
    ranks = {}
    for number, way in enumerate(sys.argv[3:]):
        for rank in range(2):
            pid = os.fork()  # a child leaves through the interpreter's own end
            if pid == 0:
                store = f"file://{sys.argv[1]}/{number}"
                dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
                return leave(way, rank)
            ranks[pid] = f"{way} {rank}"
    for _ in range(len(ranks)):
        pid, status = os.wait()
        print(ranks[pid], os.waitstatus_to_exitcode(status))

run()
"""


def test_the_interpreter_ends_cleanly_without_close(tmp_path: Path) -> None:
    """Also when an exchange is under way, and also when the other rank leaves at that very moment."""
    ways = ["plain", "destroyed", "raised", "stuck", "stuck"]
    command = [sys.executable, "-W", "error", "-c", LEAVE, str(tmp_path), "5.5", *ways]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    status = {"plain": 0, "destroyed": 0, "raised": 3, "stuck": 0}
    expected = sorted(f"{way} {rank} {status[way]}" for way in ways for rank in range(2))
    assert sorted(done.stdout.splitlines()) == expected, done.stderr
    assert done.stderr == ""
