"""Error feedback: what a message could not carry is added to the next one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels import round_to_bfloat16, stream_keys
from thinwire.types import Key, Message, Segment

__all__ = ["FeedbackMode", "Residuals", "wants_feedback"]

_DEFAULT_KEY = Key()
_STRATUM = (1 << 16) - 1  # random numbers apart from those of encodings, which count from 0
FeedbackMode = bool | Literal["auto"]


def wants_feedback(segment: Segment, mode: FeedbackMode) -> bool:
    """Whether a segment keeps a residual: with True if its scheme loses anything, with "auto" if it is biased."""
    traits = segment.scheme.traits
    return not traits.averages_out if mode == "auto" else mode and not traits.exact


class Residuals:
    """One residual a segment: what was meant to be sent and was not, kept by the segment's stream.

    With g the values given and Q(x) what the receivers decode,

        sent = Q(g + residual),    residual <- (g + residual) - sent.

    Where that is not finite (the block's values were not, so nothing arrived), the residual stays as it was. A segment
    whose values are all exactly zero is sent as zeros and keeps its residual. A segment that has a residual keeps
    feeding it, whatever scheme it travels by later; an exact one empties it.

    A step ends with `commit` or, if the program skips it, with `put_back`. Only one thread at a time may use this.

    Args:
        mode: see `wants_feedback`.
        dtype: of residuals at rest: float32, or bfloat16 by stochastic rounding, which does not drift.
        key: of the rounding's random numbers; its step is set by `begin`.

    References: Seide et al. 2014 (1-bit SGD); Karimireddy et al. 2019 (arXiv 1901.09847), Algorithm 2. There the
        learning rate is part of what is compressed; here, as everywhere in thinwire, gradients are.
    """

    def __init__(self, mode: FeedbackMode, dtype: torch.dtype = torch.float32, key: Key = _DEFAULT_KEY) -> None:
        self.mode = mode
        self.dtype = dtype
        self._key = key.replace(stratum=_STRATUM)
        self.scale = 1.0
        self._kept: dict[int, Tensor] = {}  # by stream: [count]
        self._before: dict[int, Tensor | None] = {}  # of this step's changes, what was there before
        self._quiet: set[int] = set()  # owed something, but with all-zero values in this step

    def begin(self, step: int, scale: float = 1.0) -> None:
        """Begin a step whose gradients are multiplied by `scale`: residuals kept under another one are rescaled."""
        self._key = self._key.replace(step=step)
        if scale != self.scale:
            self._kept = {stream: residual * (scale / self.scale) for stream, residual in self._kept.items()}
            self.scale = scale

    def compensate(self, message: Message) -> Message:
        """Add the residuals: a new message of the same layout, or `message` itself if it is owed nothing."""
        layout = message.layout
        if not any(segment.stream in self._kept for segment in layout):
            return message
        counts = [segment.numel for segment in layout]
        flat = torch.empty(message.numel, device=message.device)
        values = []
        for segment, given, target in zip(layout, message.values, flat.split(counts)):
            source = given.to(torch.float32)  # one at a time: all of a narrow message would take as much as `flat`
            owed = self._kept.get(segment.stream)
            if owed is not None and _is_zero(source):
                self._quiet.add(segment.stream)
                owed = None
            if owed is None:
                target.copy_(source)
                values.append(given)
            else:
                torch.add(source, owed, out=target)
                values.append(target.to(segment.dtype))
        return Message(layout, values, flat)

    def keep(self, message: Message, decoded: Tensor) -> None:
        """Keep what a message lost.

        Args:
            message: as `compensate` returned it.
            decoded: what receivers decode it to, float32 or float64 `[message.numel]`; it may be written over.
        """
        counts = [segment.numel for segment in message.layout]
        for segment, meant, got in zip(message.layout, message.flat.split(counts), decoded.split(counts)):
            stream = segment.stream
            owed = self._kept.get(stream)
            if stream in self._quiet or (owed is None and not wants_feedback(segment, self.mode)):
                continue
            self._before.setdefault(stream, owed)
            lost = torch.sub(meant, got, out=None if self.dtype == torch.float32 else got)
            self._kept[stream] = self._at_rest(_finite(lost.to(torch.float32), owed), stream)

    def _at_rest(self, residual: Tensor, stream: int) -> Tensor:
        if self.dtype == torch.float32:
            return residual
        key = stream_keys(self._key, np.array([stream], dtype=np.uint64)).view(np.int64)[0]
        return round_to_bfloat16(residual, int(key))

    def commit(self) -> None:
        """End a step: its residuals hold."""
        self._before.clear()
        self._quiet.clear()

    def put_back(self) -> None:
        """End a step that counts for nothing: all residuals are as they were before it."""
        for stream, owed in self._before.items():
            if owed is None:
                del self._kept[stream]
            else:
                self._kept[stream] = owed
        self.commit()

    def tensors(self) -> dict[int, Tensor]:
        """The residuals by stream, themselves."""
        return dict(self._kept)

    def load(self, tensors: Mapping[int, Tensor], scale: float) -> None:
        """Replace all residuals by copies of `tensors`, kept under `scale`."""
        self._before.clear()
        self._quiet.clear()
        self._kept = {stream: tensor.detach().to(self.dtype, copy=True) for stream, tensor in tensors.items()}
        self.scale = scale


def _is_zero(values: Tensor) -> bool:
    """Whether there is nothing but zeros; faster than `any`, and a NaN is not zero."""
    if values.numel() == 0:
        return True
    low, high = torch.aminmax(values)
    return bool(low == 0) and bool(high == 0)


def _finite(lost: Tensor, owed: Tensor | None) -> Tensor:
    """`lost`, with what was owed (nothing: 0) in the places where it is not finite."""
    if bool(torch.isfinite(lost.sum())):  # one pass; a sum that overflows only takes the longer way
        return lost
    return torch.where(torch.isfinite(lost), lost, 0.0 if owed is None else owed)
