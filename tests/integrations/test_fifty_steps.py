"""Fifty steps of real networks end with the same bits on all ranks, by every algorithm, with and without feedback."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire import ddp
from thinwire.lab.gpt import GPT
from thinwire.lab.models import build
from thinwire.schemes import Scheme
from workers import workers

STEPS = 50


def network(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "gpt":
        return GPT(20, 8, layers=2, width=32, heads=2)
    return build("resnet20", seed=0, channels=1, classes=10)


def batch(name: str, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    if name == "gpt":
        text = torch.randint(0, 20, (2, 9), generator=generator)
        return text[:, :-1], text[:, 1:]
    return torch.randn(2, 1, 4, 4, generator=generator), torch.randint(0, 10, (2,), generator=generator)


def fifty_job(rank: int, n: int, name: str, scheme: Scheme, options: dict[str, Any]) -> tuple[str, float]:
    """Returns a digest of the parameters, and how far they came."""
    several = 0.1 if name == "gpt" else 0.7
    model = DistributedDataParallel(network(name), bucket_cap_mb=several if n < 8 else None)  # fewer exchanges
    start = torch.nn.utils.parameters_to_vector(model.parameters()).detach().clone()
    handle = ddp.register(model, scheme, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step in range(STEPS):
        inputs, labels = batch(name, n * step + rank)
        optimizer.zero_grad()
        functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten()).backward()
        optimizer.step()
    assert handle.stats().steps == STEPS
    handle.close()
    end = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    return hashlib.sha256(end.numpy().tobytes()).hexdigest(), float((end - start).norm())


@pytest.mark.parametrize("feedback", [False, True], ids=["without feedback", "with feedback"])
@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter", "hierarchical"])
@pytest.mark.parametrize("name", ["resnet20", "gpt"])
@pytest.mark.parametrize("n", [2, 4, 8])
def test_fifty_steps_end_with_equal_bits(n: int, name: str, algorithm: str, feedback: bool) -> None:
    scheme = thinwire.SignSGD() if feedback else thinwire.ORQ(levels=9)
    nodes = {"ranks_per_node": n // 2} if algorithm == "hierarchical" else {}
    results = workers(n).run(fifty_job, name, scheme, {"algorithm": algorithm, "error_feedback": feedback, **nodes})
    assert results == [results[0]] * n
    assert results[0][1] > 0.1
