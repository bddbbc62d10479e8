"""DDP whose ranks form nodes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.errors import SchemeError
from workers import Workers, workers


def train_job(rank: int, n: int, error_feedback: bool) -> bytes:
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(40, 50), nn.ReLU(), nn.Linear(50, 3)), bucket_cap_mb=0.005)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("LOCAL_WORLD_SIZE", raising=False)
        with pytest.raises(SchemeError, match="LOCAL_WORLD_SIZE"):
            thinwire.ddp.register(model, thinwire.SignSGD(), algorithm="hierarchical")
        patch.setenv("LOCAL_WORLD_SIZE", "2")
        handle = thinwire.ddp.register(
            model, thinwire.SignSGD(), algorithm="hierarchical", min_values=100, error_feedback=error_feedback
        )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(8):
        optimizer.zero_grad()
        model(torch.randn(16, 40, generator=generator)).square().mean().backward()
        optimizer.step()
    handle.close()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).numpy().tobytes()


@pytest.fixture
def four() -> Workers:
    return workers(4)


@pytest.mark.parametrize("error_feedback", [False, True])
def test_parameters_are_equal_on_all_ranks(four: Workers, error_feedback: bool) -> None:
    assert len(set(four.run(train_job, error_feedback))) == 1
