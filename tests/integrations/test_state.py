"""Saving and loading what a handle keeps: to the bit, by whatever saves it, and what does not fit is said."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

import thinwire
from ddp_nets import backward, build
from thinwire import ddp
from thinwire.errors import StateError
from thinwire.integrations.ddp.state import own_key
from workers import Workers

SIGN = thinwire.SignSGD(block_size=64)
MIXED = {"scheme": SIGN, "rules": [ddp.Rule(thinwire.QSGD(levels=5), name="first.*")], "error_feedback": True}


def start(**options: Any) -> tuple[DistributedDataParallel, torch.optim.Optimizer, ddp.Handle]:
    model = build("mlp", bucket_cap_mb=0.01)
    handle = ddp.register(model, **{**MIXED, **options})
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), handle


def train(model: DistributedDataParallel, optimizer: torch.optim.Optimizer, rank: int, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        backward(model, rank, step)
        optimizer.step()


def through_memory(state: dict[str, Any]) -> dict[str, Any]:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def resume_job(rank: int, n: int, algorithm: str, dtype: str) -> None:
    options: dict[str, Any] = {"algorithm": algorithm, "residual_dtype": dtype}
    if algorithm == "hierarchical":
        options["ranks_per_node"] = max(1, n // 2)
    model, optimizer, handle = start(**options)
    train(model, optimizer, rank, range(4))
    saved = through_memory({"model": model.module.state_dict(), "o": optimizer.state_dict(), "t": handle.state_dict()})
    train(model, optimizer, rank, range(4, 7))
    handle.close()
    again, fresh, resumed = start(**options)
    again.module.load_state_dict(saved["model"])
    fresh.load_state_dict(saved["o"])
    resumed.load_state_dict(saved["t"])
    train(again, fresh, rank, range(4, 7))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters()))
    mine, theirs = handle.state_dict(), resumed.state_dict()
    assert mine["step"] == theirs["step"] == 7
    for name, kept in mine[own_key(rank)].items():
        assert torch.equal(kept, theirs[own_key(rank)][name]), name
    resumed.close()


@pytest.mark.parametrize(
    ("algorithm", "dtype"), [("all_gather", "bfloat16"), ("reduce_scatter", "float32"), ("hierarchical", "float32")]
)
def test_resume_is_exact_to_the_bit_and_loads_with_weights_only(team: Workers, algorithm: str, dtype: str) -> None:
    """pytorch#75666: PowerSGD's state does not load; DeepSpeed's adam.py: residuals are dropped in silence."""
    team.run(resume_job, algorithm, dtype)


def checkpoint_job(rank: int, n: int, folder: str) -> None:
    model, optimizer, handle = start(algorithm="reduce_scatter")
    train(model, optimizer, rank, range(3))
    dcp.save({"thinwire": handle}, checkpoint_id=folder)
    before = handle.state_dict()
    handle.close()
    _, _, resumed = start(algorithm="reduce_scatter")
    dcp.load({"thinwire": resumed}, checkpoint_id=folder)
    after = resumed.state_dict()
    assert after["step"] == 3
    assert before[own_key(rank)].keys() == after[own_key(rank)].keys()
    for name, kept in before[own_key(rank)].items():
        assert torch.equal(kept, after[own_key(rank)][name])
    assert any(kept.any() for kept in before[own_key(rank)].values())
    resumed.close()


def test_distributed_checkpoints_keep_every_ranks_residuals(team: Workers, tmp_path: Path) -> None:
    team.run(checkpoint_job, str(tmp_path))


def misfit_job(rank: int, n: int, change: str) -> tuple[str, list[str]]:
    """Load a state that was changed; returns what was said, and the names of residuals that were taken."""
    model, optimizer, handle = start()
    train(model, optimizer, rank, range(2))
    saved = handle.state_dict()
    handle.close()
    options: dict[str, Any] = {}
    if change == "world size":
        saved["world_size"] = n + 4
    elif change == "rank":
        saved[own_key(rank + n)] = saved.pop(own_key(rank))
    elif change == "scheme":
        options["scheme"] = thinwire.BinGradB(block_size=64)
    elif change == "seed":
        options["seed"] = 5
    elif change == "feedback":
        options["error_feedback"] = False
    _, _, other = start(**options)
    with pytest.raises(StateError) as caught:
        other.load_state_dict(saved)
    assert other.state_dict()["step"] == 0
    records: list[str] = []
    catcher = logging.Handler()
    catcher.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("thinwire").addHandler(catcher)
    other.load_state_dict(saved, strict=False)
    logging.getLogger("thinwire").removeHandler(catcher)
    assert other.state_dict()["step"] == 2
    assert len(records) == 1
    taken = [name for name, kept in other.state_dict()[own_key(rank)].items() if kept.any()]
    other.close()
    return str(caught.value), taken


ALL = ["first.weight", "middle.weight"]


@pytest.mark.parametrize(
    ("change", "said", "taken"),
    [
        ("world size", "ranks, here are 2: residuals are dropped", []),
        ("rank", "it is not of rank", []),
        ("scheme", "parameter middle.weight is (60, 40)", ALL),
        ("seed", "its seed is 0, here it is 5, which stays", ALL),
        ("feedback", "the residual of first.weight has no place here", []),
    ],
)
def test_a_state_that_does_not_fit_is_refused_or_taken_in_part_with_a_warning(
    two: Workers, change: str, said: str, taken: list[str]
) -> None:
    for text, names in two.run(misfit_job, change):
        assert said in text
        assert set(names) >= set(taken)
        assert bool(names) == bool(taken)


def foreign_job(rank: int, n: int) -> None:
    _, _, handle = start()
    for state in ({}, {"format": 99}, {"format": 1, "step": 3}):
        with pytest.raises(StateError, match="not a state of a thinwire handle"):
            handle.load_state_dict(state, strict=False)
    handle.close()


def test_a_foreign_state_is_refused(team: Workers) -> None:
    team.run(foreign_job)


def other_step_job(rank: int, n: int) -> str:
    model, _, handle = start()
    state = handle.state_dict()
    state["step"] = 7 * (rank == 1)
    handle.load_state_dict(state)
    with pytest.raises(thinwire.ThinwireError) as caught:
        backward(model, rank, 0)
    handle.close()
    dist.barrier()
    return str(caught.value)


def test_ranks_that_loaded_different_steps_are_told(two: Workers) -> None:
    said = two.run(other_step_job)
    assert all("step=7" in text or "step=0" in text for text in said)
