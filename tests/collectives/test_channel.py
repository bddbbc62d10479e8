"""The channel's thread: order, context, and what becomes of failing jobs."""

from __future__ import annotations

import contextvars
import threading
import time
import types

import pytest
import torch
import torch.distributed as dist

from thinwire.collectives import Channel, Stages
from thinwire.collectives import channel as channel_module
from thinwire.errors import ChannelError
from workers import Workers, workers

chosen: contextvars.ContextVar[str] = contextvars.ContextVar("chosen", default="nothing")


def order_job(rank: int, n: int) -> None:
    channel = Channel()
    done: list[int] = []

    def work(i: int) -> int:
        time.sleep(0.001 * (i % 3))
        done.append(i)
        return threading.get_ident()

    futures = [channel.submit(lambda i=i: work(i)) for i in range(30)]
    assert len({future.wait() for future in futures} - {threading.get_ident()}) == 1
    assert done == list(range(30))
    channel.close()


def test_jobs_run_one_by_one_in_order_on_one_other_thread(team: Workers) -> None:
    team.run(order_job)


def timed_job(rank: int, n: int) -> None:
    channel = Channel()
    ticks = iter([10.0, 11.0, 13.0, 14.5, 15.0, 20.0, 20.5, 30.0])  # the clock, each time that it is asked
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel_module, "time", types.SimpleNamespace(perf_counter=lambda: next(ticks)))
        with channel.timed("encode"):  # 10 to 20, less 2.5
            with channel.timed("plan"):  # 11 to 13, and 14.5 to 15
                pass
            with pytest.raises(ZeroDivisionError), channel.timed("plan"):
                raise ZeroDivisionError
        with channel.timed("decode"):
            pass
    channel.close()
    assert (channel.traffic.plan_seconds, channel.traffic.encode_seconds) == (2.5, 7.5)
    assert channel.traffic.decode_seconds == 9.5


def test_time_within_a_stage_of_another_stage_counts_once() -> None:
    workers(1).run(timed_job)


def early_job(rank: int, n: int) -> list[str]:
    """Rank 1 does not come to the exchange of job 0 before job 1, submitted later, has begun on rank 0."""
    channel, under_way, token, log = Channel(), threading.Event(), torch.zeros(1), []

    def stages(number: int) -> Stages[int]:
        log.append(f"encode {number}")
        if number == 1 and rank == 0:
            dist.send(token, 1)
        if number == 3:
            raise MemoryError("no room")
        yield
        if number == 0:
            under_way.set()
            if rank == 1:
                dist.recv(token, 0)
        rows = channel.link.gather(torch.full((5,), number + rank, dtype=torch.uint8))
        log.append(f"decode {number}")
        return int(rows.sum())

    futures = [channel.submit(stages(0))]
    under_way.wait()
    futures += [channel.submit(stages(number)) for number in range(1, 4)]
    for number, future in enumerate(futures[:3]):
        assert future.wait() == 5 * (n * number + sum(range(n)))
    with pytest.raises(ChannelError, match="failed: MemoryError: no room"):
        futures[3].wait()
    return log


def test_the_next_job_encodes_while_one_waits_for_the_transport() -> None:
    logs = workers(2).run(early_job)
    assert logs[0][:3] == ["encode 0", "encode 1", "decode 0"]
    for log in logs:
        assert [said for said in log if "encode" in said] == ["encode 0", "encode 1", "encode 2", "encode 3"]
        assert [said for said in log if "decode" in said] == ["decode 0", "decode 1", "decode 2"]


def context_job(rank: int, n: int) -> None:
    channel = Channel()
    token = chosen.set("something")
    future = channel.submit(chosen.get)
    chosen.reset(token)
    assert future.wait() == "something"
    assert channel.submit(chosen.get).wait() == "nothing"
    channel.close()


def test_a_job_runs_in_its_submitters_context(team: Workers) -> None:
    team.run(context_job)


def failing_job(rank: int, n: int) -> None:
    channel = Channel()
    ran: list[str] = []
    gate = threading.Event()
    waiting = channel.submit(gate.wait)
    failing = channel.submit(lambda: 1 // 0)
    behind = channel.submit(lambda: ran.append("behind"))
    gate.set()
    assert waiting.wait() is True
    for future in (failing, behind):
        with pytest.raises(ChannelError, match=r"rank \d failed: ZeroDivisionError") as caught:
            future.wait()
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    with pytest.raises(ChannelError, match="ZeroDivisionError"):
        channel.submit(lambda: ran.append("after"))
    assert not ran
    channel.close()


def test_jobs_behind_a_failure_are_refused_with_its_cause(team: Workers) -> None:
    team.run(failing_job)


def exiting_job(rank: int, n: int) -> None:
    def leave() -> None:
        raise SystemExit(0)

    channel = Channel()
    with pytest.raises(ChannelError, match="SystemExit"):
        channel.submit(leave).wait()
    channel.close()


def test_a_job_cannot_end_the_thread_and_leave_others_waiting(team: Workers) -> None:
    team.run(exiting_job)
