"""From the caller's tensors to a message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from thinwire.errors import MessageError
from thinwire.schemes import Scheme
from thinwire.types import DTYPES, Layout, Message, Segment
from thinwire.wire.header import Shape

__all__ = ["Schemes", "Tensors", "compose", "layout_of"]

Tensors = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
Schemes = Scheme | Mapping[str, Scheme]


def _named(x: Tensors) -> tuple[list[tuple[str, Tensor]], int]:
    if isinstance(x, Tensor):
        return [("", x)], Shape.TENSOR
    if isinstance(x, Mapping):
        return list(x.items()), Shape.MAPPING
    if isinstance(x, Sequence) and not isinstance(x, (str, bytes)):
        return [("", tensor) for tensor in x], Shape.LIST
    raise MessageError(
        f"expected a tensor, a list of tensors or a mapping from names to tensors, got {type(x).__name__}"
    )


def _scheme_for(name: str, scheme: Schemes, shape: int) -> Scheme:
    if isinstance(scheme, Scheme):
        return scheme
    if not isinstance(scheme, Mapping):
        raise MessageError(f"expected a scheme such as thinwire.ORQ(), got {scheme!r}")
    if shape != Shape.MAPPING:
        raise MessageError("a mapping of schemes needs a mapping of tensors with the same names")
    if name not in scheme or not isinstance(scheme[name], Scheme):
        raise MessageError(f"the mapping of schemes has no scheme for tensor {name!r}")
    return scheme[name]


def _check(name: str, tensor: object) -> None:
    what = f"tensor {name!r}" if name else "the tensor"
    if not isinstance(tensor, Tensor):
        raise MessageError(f"{what} is a {type(tensor).__name__}, not a torch.Tensor")
    if tensor.layout != torch.strided:
        raise MessageError(f"{what} is sparse ({tensor.layout}): make it dense first")
    if tensor.dtype not in DTYPES:
        names = ", ".join(str(d).removeprefix("torch.") for d in DTYPES)
        raise MessageError(f"{what} has dtype {tensor.dtype}: only {names} can be encoded")


def layout_of(x: Tensors, scheme: Schemes) -> tuple[Layout, int]:
    """The layout of a message of these tensors (meta tensors too), and its Shape.

    Raises:
        MessageError: a dtype, a name or a structure that cannot be encoded.
    """
    named, shape = _named(x)
    if isinstance(scheme, Mapping) and (extra := set(scheme) - {name for name, _ in named}):
        raise MessageError(f"the mapping of schemes names tensors that are not there: {', '.join(map(repr, extra))}")
    segments = []
    for stream, (name, tensor) in enumerate(named):
        if not isinstance(name, str) or not name.isprintable():
            raise MessageError(f"names of tensors must be printable strings, got {name!r}")
        _check(name, tensor)
        chosen = _scheme_for(name, scheme, shape)
        segments.append(Segment(shape=tuple(tensor.shape), dtype=tensor.dtype, scheme=chosen, name=name, stream=stream))
    return tuple(segments), shape


def compose(x: Tensors, scheme: Schemes) -> tuple[Message, int]:
    """A message of these tensors, and its Shape. Values are read when encoded, never written.

    Raises:
        MessageError: as layout_of, and tensors on different devices.
    """
    layout, shape = layout_of(x, scheme)
    values = [tensor.detach().reshape(-1).contiguous() for _, tensor in _named(x)[0]]
    devices = {tensor.device for tensor in values}
    if len(devices) > 1:
        raise MessageError(f"all tensors of a message must be on one device, got {', '.join(map(str, devices))}")
    if any(device.type == "meta" for device in devices):
        raise MessageError("meta tensors have no values to encode; capacity() takes them")
    return Message(layout, values), shape
