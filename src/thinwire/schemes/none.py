"""Values as they are: small parameters, and the baseline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from thinwire.schemes.base import Plan, Scheme
from thinwire.schemes.group import Group
from thinwire.types import Key, Message, Traits

__all__ = ["NoCompression"]


@dataclass(frozen=True, kw_only=True)
class NoCompression(Scheme):
    """Send each value in its own dtype, to the bit. It has no blocks, hence no options.

    Bits per value: 32 for float32, 16 for bfloat16 and float16, 64 for float64.
    """

    method: ClassVar[str] = "none"

    @property
    def traits(self) -> Traits:
        return Traits(unbiased=True, exact=True)

    def part_bytes(self, group: Group) -> Mapping[str, int]:
        return {"values": group.values * group.dtype.itemsize}

    def plan(self, message: Message, group: Group) -> Plan | None:
        return None

    def encode(self, message: Message, group: Group, plan: Plan | None, key: Key) -> list[Tensor]:
        values = [message.values[place.segment] for place in group.places]
        return [torch.cat(values) if len(values) > 1 else values[0]]

    def decode(self, parts: list[Tensor], group: Group, key: Key, total: Tensor, add: bool) -> None:
        values = parts[0].view(group.dtype).to(total.dtype)
        done = 0
        for start, stop in group.runs:
            run = values[done : done + stop - start]
            total[start:stop] = total[start:stop] + run if add else run
            done += stop - start

    def squared_error(self, message: Message, group: Group) -> float:
        finite = all(bool(torch.isfinite(message.values[place.segment]).all()) for place in group.places)
        return 0.0 if finite else float("nan")
