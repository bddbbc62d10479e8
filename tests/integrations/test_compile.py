"""Models under torch.compile: the same gradients to the bit as without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire import ddp
from thinwire.errors import RegistrationError
from workers import workers

SPLIT = 1  # MiB: torch's DDPOptimizer knows no smaller buckets
WIDTH = 600  # a layer fills a bucket


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [layer for _ in range(3) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    return nn.Sequential(*layers, nn.Linear(WIDTH, 3))


def gradients(rank: int, what: str) -> tuple[list[list[Tensor]], ddp.Stats]:
    """Of three steps, with error feedback."""
    inner: Any = torch.compile(net(), backend="aot_eager") if what == "the model within" else net()
    model = DistributedDataParallel(inner, bucket_cap_mb=SPLIT)
    handle = ddp.register(model, thinwire.ORQ(levels=9), error_feedback=True)
    run = torch.compile(model, backend="aot_eager") if what == "all of DDP" else model
    found = []
    for step in range(3):
        model.zero_grad()
        x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))
        run(x).square().mean().backward()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    stats = handle.stats()
    handle.close()
    return found, stats


def compiled_job(rank: int, n: int, mode: str, what: str) -> None:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(optimize_ddp=mode):
        plain, _ = gradients(rank, "nothing")
        compiled, stats = gradients(rank, what)
    assert stats.steps == 3
    assert stats.calls > 6  # several buckets a step
    for ours, theirs in zip(compiled, plain):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs))


@pytest.mark.parametrize("what", ["all of DDP", "the model within"])
@pytest.mark.parametrize("mode", ["ddp_optimizer", "no_optimization"])
def test_a_compiled_model_trains_as_one_that_is_not(mode: str, what: str) -> None:
    workers(2).run(compiled_job, mode, what)


def too_early_job(rank: int, n: int) -> None:
    compiled: Any = torch.compile(DistributedDataParallel(nn.Linear(4, 4)), backend="eager")
    with pytest.raises(RegistrationError, match="got OptimizedModule: register the model before compiling it"):
        ddp.register(compiled, thinwire.ORQ())


def test_a_model_compiled_before_it_is_registered_is_refused() -> None:
    workers(2).run(too_early_job)
