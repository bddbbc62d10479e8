"""What ranks bring to an exchange."""

from __future__ import annotations

import torch

from thinwire.types import DTYPES


def tensors(rank: int) -> dict[str, torch.Tensor]:
    """What a rank brings: every dtype, awkward shapes, blocks that do not fit."""
    generator = torch.Generator().manual_seed(100 + rank)
    shapes = {"matrix": (70, 61), "scalar": (), "empty": (3, 0), "one": (1,), "prime": (2053,)}
    drawn = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    drawn |= {str(d): torch.randn(2049, generator=generator, dtype=torch.float64).to(d) for d in DTYPES}
    drawn["turned"] = torch.randn(40, 30, generator=generator).t()
    return drawn
