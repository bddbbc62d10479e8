"""Our own threads over contiguous ranges: Numba kernels and np.sort release the GIL, so ranges run side by side.

Numba's parallel runtime is not used: it is not thread-safe beside torch's. Results never depend on the thread count,
since every range writes its own output and no sum crosses a range.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait

__all__ = ["for_ranges", "set_threads", "threads"]

_lock = threading.Lock()
_threads = 0  # 0: not decided yet
_executor: ThreadPoolExecutor | None = None
_here = threading.local()


def _default_threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))


def threads() -> int:
    """Number of threads that share one kernel call: cores / processes on this machine unless set."""
    return _threads or _default_threads()


def set_threads(count: int) -> None:
    """Use `count` threads for every later kernel call of this process."""
    global _threads
    if count < 1:
        raise ValueError(f"set_threads: count must be at least 1, got {count}")
    _threads = count
    _forget_executor()


def _forget_executor() -> None:
    global _executor
    _executor = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_executor)


def _mark_worker() -> None:
    _here.worker = True


def for_ranges(count: int, smallest: int, run: Callable[[int, int], object]) -> None:
    """Call run(first, stop) on contiguous ranges that cover [0, count), as many as give each at least `smallest`.

    Within a range of another call that is one range, on the same thread: all threads could be waiting for one another.
    """
    global _executor
    worker = getattr(_here, "worker", False)
    parts = 1 if worker else min(threads(), max(1, count // max(1, smallest)))
    if parts == 1:
        if count:
            run(0, count)
        return
    with _lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(threads(), "thinwire-kernel", _mark_worker)
        executor = _executor
    bounds = [count * i // parts for i in range(parts + 1)]
    others = [executor.submit(run, a, b) for a, b in itertools.pairwise(bounds[1:])]
    _here.worker = True  # this thread takes a range, too: it would only wait, and waking another takes time
    try:
        run(0, bounds[1])
    finally:
        _here.worker = False
        wait(others)  # whatever happens here, they write to the caller's arrays
    for done in others:
        done.result()
