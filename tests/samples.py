"""What ranks bring to an exchange, and a scheme whose frames are shorter for some values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from thinwire.schemes import Group, NoCompression, Plan
from thinwire.types import DTYPES, Key, Message


def tensors(rank: int) -> dict[str, torch.Tensor]:
    """What a rank brings: every dtype, awkward shapes, blocks that do not fit."""
    generator = torch.Generator().manual_seed(100 + rank)
    shapes = {"matrix": (70, 61), "scalar": (), "empty": (3, 0), "one": (1,), "prime": (2053,)}
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    drawn |= {str(d): torch.randn(2049, generator=generator, dtype=torch.float64).to(d) for d in DTYPES}
    drawn["turned"] = torch.randn(40, 30, generator=generator).t()
    return drawn


@dataclass(frozen=True, kw_only=True)
class Squeezed(NoCompression):
    """Leaves out the zeros at the end of the group: frames of one layout differ in length."""

    method: ClassVar[str] = "squeezed"
    elastic: ClassVar[bool] = True

    def encode(self, message: Message, group: Group, plan: Plan | None, key: Key) -> list[torch.Tensor]:
        values = super().encode(message, group, plan, key)[0]
        used = int(values.nonzero().max()) + 1 if values.any() else 0
        return [values[:used].contiguous()]

    def decode(self, parts: list[torch.Tensor], group: Group, key: Key, total: torch.Tensor, add: bool) -> None:
        missing = self.part_bytes(group)["values"] - parts[0].numel()
        super().decode([torch.nn.functional.pad(parts[0], (0, missing))], group, key, total, add)
