"""A private line between ranks: one process group and one thread, on which everything happens in order."""

from __future__ import annotations

import contextlib
import contextvars
import copy
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch.futures import Future

from thinwire.collectives.stages import Staged, Stages
from thinwire.collectives.transport import Link, across_nodes
from thinwire.errors import ChannelError, FrameError, PeerFailure, ThinwireError

__all__ = ["Channel", "Traffic"]

T = TypeVar("T")
_ALIKE = (PeerFailure, FrameError)  # raised from bytes that other ranks have seen, too
_GRACE = 2.0  # seconds until connections close under ranks that have yet to receive the same bytes
_PATIENCE = 5.0  # seconds that closing waits for the exchange under way


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """What this rank has exchanged on a channel, and the channel's thread has spent on it. `agree` is not counted.

    Bytes are those handed to the transport.
    """

    calls: int = 0  # exchanges
    bytes_sent: int = 0
    bytes_received: int = 0
    values: int = 0  # encoded on this rank
    frame_bytes: int = 0  # of the frames that carry them, once each
    plan_seconds: float = 0.0
    encode_seconds: float = 0.0
    communicate_seconds: float = 0.0  # waiting for other ranks included
    decode_seconds: float = 0.0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(**{name: count + getattr(other, name) for name, count in vars(self).items()})


class _Promise(Future[T]):
    """A Future that raises a copy of its exception.

    Torch keeps the exception where Python's garbage collector does not look: raised itself, its traceback would keep
    the frames of whoever waited, and they this Future, for good.
    """

    def wait(self) -> T:
        try:
            return super().wait()
        except ThinwireError as error:
            fault = _copy(error)
            error.__traceback__ = None
        raise fault


@dataclass(frozen=True)
class _Turn:
    """What is done when a job's turn has come, and what of it may be done before."""

    begin: Callable[[], None]
    run: Callable[[], None]


class _Line:
    """Turns in order; None is the last. Any thread puts, also from within a garbage collection; one takes."""

    def __init__(self) -> None:
        self._turns: deque[_Turn | None] = deque()
        self._put: SimpleQueue[None] = (
            SimpleQueue()
        )  # one for each turn, to wait for; its `put` may interrupt its `get`

    def put(self, turn: _Turn | None) -> None:
        self._turns.append(turn)
        self._put.put(None)

    def take(self) -> _Turn | None:
        """The next turn, waited for."""
        self._put.get()
        return self._turns.popleft()

    def begin_next(self) -> None:
        """Do of the next turn what may be done before it has come. For the thread that takes."""
        if self._turns and (turn := self._turns[0]) is not None:
            turn.begin()


class Channel:
    """A private process group over the ranks of `group` (None: all), and the one thread that uses it.

    Jobs run in the order of `submit`, so ranks that submit alike exchange alike, whatever their own threads
    do. The first failure breaks the channel for good: jobs after it are refused with the same cause. A failure
    that only this rank knows of is written to the group's store before the connections are closed, so that the
    other ranks wait no longer and raise it too. A broken channel ends its thread and leaves its group by itself.

    While a job waits for the transport, the next one's first stage runs: it encodes, on the same thread.

    Creating a channel is a collective call, like `torch.distributed.new_group`.

    Args:
        ranks_per_node: consecutive ranks that form a node, for the hierarchical algorithm: then the first rank of each
            has a link to the others' first, `leaders`. None: there are no nodes.

    Raises:
        ChannelError: torch.distributed is not initialised, this process is not in `group`, a rank is missing, or
            the ranks do not form nodes of that number.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, ranks_per_node: int | None = None) -> None:
        self.link = Link(group)
        self.ranks_per_node = ranks_per_node
        # All ranks make one, though only leaders use theirs: torch counts the groups that a process has made.
        try:
            across = [] if ranks_per_node is None else [across_nodes(self.link, ranks_per_node)]
        except ChannelError:
            self.link.drop()
            raise
        self._links = [self.link, *across]
        self.rank = self.link.rank
        self.leaders = across[0] if across and ranks_per_node and self.rank % ranks_per_node == 0 else None
        self.world_size = self.link.world_size
        self.traffic = Traffic()
        self._within = 0.0  # seconds that the present stage's own stages have taken
        self._fault: ThinwireError | None = None
        self._lock = threading.Lock()  # no job is put after the last one
        self._jobs = _Line()
        for link in self._links:
            link.meanwhile = self._jobs.begin_next
        thread = threading.Thread(target=_work, args=(self._jobs, self._links), name="thinwire", daemon=True)
        thread.start()
        # Runs on close(), when the channel is forgotten, or before the interpreter exits; once.
        self._finish = weakref.finalize(self, _finish, self._jobs, thread, self._links)

    def submit(self, job: Stages[T] | Callable[[], T], device: torch.device | None = None) -> Future[T]:
        """Run `job` on the channel's thread, after all jobs before it.

        Args:
            job: what to do there; it may use `link`, and `count`. The first of its stages may be done early: it must
                leave `link` alone.
            device: where the tensors lie that `job` reads and returns. On a GPU the thread waits for the caller's
                current stream, and whoever waits for the Future, for the thread's.

        Returns:
            A Future of the job's result. Its `wait` raises what the job raised, as the other ranks see it.

        Raises:
            ThinwireError: the channel is broken or closed; the first cause.
        """
        gpu = device if device is not None and device.type == "cuda" else None
        future: Future[T] = _Promise(devices=[gpu] if gpu else None)
        ready = torch.cuda.current_stream(gpu).record_event() if gpu else None
        context = contextvars.copy_context()  # a backend chosen by the caller holds for the job
        staged = Staged(job)

        def enter() -> None:
            if ready is not None:
                torch.cuda.set_device(gpu)
                torch.cuda.current_stream(gpu).wait_event(ready)

        def begin() -> None:
            if self._fault is None:
                enter()
                context.run(staged.begin)

        def run() -> None:
            enter()
            self._settle(future, lambda: context.run(staged.finish))

        with self._lock:
            if self._fault is not None:
                raise _copy(self._fault)
            self._jobs.put(_Turn(begin, run))
        return future

    def count(self, **amounts: int) -> None:
        """Add the named amounts to `traffic`."""
        self.traffic = self.traffic + Traffic(**amounts)

    @contextlib.contextmanager
    def timed(self, stage: Literal["plan", "encode", "communicate", "decode"]) -> Iterator[None]:
        """Add the time that the block takes on this thread, less that of stages within it, to `traffic`."""
        start, outer, self._within = time.perf_counter(), self._within, 0.0
        try:
            yield
        finally:
            whole = time.perf_counter() - start
            own: dict[str, Any] = {f"{stage}_seconds": whole - self._within}
            self._within = outer + whole
            self.traffic = self.traffic + Traffic(**own)

    def close(self) -> None:
        """Refuse further work, finish what is under way and leave the group. Again is harmless."""
        with self._lock:
            self._fault = self._fault or ChannelError("this channel is closed")
        self._finish()

    def _settle(self, future: Future[Any], job: Callable[[], Any]) -> None:
        result, fault = self._attempt(job)
        if fault is None:
            future.set_result(result)
        else:
            future.set_exception(fault)

    def _attempt(self, job: Callable[[], Any]) -> tuple[Any, ThinwireError | None]:
        """The job's result, or why there is none. In a frame that does not know the Future: see _Promise."""
        if self._fault is not None:
            return None, self._fault
        try:
            return job(), None
        except BaseException as error:
            fault = self._broken_by(error)
            with self._lock:
                self._fault = fault
                self._jobs.put(None)
            return None, fault

    def _broken_by(self, error: BaseException) -> ThinwireError:
        """The error that every rank raises for this one."""
        if isinstance(error, _ALIKE):
            self.link.report(str(error))  # for ranks that did not get these bytes
            leaving = threading.Timer(_GRACE, _drop, [self._links])
            leaving.daemon = True
            leaving.start()
            return error
        if isinstance(error, ChannelError):
            fault = ChannelError(self.link.reported() or str(error))
        else:
            fault = ChannelError(f"rank {self.rank} failed: {type(error).__name__}: {error}")
            fault.__cause__ = error
            self.link.report(str(fault))
        _drop(self._links)
        return fault


def _copy(fault: ThinwireError) -> ThinwireError:
    """The same error without the frames that it was raised from."""
    same = copy.copy(fault)
    same.__cause__ = fault.__cause__
    return same


def _work(jobs: _Line, links: list[Link]) -> None:
    while (turn := jobs.take()) is not None:
        turn.run()
        del turn  # or the last job, and the channel it belongs to, would live until the next one
    for link in links:
        link.linger()


def _drop(links: list[Link]) -> None:
    for link in links:
        link.drop()


def _finish(jobs: _Line, thread: threading.Thread, links: list[Link]) -> None:
    jobs.put(None)
    if thread is threading.current_thread():
        _drop(links)
        return
    thread.join(_PATIENCE)
    _drop(links)
    thread.join(1.0)  # now it gives up what the other ranks do not come to
