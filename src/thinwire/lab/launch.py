"""Start the worker processes of one or several runs, watch them, and say what went wrong when one fails."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import shutil
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import thinwire
from thinwire.errors import ThinwireError
from thinwire.lab.config import RunConfig
from thinwire.lab.data import load
from thinwire.lab.dataset import Examples
from thinwire.lab.folder import RunFolder
from thinwire.lab.train import Report, train
from thinwire.schemes import NoCompression

__all__ = ["Job", "WorkerFailure", "launch", "torchrun_workers"]

_START = timedelta(minutes=10)  # imports and compilation may take long on a busy machine
_TIMEOUT = timedelta(seconds=30)  # after that, a worker that does not answer for so long has failed
_GRACE = 3.0  # seconds in which the cause of a failure may still arrive after its consequences


class WorkerFailure(ThinwireError, RuntimeError):
    """A worker process raised an error or died; the others were stopped."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run and the folder it writes to, which exists."""

    config: RunConfig
    folder: str


def torchrun_workers() -> int | None:
    """Return the number of workers that torchrun started, None when this process was not started by it."""
    return int(os.environ["WORLD_SIZE"]) if {"RANK", "WORLD_SIZE", "MASTER_ADDR"} <= set(os.environ) else None


def launch(jobs: Sequence[Job], report: Report) -> None:
    """Run jobs one after another on the same workers.

    Under torchrun, this process is one of the workers, and none is started. Otherwise the workers are started
    here, on this machine, after the data was read and the kernels were compiled once; the caller is the main thread.

    Args:
        jobs: runs with the same workers and data.
        report: called in this process with the events of rank 0, and with {"kind": "phase", "doing": ...} before.

    Raises:
        LabError: the data cannot be read.
        WorkerFailure: a worker failed; the message says which and why. The run folders keep what was written.
    """
    if torchrun_workers() is None:
        _launch_here(jobs, report)
    else:
        _join_torchrun(jobs, report)


def _join_torchrun(jobs: Sequence[Job], report: Report) -> None:
    rank, local_rank = int(os.environ["RANK"]), int(os.environ.get("LOCAL_RANK", "0"))
    first = jobs[0].config
    examples = load(first.data, first.data_root)
    if local_rank == 0:
        _compile(jobs)
    try:
        _meet(next(dist.rendezvous("env://", timeout=_START))[0], rank, first.workers)
        _work(rank, jobs, examples, report)
    except Exception as error:
        _write_traceback(jobs, rank)
        raise WorkerFailure(f"worker {rank} failed: {_one_line(error)}") from error


def _meet(store: dist.Store, rank: int, world_size: int) -> None:
    """Make the process group, as soon as all workers have come this far."""
    store.set(f"started {rank}", "")
    store.wait([f"started {other}" for other in range(world_size)], _START)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=_TIMEOUT)


def _compile(jobs: Sequence[Job]) -> None:
    thinwire.warmup(
        *dict.fromkeys(job.config.scheme() for job in jobs), NoCompression()
    )  # small parameters travel by the latter


def _work(rank: int, jobs: Sequence[Job], examples: Examples, report: Report) -> None:
    for job in jobs:
        train(job.config, examples, RunFolder(job.folder) if rank == 0 else None, report)
    dist.destroy_process_group()


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no message"
    return text if isinstance(error, ThinwireError) else f"{type(error).__name__}: {text}"


def _write_traceback(jobs: Sequence[Job], rank: int) -> None:
    """Keep the traceback for whoever must find a bug, unless the folder itself is the trouble."""
    text = f"worker {rank}\n{traceback.format_exc()}\n"
    with contextlib.suppress(OSError), open(Path(jobs[0].folder) / "error.txt", "a", encoding="utf-8") as file:
        file.write(text)


def _worker(rank: int, scratch: str, jobs: Sequence[Job], pipe: Connection) -> None:
    """What a worker process does. It ends with status 0, or sends a failure and ends with status 1."""
    threading.Thread(target=_end_with_parent, args=(scratch,), daemon=True).start()
    os.environ["LOCAL_WORLD_SIZE"] = str(jobs[0].config.workers)  # as torchrun says it: the workers share the cores
    try:
        examples = Examples(**torch.load(Path(scratch) / "examples.pt", weights_only=True, mmap=True))
        count = jobs[0].config.workers
        _meet(dist.FileStore(f"{scratch}/store", count), rank, count)
        _work(rank, jobs, examples, pipe.send)
    except Exception as error:
        _write_traceback(jobs, rank)
        pipe.send(
            {
                "kind": "failure",
                "reason": f"failed: {_one_line(error)}",
                "weight": 2 if isinstance(error, RuntimeError) else 1,
                "at": time.monotonic(),
            }
        )
        os._exit(1)  # at once: peers learn of a failure when its process ends, and exit handlers may wait for them


def _end_with_parent(scratch: str) -> None:
    """End this process when the parent has ended without a chance to do so, and clean up in its place."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)


def _launch_here(jobs: Sequence[Job], report: Report) -> None:
    first = jobs[0].config
    report({"kind": "phase", "doing": f"reading {first.data}"})
    examples = load(first.data, first.data_root)
    report({"kind": "phase", "doing": "compiling kernels, or loading them if that was done before"})
    _compile(jobs)
    report({"kind": "phase", "doing": f"starting {first.workers} worker{'s' if first.workers > 1 else ''}"})
    with tempfile.TemporaryDirectory(prefix="thinwire-") as scratch:
        torch.save(vars(examples), Path(scratch) / "examples.pt")
        workers = _start_all(scratch, jobs)
        try:
            _watch(workers, report)
        finally:
            for worker in workers:
                worker.stop()


@dataclass
class _Process:
    rank: int
    process: Any
    pipe: Connection

    def stop(self) -> None:
        self.process.kill()  # it holds nothing that needs an orderly end, and may be stuck
        self.process.join()
        self.pipe.close()


def _start_all(scratch: str, jobs: Sequence[Job]) -> list[_Process]:
    """Start the workers while SIGINT is ignored, which they inherit: on Ctrl-C the parent alone decides."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        return [_start(rank, scratch, jobs) for rank in range(jobs[0].config.workers)]
    finally:
        signal.signal(signal.SIGINT, before)


def _start(rank: int, scratch: str, jobs: Sequence[Job]) -> _Process:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_worker, args=(rank, scratch, list(jobs), theirs), daemon=True)
    process.start()
    theirs.close()
    return _Process(rank, process, ours)


@dataclass(frozen=True)
class _Failure:
    rank: int
    reason: str
    weight: int  # 0: died without a word; 1: raised; 2: raised what a peer's end also causes
    at: float  # seconds of the machine's monotonic clock


def _watch(workers: list[_Process], report: Report) -> None:
    """Pass events on until all workers have ended.

    Raises:
        WorkerFailure: naming the worker that failed first, as opposed to those that failed because of it.
    """
    running = {worker.pipe: worker for worker in workers}
    failures: list[_Failure] = []
    deadline: float | None = None
    while running and (deadline is None or time.monotonic() < deadline):
        for pipe in wait(list(running), timeout=None if deadline is None else 0.2):
            failure = _receive(running, pipe, report)
            if failure is not None:
                failures.append(failure)
                deadline = deadline or time.monotonic() + _GRACE
    if failures:
        cause = min(failures, key=lambda failure: (failure.weight, failure.at))
        silent = "".join(f"; worker {worker.rank} did not answer" for worker in running.values())
        raise WorkerFailure(f"worker {cause.rank} {cause.reason}{silent}")


def _receive(running: dict[Connection, _Process], pipe: Any, report: Report) -> _Failure | None:
    worker = running[pipe]
    try:
        event = pipe.recv()
    except (EOFError, OSError):  # the process has ended, or was cut off within a message
        del running[pipe]
        worker.process.join()
        return _unexplained_end(worker)
    if event["kind"] == "failure":
        del running[pipe]
        return _Failure(worker.rank, event["reason"], event["weight"], event["at"])
    report(event)
    return None


def _unexplained_end(worker: _Process) -> _Failure | None:
    status = worker.process.exitcode
    if status == 0:
        return None
    if status is not None and status < 0:
        how = f"was killed by signal {-status} ({signal.Signals(-status).name})"
    else:
        how = f"ended with status {status}"
    return _Failure(worker.rank, how, 0, time.monotonic())
