"""What an exchange cost: counters by step and in total, measured errors, and where they are written."""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from thinwire.collectives import Feedback, Traffic
from thinwire.errors import RegistrationError
from thinwire.types import Message

__all__ = ["JsonLines", "Meter", "Stats", "TensorBoard", "Writer"]

_OWN = 1 << 32  # streams below it are parameters; those above, pieces that a shard's owner encodes


@dataclass(frozen=True, kw_only=True)
class Stats(Traffic):
    """This rank's traffic for one model, of one step or since registration.

    Values and frame bytes are those of frames; plain averaging adds none. NaN stands for what was not measured yet.
    """

    steps: int = 0  # backward passes that synchronized
    fp32_bytes: float = 0.0  # what the same algorithms would have sent in float32
    travelled: Mapping[str, int] = field(default_factory=dict)  # why -> gradient values; "" = compressed
    lost: float = 0.0  # sum of (x - Q(x))^2 over the steps that were sampled
    power: float = 0.0  # sum of x^2 over the same

    @property
    def bits_per_value(self) -> float:
        """Frame bits per encoded value, everything counted."""
        return 8 * self.frame_bytes / self.values if self.values else math.nan

    @property
    def ratio_fp32(self) -> float:
        """How many times fewer bytes than the same algorithms would have sent in float32."""
        return self.fp32_bytes / self.bytes_sent if self.bytes_sent else math.nan

    @property
    def ratio_bf16(self) -> float:
        """How many times fewer bytes than the same algorithms would have sent in bfloat16."""
        return self.ratio_fp32 / 2

    @property
    def uncompressed(self) -> dict[str, float]:
        """Why values travelled as they are -> the fraction of all gradient values that did."""
        values = sum(self.travelled.values())
        return {why: count / values for why, count in self.travelled.items() if why}

    @property
    def vnmse(self) -> float:
        """Measured: sum of (x - Q(x))^2 over sum of x^2 of what this rank meant to send, in the sampled steps."""
        return self.lost / self.power if self.power else math.nan

    def since(self, earlier: Stats) -> Stats:
        """What was added after `earlier`."""
        added = {
            f.name: getattr(self, f.name) - getattr(earlier, f.name) for f in fields(self) if f.name != "travelled"
        }
        travelled = {why: count - earlier.travelled.get(why, 0) for why, count in self.travelled.items()}
        return Stats(**added, travelled={why: count for why, count in travelled.items() if count})

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers by name, for a log; what was not measured is left out."""
        counted = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("travelled", "lost", "power")}
        measured = {name: getattr(self, name) for name in ("bits_per_value", "ratio_fp32", "ratio_bf16", "vnmse")}
        counted |= {name: value for name, value in measured.items() if not math.isnan(value)}
        return {**counted, "uncompressed": sum(self.uncompressed.values())}


class Meter:
    """Measures the error of what passes on its way to `inner`, while `on`. Used as a Feedback."""

    def __init__(self, inner: Feedback | None) -> None:
        self.on = False
        self.lost = self.power = 0.0
        self._inner = inner

    def compensate(self, message: Message) -> Message:
        return message if self._inner is None else self._inner.compensate(message)

    def keep(self, message: Message, decoded: Tensor) -> None:
        if self.on and all(segment.stream < _OWN for segment in message.layout):
            meant = message.flat.double()
            self.lost += float((meant - decoded).square().sum())
            self.power += float(meant.square().sum())
        if self._inner is not None:
            self._inner.keep(message, decoded)


class Writer(Protocol):
    """Takes the stats of each step, on the thread that runs backward()."""

    def __call__(self, step: int, stats: Stats) -> None: ...


class JsonLines:
    """Append each step's stats to a file, one JSON object a line: `Stats.as_dict` and the step."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def __call__(self, step: int, stats: Stats) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step, **stats.as_dict()}) + "\n")


class TensorBoard:
    """Write each step's stats to TensorBoard as `thinwire/...`.

    Args:
        writer: a torch.utils.tensorboard.SummaryWriter, or a folder to make one for, which is closed when this object
            is forgotten or the program ends.

    Raises:
        RegistrationError: a folder was given, and tensorboard is not installed.
    """

    def __init__(self, writer: Any) -> None:
        self._writer = writer
        if isinstance(writer, str | os.PathLike):
            self._writer = _summary_writer(writer)
            weakref.finalize(self, self._writer.close)

    def __call__(self, step: int, stats: Stats) -> None:
        for name, value in stats.as_dict().items():
            self._writer.add_scalar(f"thinwire/{name}", value, step)


def _summary_writer(folder: str | os.PathLike[str]) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise RegistrationError("tensorboard is not installed: pip install tensorboard, or use JsonLines") from error
    return SummaryWriter(os.fspath(folder))
