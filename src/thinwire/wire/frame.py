"""Frames: a message encoded as one contiguous uint8 tensor, and back."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from thinwire.errors import AlteredFrameError, MalformedFrameError, UnexpectedFrameError
from thinwire.kernels.checksum import checksum, weight
from thinwire.schemes import Group, Plan, partition
from thinwire.types import Key, Layout, Message
from thinwire.wire.header import (
    ALIGNMENT,
    CHECKSUM_AT,
    FIELDS,
    FIXED,
    FLAGS_AT,
    MAGIC,
    UNCHECKED,
    Header,
    Shape,
    align,
    check_fixed,
    fits,
    read_header,
    read_key,
    read_lengths,
    tables,
    write_header,
)

__all__ = ["accumulate", "capacity", "elastic", "encode", "plan", "read", "trim", "verify"]


@functools.lru_cache(maxsize=256)
def _most_parts(layout: Layout) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(group.scheme.part_bytes(group).values()) for group in partition(layout)[1])


@functools.lru_cache(maxsize=256)
def capacity(layout: Layout, shape: int = Shape.LIST) -> int:
    """Most bytes that a frame of this layout takes, from shapes, dtypes and schemes alone; equal on all ranks."""
    return write_header(layout, shape, Key(), _most_parts(layout))[1]


@functools.lru_cache(maxsize=256)
def elastic(layout: Layout) -> bool:
    """Whether frames of this layout may be shorter than its capacity."""
    return any(group.scheme.elastic for group in partition(layout)[1])


@torch.no_grad()
def plan(message: Message) -> list[Plan | None]:
    """What each group of a message, in the order of `partition`, decides before its codes are written."""
    return [group.scheme.plan(message, group) for group in partition(message.layout)[1]]


@torch.no_grad()
def encode(
    message: Message,
    key: Key,
    shape: int = Shape.LIST,
    *,
    checked: bool = True,
    plans: Sequence[Plan | None] | None = None,
) -> Tensor:
    """Encode a message.

    Args:
        message: the segments and their values, on one device.
        key: which random numbers.
        shape: a Shape; names travel with Shape.MAPPING only.
        checked: whether the frame bears a checksum. False: only a receiver who knows takes it.
        plans: of this message; None: they are made here.
    Returns:
        The frame, uint8 `[at most capacity(layout)]` on the message's device, zero-padded to 16 bytes.
    """
    parts = []
    made = plan(message) if plans is None else plans
    for group, planned in zip(partition(message.layout)[1], made, strict=True):
        parts.append([p.reshape(-1).view(torch.uint8) for p in group.scheme.encode(message, group, planned, key)])
    lengths = tuple(tuple(p.numel() for p in group) for group in parts)
    head, frame_bytes = write_header(message.layout, shape, key, lengths)
    assert frame_bytes <= capacity(message.layout, shape), f"a frame of {frame_bytes} bytes exceeds its capacity"
    frame = torch.zeros(frame_bytes, dtype=torch.uint8, device=message.device)
    frame[: len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8).to(message.device)
    at = len(head)
    for part in (p for group in parts for p in group):
        frame[at : at + part.numel()] = part
        at += align(part.numel())
    if checked:
        frame[CHECKSUM_AT : CHECKSUM_AT + 8] = checksum(frame).reshape(1).view(torch.uint8)
    else:
        frame[FLAGS_AT] = UNCHECKED
    return frame


def verify(frame: Tensor, checked: bool = True) -> bytes:
    """Check a frame's magic, version, length and checksum, and return the bytes of its header.

    Args:
        checked: False: it must bear no checksum, for which there are ranks that agreed to do without.

    Raises:
        MalformedFrameError: not a contiguous 1-D uint8 tensor; else the FrameError that names the cause.
    """
    if not isinstance(frame, Tensor):
        raise MalformedFrameError(f"frame: expected a uint8 tensor, got {type(frame).__name__}")
    if frame.dtype != torch.uint8 or frame.dim() != 1 or not frame.is_contiguous() or frame.is_meta:
        raise MalformedFrameError(
            f"frame: expected a contiguous 1-D uint8 tensor, got {frame.dtype} of shape {tuple(frame.shape)}"
        )
    fixed = check_fixed(bytes(frame[: FIXED.size].tolist()), frame.numel())
    if fixed["flags"] != (0 if checked else UNCHECKED):
        bears = "no checksum, but one was" if checked else "a checksum, but none was"
        raise AlteredFrameError(f"frame: it bears {bears} expected: bytes were changed, or ranks disagree")
    if not checked and fixed["checksum"]:
        raise AlteredFrameError("frame: it says that it has no checksum, and has one: bytes were changed")
    if frame.numel() % ALIGNMENT or (checked and _sum_without_field(frame, fixed["checksum"]) != fixed["checksum"]):
        raise AlteredFrameError("frame: the checksum does not match: bytes were changed after encoding")
    head = align(min(max(fixed["header_bytes"], FIXED.size), frame.numel()))
    return frame[:head].cpu().numpy().tobytes()


def trim(slot: Tensor) -> Tensor:
    """The frame at the start of a slot of bytes, as long as its header says; the rest need not be defined.

    A slot that does not begin with a frame is returned whole, so that checking it names the cause.
    """
    head = bytes(slot[: FIXED.size].tolist())
    if len(head) < FIXED.size or not head.startswith(MAGIC):
        return slot
    return slot[: dict(zip((name for name, _, _ in FIELDS), FIXED.unpack(head)))["frame_bytes"]]


def _sum_without_field(frame: Tensor, field: int) -> int:
    """The checksum as the encoder computed it, when the field was zero."""
    word = CHECKSUM_AT // 4
    own = (field & 0xFFFFFFFF) * weight(word) + (field >> 32) * weight(word + 1)
    return (int(checksum(_aligned(frame))) - own) % (1 << 64)


def _aligned(frame: Tensor) -> Tensor:
    """The frame, copied if it starts at an odd place of its storage, so that its parts can be viewed as floats."""
    return frame.clone() if frame.storage_offset() % ALIGNMENT else frame


def _parts(
    frame: Tensor, lengths: tuple[tuple[int, ...], ...], header_bytes: int, layout: Layout
) -> Iterator[tuple[Group, list[Tensor]]]:
    """Each group with views of its parts."""
    at = align(header_bytes)
    for group, group_lengths in zip(partition(layout)[1], lengths):
        parts = []
        for n in group_lengths:
            parts.append(frame[at : at + n])
            at += align(n)
        yield group, parts


def _decode(frame: Tensor, header: Header, total: Tensor, add: bool) -> None:
    for group, parts in _parts(_aligned(frame), header.parts, header.header_bytes, header.layout):
        group.scheme.decode(parts, group, header.key, total, add)


@torch.no_grad()
def accumulate(frame: Tensor, layout: Layout, total: Tensor, key: Key | None = None, *, checked: bool = True) -> Header:
    """Check a frame against what the receiver expects, then add its values to `total`, in place.

    Args:
        frame: as encode returns it (shape LIST).
        layout: the expected segments; names are not compared, since they do not travel.
        total: float32 or float64 `[values of the layout]`, on the frame's device.
        key: the expected key, if known.
        checked: as `verify`.
    Returns:
        The frame's header.
    Raises:
        UnexpectedFrameError: a valid frame of another layout, scheme or key; else another FrameError. `total` is then
            untouched.
    """
    head = verify(frame, checked)
    header = _expected_header(head, frame.numel(), layout)
    if key is not None and header.key != key:
        raise UnexpectedFrameError(f"frame: it was encoded under {header.key}, but {key} was expected")
    _decode(frame, header, total, add=True)
    return header


def _expected_header(head: bytes, available: int, layout: Layout) -> Header:
    """The header of a frame that should have `layout`: tables compared as bytes, and parsed only if they differ."""
    fixed = check_fixed(head, available)
    octets = head[FIXED.size : fixed["header_bytes"]]
    parts = read_lengths(octets, fixed["groups"]) if elastic(layout) else _most_parts(layout)
    same_tables = fits(layout, parts) and octets == tables(layout, Shape.LIST, parts)
    long = align(fixed["header_bytes"]) + sum(align(n) for lengths in parts for n in lengths)
    if same_tables and long == available and fixed["shape"] == Shape.LIST and fixed["segments"] == len(layout):
        return Header(
            layout=layout,
            shape=Shape.LIST,
            key=read_key(fixed),
            parts=parts,
            header_bytes=fixed["header_bytes"],
            frame_bytes=available,
        )
    header = read_header(head, available)
    for index, (got, expected) in enumerate(zip(header.layout, layout)):
        expected = dataclasses.replace(expected, scheme=expected.scheme.on_wire())
        for what in ("shape", "dtype", "scheme", "stream"):
            if getattr(got, what) != getattr(expected, what):
                raise UnexpectedFrameError(
                    f"frame: segment {index} has {what} {getattr(got, what)}, expected {getattr(expected, what)}"
                )
    raise UnexpectedFrameError(
        f"frame: it holds {len(header.layout)} segments (shape {header.shape}), expected {len(layout)} in a list"
    )


@torch.no_grad()
def read(frame: Tensor) -> tuple[Header, list[Tensor]]:
    """Decode any frame from what it says of itself: its header, and fresh tensors of the segments' shapes and dtypes.

    Raises:
        FrameError: one subclass a cause; see thinwire.errors.
    """
    header = read_header(verify(frame), frame.numel())
    wide = any(segment.dtype == torch.float64 for segment in header.layout)
    values = sum(segment.numel for segment in header.layout)
    total = torch.empty(values, dtype=torch.float64 if wide else torch.float32, device=frame.device)
    _decode(frame, header, total, add=False)
    flat = total.split([segment.numel for segment in header.layout])
    return header, [f.to(segment.dtype, copy=True).reshape(segment.shape) for f, segment in zip(flat, header.layout)]
