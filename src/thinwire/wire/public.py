"""The one-line functions: encode, decode, inspect, expected_error, capacity."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from thinwire.schemes import METHODS, MinMax, Optimal, Scheme, partition
from thinwire.types import Key, Layout
from thinwire.wire import frame as frames
from thinwire.wire.header import Shape, read_header
from thinwire.wire.message import Schemes, Tensors, compose, layout_of

__all__ = ["FrameInfo", "capacity", "decode", "encode", "expected_error", "inspect", "usual_schemes", "warmup"]


def encode(x: Tensors, scheme: Schemes, *, seed: int = 0) -> Tensor:
    """Encode tensors as one self-describing frame.

    Args:
        x: a tensor, a list or tuple of tensors, or a mapping from names to tensors: any shape, of float32, bfloat16,
            float16 or float64, all on one device. A list or mapping makes one message, a segment a tensor. Methods with
            levels compute in float32: float64 values are rounded to it first, to zero or infinity beyond its range.
        scheme: a method such as `thinwire.ORQ(levels=9)`, or (with a mapping of tensors) a mapping of methods.
        seed: which random numbers stochastic methods draw, 0 <= seed < 2^64; the same seed gives the same bytes.
    Returns:
        uint8 `[at most capacity(x, scheme)]`, contiguous, on x's device.
    Raises:
        MessageError: tensors or names that cannot be encoded.
    Error: `expected_error(x, scheme)`. A block with a non-finite value (or a magnitude of 2^127 and more) becomes NaN.
    """
    message, shape = compose(x, scheme)
    return frames.encode(message, Key(seed=seed), shape)


def decode(frame: Tensor) -> Tensor | list[Tensor] | dict[str, Tensor]:
    """Decode a frame to what was encoded: a tensor, a list or a mapping, of the same shapes and dtypes.

    Raises:
        FrameError: a truncated, altered, foreign or malformed frame, or one of another version; a subclass for each.
    """
    header, tensors = frames.read(frame)
    if header.shape == Shape.TENSOR:
        return tensors[0]
    if header.shape == Shape.LIST:
        return tensors
    return dict(zip((segment.name for segment in header.layout), tensors))


def capacity(x: Tensors, scheme: Schemes) -> int:
    """Most bytes that `encode(x, scheme)` can take, from shapes and dtypes alone (meta tensors will do)."""
    layout, shape = layout_of(x, scheme)
    return frames.capacity(layout, shape)


@torch.no_grad()
def expected_error(x: Tensors, scheme: Schemes) -> float:
    """The closed-form vNMSE, E||x - Q(x)||^2 / ||x||^2, over all values of x (as float32).

    Returns:
        0.0 for empty or all-zero x; NaN if a value is not finite.
    References: docs/math.md derives the form for each rounding rule.
    """
    message, _ = compose(x, scheme)
    error = math.fsum(group.scheme.squared_error(message, group) for group in partition(message.layout)[1])
    energy = float((message.flat.to(torch.float64) ** 2).sum())
    return error / energy if energy else error


@dataclass(frozen=True, kw_only=True)
class FrameInfo:
    """What a frame holds and what each part costs.

    Args:
        segments: the layout: shape, dtype, scheme, name and stream of each tensor.
        key: which random numbers were drawn.
        values: number of values.
        bytes: of the whole frame.
        parts: bytes by part: "header", "padding", and each scheme's own, such as "orq-9 levels" and "orq-9 codes".
    """

    segments: Layout
    key: Key
    values: int
    bytes: int
    parts: dict[str, int]

    @property
    def bits(self) -> float:
        """Bits per value, everything counted."""
        return 8 * self.bytes / self.values if self.values else float("nan")

    def __str__(self) -> str:
        lines = [f"{self.values} values in {self.bytes} bytes: {self.bits:.4f} bits a value"]
        for segment in self.segments:
            shape = "x".join(map(str, segment.shape)) or "scalar"
            lines.append(f"  {segment.name or 'tensor'} [{shape}] {segment.dtype} {segment.scheme}")
        lines += [f"  {part}: {count} bytes" for part, count in self.parts.items()]
        return "\n".join(lines)


def inspect(frame: Tensor) -> FrameInfo:
    """Read what a frame says of itself, without decoding its values.

    Raises:
        FrameError: as decode.
    """
    header = read_header(frames.verify(frame), frame.numel())
    parts = {"header": header.header_bytes}
    for group, lengths in zip(partition(header.layout)[1], header.parts):
        for name, count in zip(group.scheme.part_bytes(group), lengths):
            label = f"{group.scheme.label} {name}"
            parts[label] = parts.get(label, 0) + count
    parts["padding"] = header.frame_bytes - sum(parts.values())
    values = sum(segment.numel for segment in header.layout)
    return FrameInfo(segments=header.layout, key=header.key, values=values, bytes=header.frame_bytes, parts=parts)


def usual_schemes() -> list[Scheme]:
    """Each method at its default, and the usual level counts: a kernel is compiled for each of them."""
    methods = [method() for method in METHODS.values()]
    return [*methods, Optimal(block_size=None), *(MinMax(levels=s) for s in (2, 3, 4, 5, 6, 7, 8, 16, 17))]


def warmup(*schemes: Scheme) -> None:
    """Compile every kernel that these schemes need (`usual_schemes` if none is given), and keep them on disk.

    Call it in the parent before starting workers, so that each of them loads the kernels instead of compiling them.
    """
    for scheme in schemes or usual_schemes():
        for dtype in (torch.float32, torch.float64):
            x = torch.linspace(-1, 1, 300 if scheme.options().get("block_size", 1) else 1 << 17, dtype=dtype)
            message, _ = compose([x], scheme)
            frame = frames.encode(message, Key())
            frames.accumulate(frame, message.layout, torch.zeros_like(x))
            frames.read(frame)
