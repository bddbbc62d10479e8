"""Gradients of many batches of one network, from what a run left: what several ranks have in one step."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from thinwire.lab import data
from thinwire.lab.config import RunConfig
from thinwire.lab.data import DATASETS
from thinwire.lab.dataset import batches
from thinwire.lab.models import build


def gradients(folder: Path, count: int) -> list[dict[str, Tensor]]:
    """The first `count` batches' gradients at a run's last weights, of the parameters that the run compresses."""
    kept = torch.load(folder / "checkpoint.pt", weights_only=True)
    config = RunConfig(**kept["config"])
    kind = DATASETS[config.data]
    model, examples = build(config.model, seed=config.seed, **kind.shape), data.load(config.data, config.data_root)
    model.load_state_dict(kept["model"])
    each = max(1, config.batch_size // config.workers)
    found = []
    for rank in range(count):
        share = {"batch_size": each * count, "rank": rank, "world_size": count}
        inputs, labels = next(batches(examples, kind, **share, seed=1, epoch=0))
        model.zero_grad()
        functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten()).backward()
        found.append({name: p.grad.clone() for name, p in model.named_parameters() if p.numel() >= config.min_values})
    return found
