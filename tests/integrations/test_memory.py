"""What a registered model needs beyond plain DDP: the process's own peak against the formula of docs/ddp.md."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire import ddp
from workers import Workers

RANKS = 4
PARAMETERS, VALUES = 3, 1 << 20  # each in a bucket of its own
TOTAL = PARAMETERS * VALUES
MIB = 1 << 20
WORKING = {  # bytes for each value of the largest bucket
    "large frames": {torch.float32: 6, torch.bfloat16: 12},
    "nothing": {torch.float32: 6, torch.bfloat16: 12},
    "float32": {torch.float32: 12, torch.bfloat16: 16},
    "bfloat16": {torch.float32: 14, torch.bfloat16: 18},
}
OTHER = 4 * MIB  # a thread, code that is loaded, small things


class Products(nn.Module):
    def __init__(self, values: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(values, dtype=dtype)) for _ in range(PARAMETERS)])

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([part.dot(x) for part in self.parts]).sum()


def peak_of_a_step(model: DistributedDataParallel, x: Tensor) -> int:
    """The most bytes that the process has held at once during a step, after some others."""
    for _ in range(2):
        model(x).backward()
    Path("/proc/self/clear_refs").write_text("5")
    model(x).backward()
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


def peak_job(rank: int, n: int, dtype: torch.dtype, scheme: thinwire.Scheme, options: dict[str, Any]) -> int:
    """How much higher the peak is with a hook."""
    ctypes.CDLL(None).mallopt(-3, 1 << 16)  # M_MMAP_THRESHOLD: what is freed goes back to the system at once
    small = DistributedDataParallel(Products(5000, dtype))
    handle = ddp.register(small, scheme, **options)
    peak_of_a_step(small, torch.ones(5000, dtype=dtype))  # the code is loaded
    handle.close()
    cap = VALUES * dtype.itemsize / MIB * 0.75  # full with one parameter
    model = DistributedDataParallel(Products(VALUES, dtype), bucket_cap_mb=cap, gradient_as_bucket_view=True)
    x = torch.randn(VALUES, generator=torch.Generator().manual_seed(rank)).to(dtype)
    plain = peak_of_a_step(model, x)
    handle = ddp.register(model, scheme, **options)
    hooked = peak_of_a_step(model, x)
    assert handle.stats().calls == 3 * PARAMETERS
    handle.close()
    return hooked - plain


@pytest.fixture(scope="module")
def team() -> Iterator[Workers]:
    """Not the session's workers: their allocator is changed."""
    own = Workers(RANKS)
    yield own
    own.stop()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads the peak as Linux tells it")
@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kept", ["large frames", "nothing", "float32", "bfloat16"])
def test_a_step_needs_no_more_memory_than_the_docs_say(
    team: Workers, algorithm: str, dtype: torch.dtype, kept: str
) -> None:
    scheme = thinwire.NoCompression() if kept == "large frames" else thinwire.SignSGD()
    options: dict[str, Any] = {"algorithm": algorithm}
    residuals = 0
    if "float" in kept:
        options |= {"error_feedback": True, "residual_dtype": kept}
        owners = TOTAL // RANKS if algorithm == "reduce_scatter" else 0
        residuals = getattr(torch, kept).itemsize * (TOTAL + owners)
    frame = thinwire.capacity([torch.empty(VALUES, dtype=dtype)], scheme)
    frames = 2 * RANKS + 2 if algorithm == "all_gather" else 5
    working = WORKING[kept][dtype] * VALUES
    formula = 2 * residuals + frames * frame + working
    for more in team.run(peak_job, dtype, scheme, options):
        print(f"{more / MIB:.1f} MiB more than plain DDP, {formula / MIB:.1f} by the formula")
        assert formula / 4 < more <= formula + OTHER
