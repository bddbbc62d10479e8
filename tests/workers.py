"""Worker processes with a gloo group among them, started once a session and given many small jobs."""

from __future__ import annotations

import atexit
import functools
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from thinwire.kernels.pool import set_threads

_PATIENCE = 60.0  # seconds for one job

# One server imports and compiles everything once; workers are forked from it, in a fraction of a second.
_here = os.path.dirname(os.path.abspath(__file__))
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_here, os.environ.get("PYTHONPATH")]))
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["torch.nn.parallel", "warm"])


_running: list[Workers] = []
_groups: list[dist.ProcessGroup] = []


class JobError(AssertionError):
    """A job raised in a worker; the text is that worker's traceback."""


class Workers:
    """`count` processes, each a rank of one gloo group.

    Args:
        target: what a process runs, called with its rank, `count`, the path of a fresh file for the store,
            and its end of a pipe.
    """

    def __init__(self, count: int, target: Callable[[int, int, str, Connection], None] | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="thinwire-workers-")
        store = os.path.join(self._folder.name, "store")
        pipes = [context.Pipe() for _ in range(count)]
        self.pipes = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=target or serve, args=(rank, count, store, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self.processes:
            process.start()
        for _, theirs in pipes:
            theirs.close()

    def run(self, job: Callable[..., Any], *args: Any) -> list[Any]:
        """Run `job(rank, world_size, *args)` in every worker; its results in rank order.

        Raises:
            JobError: with the first failing rank's traceback.
        """
        for pipe in self.pipes:
            pipe.send((job, args))
        answers = [self.answer(rank) for rank in range(len(self.pipes))]
        for rank, (good, value) in enumerate(answers):
            if not good:
                raise JobError(f"rank {rank}:\n{value}")
        return [value for _, value in answers]

    def answer(self, rank: int) -> Any:
        """The next thing that a worker says."""
        if not self.pipes[rank].poll(_PATIENCE):
            raise JobError(f"rank {rank} gave no answer in {_PATIENCE:.0f} s")
        return self.pipes[rank].recv()

    def stop(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.join(10)
            process.kill()
        self._folder.cleanup()


@functools.cache
def workers(count: int) -> Workers:
    """The session's workers of this count."""
    started = Workers(count)
    _running.append(started)
    return started


@atexit.register
def stop_workers() -> None:
    """Stop all that `workers` started: their idle gloo threads, one a private group, take a core."""
    while _running:
        _running.pop().stop()
    workers.cache_clear()


def join(rank: int, count: int, store: str) -> None:
    """Make this process a rank of a gloo group of `count`."""
    torch.set_num_threads(1)
    set_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=timedelta(seconds=40)
    )


def new_group(*args: Any, **options: Any) -> dist.ProcessGroup:
    """As torch.distributed.new_group, for the rest of the job: a group that is not destroyed keeps its threads."""
    _groups.append(dist.new_group(*args, **options))
    return _groups[-1]


def _destroy_groups() -> None:
    while _groups:
        group = _groups.pop()
        if isinstance(group, dist.ProcessGroup):  # this rank is a member
            dist.destroy_process_group(group)


def serve(rank: int, count: int, store: str, pipe: Connection) -> None:
    """Run the jobs that come through the pipe until it closes."""
    join(rank, count, store)
    while True:
        try:
            job, args = pipe.recv()
        except EOFError:
            break
        try:
            pipe.send((True, job(rank, count, *args)))
        except Exception:
            pipe.send((False, traceback.format_exc()))
        _destroy_groups()
    dist.destroy_process_group()
