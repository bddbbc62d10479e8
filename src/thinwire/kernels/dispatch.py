"""One operator, several backends that give the same bits.

Every operation has a reference (plain torch, any device, the specification) and, for CPU tensors, a Numba kernel.
`operator` makes them one `torch.library` custom operator, so that torch.compile and opcheck see static shapes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import BackendError

__all__ = ["BACKENDS", "backend", "operator"]

BACKENDS = {
    "auto": "the fastest that fits the tensors' device",
    "reference": "plain torch, any device: the specification",
    "cpu": "Numba, CPU tensors",
}
_chosen: ContextVar[str] = ContextVar("thinwire_backend", default="auto")


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Run the enclosed calls (of this thread) on one backend; "auto" takes the fastest that fits the device.

    Raises:
        BackendError: unknown name, or (at the call) tensors that the backend cannot take.
    """
    if name not in BACKENDS:
        raise BackendError(f"unknown backend {name!r}: choose one of {', '.join(BACKENDS)}")
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def operator(
    reference: Callable[..., Any],
    cpu: Callable[..., Any],
    fake: Callable[..., Any],
    mutates: Iterable[str] = (),
) -> Callable[..., Any]:
    """Register `thinwire::<name of reference>` and return the function to call."""
    name = reference.__name__
    op = torch.library.custom_op(f"thinwire::{name}", reference, mutates_args=tuple(mutates))
    op.register_kernel("cpu")(cpu)
    op.register_fake(fake)

    def call(*args: Any) -> Any:
        chosen = _chosen.get()
        if chosen == "auto":
            return op(*args)
        if chosen == "reference":
            return reference(*args)
        devices = {a.device.type for a in args if isinstance(a, Tensor)}
        if devices != {"cpu"}:
            raise BackendError(
                f"backend 'cpu' cannot run {name} on {', '.join(sorted(devices))} tensors: use 'reference' or 'auto'"
            )
        return cpu(*args)

    call.__name__ = name
    call.__doc__ = reference.__doc__
    return call
