"""Small networks in every mode of DDP, and their backward passes: what the tests of the hook have in common."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    """A small network of the kind asked for: "mlp", "conv", "mixed", "unused", or a dtype's name."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        dtype = getattr(torch, kind, torch.float32)
        self.kind = kind
        self.features = 3 * 8 * 8
        if kind == "conv":
            self.first: nn.Module = nn.Sequential(nn.Unflatten(1, (3, 8, 8)), nn.Conv2d(3, 12, 3), nn.Flatten())
            hidden = 12 * 6 * 6
        else:
            self.first, hidden = nn.Linear(self.features, 40, dtype=dtype), 40
        middle = torch.bfloat16 if kind == "mixed" else dtype
        self.middle = nn.Linear(hidden, 60, dtype=middle)
        self.last = nn.Linear(60, 8, dtype=dtype)
        self.idle = nn.Linear(30, 50) if kind == "unused" else None
        self.sometimes = nn.Linear(60, 8) if kind == "unused" else None

    def forward(self, x: Tensor, branch: bool) -> Tensor:
        hidden = torch.relu(self.first(x.to(next(self.first.parameters()).dtype)))
        hidden = torch.relu(self.middle(hidden.to(self.middle.weight.dtype)))
        out = self.last(hidden.to(self.last.weight.dtype))
        return out + self.sometimes(hidden) if self.sometimes is not None and branch else out


def build(kind: str, **options: Any) -> DistributedDataParallel:
    torch.manual_seed(0)
    net = Net(kind)
    if kind == "conv":
        net = net.to(memory_format=torch.channels_last)
    return DistributedDataParallel(net, **options)


def backward(model: DistributedDataParallel, rank: int, step: int, accumulate_first: bool = False) -> None:
    """One step's backward pass (two, the first unsynchronized, to accumulate)."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(2, 6, model.module.features, generator=generator)
    with model.no_sync() if accumulate_first else contextlib.nullcontext():
        if accumulate_first:
            model(x[0], branch=rank == 0).square().mean().backward()
    model(x[1], branch=rank == 0).square().mean().backward()


def in_memory_order(gradient: Tensor) -> Tensor:
    return gradient.as_strided((gradient.numel(),), (1,), gradient.storage_offset())


MODES: dict[str, tuple[str, dict[str, Any], bool]] = {
    "several buckets": ("mlp", {"bucket_cap_mb": 0.01}, False),
    "bucket views": ("mlp", {"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True}, False),
    "no_sync": ("mlp", {}, True),
    "no_sync with views": ("mlp", {"bucket_cap_mb": 0.01, "gradient_as_bucket_view": True}, True),
    "static graph": ("mlp", {"bucket_cap_mb": 0.01, "static_graph": True}, False),
    "unused parameters": ("unused", {"bucket_cap_mb": 0.01, "find_unused_parameters": True}, False),
    "channels_last": ("conv", {"bucket_cap_mb": 0.01}, False),
    "channels_last views": ("conv", {"gradient_as_bucket_view": True}, False),
    "bfloat16 and float32": ("mixed", {"bucket_cap_mb": 0.01}, False),
    "bfloat16": ("bfloat16", {}, False),
    "float16": ("float16", {}, False),
    "float64": ("float64", {}, False),
}
