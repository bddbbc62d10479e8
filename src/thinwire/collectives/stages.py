"""Jobs in stages: what comes before the first pause may be done early, while another job waits for other ranks."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Generic, TypeVar

__all__ = ["Staged", "Stages", "finish"]

T = TypeVar("T")
Stages = Generator[None, None, T]  # pauses once, when everything is ready to be sent; returns the result


def finish(stages: Stages[T]) -> T:
    """Run stages to their end; their result."""
    while True:
        try:
            next(stages)
        except StopIteration as end:
            result: T = end.value
            return result


class Staged(Generic[T]):
    """A job that may be begun before its turn, if it is in stages.

    Args:
        job: stages; or a function, of which nothing may be done early.
    """

    def __init__(self, job: Stages[T] | Callable[[], T]) -> None:
        self._stages = job if isinstance(job, Generator) else _at_once(job)
        self._begun = False
        self._failure: BaseException | None = None

    def begin(self) -> None:
        """Run up to the first pause. A failure is raised when the job's turn comes. Again does nothing."""
        if self._begun:
            return
        self._begun = True
        try:
            next(self._stages)
        except BaseException as error:
            self._failure = error

    def finish(self) -> T:
        """Run to the end; the result."""
        self.begin()
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return finish(self._stages)


def _at_once(job: Callable[[], T]) -> Stages[T]:
    yield
    return job()
