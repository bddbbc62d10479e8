"""register: what is refused, how ranks that disagree are told, and what a failing hook does to backward()."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire import ddp
from thinwire.errors import ChannelError, DisagreementError, PeerFailure, RegistrationError, SchemeError
from workers import Workers, join


def net(**options: Any) -> DistributedDataParallel:
    """Two layers in two buckets."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(40, 60), nn.Linear(60, 4))
    return DistributedDataParallel(layers, bucket_cap_mb=0.001, **options)


def backward(model: DistributedDataParallel) -> None:
    model(torch.ones(3, 40)).sum().backward()


def disagree_job(rank: int, n: int, by_rank: dict[int, dict[str, Any]]) -> str:
    model = net()
    options: dict[str, Any] = {"scheme": thinwire.ORQ(levels=9)} | by_rank.get(rank, {})
    with pytest.raises(DisagreementError) as caught:
        ddp.register(model, **options)
    handle = ddp.register(model, thinwire.ORQ(levels=9))  # nothing was left behind
    backward(model)
    assert handle.stats().steps == 1
    handle.close()
    return str(caught.value)


@pytest.mark.parametrize(
    ("by_rank", "said"),
    [
        ({1: {"scheme": thinwire.ORQ(levels=5)}}, ["levels=9", "on ranks 0, 2, 3", "levels=5", "on rank 1"]),
        ({3: {"seed": 7}}, ["seed is 0 on ranks 0, 1, 2 and 7 on rank 3"]),
        ({0: {"min_values": 10}}, ["min_values is 1024 on ranks 1, 2, 3 and 10 on rank 0"]),
        ({3: {"checksum": False}}, ["checksum is True on ranks 0, 1, 2 and False on rank 3"]),
        ({1: {"correlate": True}}, ["correlate is False on ranks 0, 2, 3 and True on rank 1"]),
        ({2: {"scheme": "orq-9"}}, ["rank 2 cannot take part: SchemeError", "'orq-9'"]),
        ({0: {"min_values": -1}, 1: {"seed": 1 << 64}}, ["rank 0 cannot take part", "rank 1 cannot take part"]),
    ],
)
def test_ranks_that_disagree_are_all_told(four: Workers, by_rank: dict[int, dict[str, Any]], said: list[str]) -> None:
    results = four.run(disagree_job, by_rank)
    assert all(result == results[0] for result in results)
    for part in said:
        assert part in results[0]


def renamed_job(rank: int, n: int) -> str:
    layers = [nn.Linear(8, 8), nn.Linear(8, 8)]
    names = ("left", "right") if rank == 0 else ("right", "left")
    model = DistributedDataParallel(nn.Sequential(*layers))
    model.module = nn.ModuleDict(dict(zip(names, layers)))  # DDP itself compares shapes only
    with pytest.raises(DisagreementError) as caught:
        ddp.register(model, thinwire.ORQ())
    return str(caught.value)


def test_models_with_other_parameter_names_disagree(four: Workers) -> None:
    for said in four.run(renamed_job):
        assert "parameter 0 is right.weight (8, 8) torch.float32 on ranks 1, 2, 3 and left.weight" in said


class Phase(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)
        self.phase = nn.Parameter(torch.ones(4, dtype=torch.complex64))


REFUSED: dict[str, tuple[Callable[[], nn.Module], dict[str, Any], type[Exception], str]] = {
    "scheme": (lambda: nn.Linear(4, 4), {"scheme": "orq"}, SchemeError, "must be a thinwire scheme"),
    "min_values": (lambda: nn.Linear(4, 4), {"min_values": 1.5}, RegistrationError, "min_values must be"),
    "checksum": (
        lambda: nn.Linear(4, 4),
        {"checksum": "crc"},
        RegistrationError,
        "checksum must be one of False, True",
    ),
    "seed": (lambda: nn.Linear(4, 4), {"seed": -1}, RegistrationError, "seed must be"),
    "warmup_steps": (lambda: nn.Linear(4, 4), {"warmup_steps": -1}, RegistrationError, "warmup_steps must be"),
    "algorithm": (lambda: nn.Linear(4, 4), {"algorithm": "ring"}, SchemeError, "algorithm must be one of auto, "),
    "second_leg of one leg": (
        lambda: nn.Linear(4, 4),
        {"second_leg": thinwire.ORQ(), "algorithm": "all_gather"},
        SchemeError,
        "all_gather has no second leg",
    ),
    "second_leg": (lambda: nn.Linear(4, 4), {"second_leg": "orq-9"}, SchemeError, "second_leg must be a scheme"),
    "nodes without hierarchical": (
        lambda: nn.Linear(4, 4),
        {"ranks_per_node": 1},
        RegistrationError,
        "ranks_per_node has no effect on auto",
    ),
    "ranks in no nodes": (
        lambda: nn.Linear(4, 4),
        {"ranks_per_node": 3, "algorithm": "hierarchical"},
        RegistrationError,
        "ranks do not form nodes of 3",
    ),
    "error_feedback": (
        lambda: nn.Linear(4, 4),
        {"error_feedback": "yes"},
        RegistrationError,
        "one of False, True, auto",
    ),
    "feedback of nothing": (
        lambda: nn.Linear(4, 4),
        {"error_feedback": True},
        RegistrationError,
        "error_feedback has no effect: every parameter travels exactly",
    ),
    "residual_dtype alone": (
        lambda: nn.Linear(4, 4),
        {"residual_dtype": "bfloat16"},
        RegistrationError,
        "residual_dtype has no effect",
    ),
    "grad_scaler alone": (
        lambda: nn.Linear(4, 4),
        {"grad_scaler": torch.amp.GradScaler("cpu")},
        RegistrationError,
        "grad_scaler has no effect",
    ),
    "a rule for nothing": (
        lambda: nn.Linear(4, 4),
        {"rules": [ddp.Rule("keep", dims=3)]},
        SchemeError,
        r"rule 0 \(dims=3\) decides nothing",
    ),
    "not a rule": (lambda: nn.Linear(4, 4), {"rules": ["keep"]}, RegistrationError, "rules must be"),
    "strict": (lambda: Phase(), {"strict": True}, RegistrationError, "strict: .* uncompressed: phase: torch.complex64"),
}


def refused_job(rank: int, n: int, case: str) -> None:
    make, options, error, text = REFUSED[case]
    model = DistributedDataParallel(make())
    with pytest.raises(error, match=text):
        ddp.register(model, **({"scheme": thinwire.ORQ()} | options))


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_at_registration(team: Workers, case: str) -> None:
    team.run(refused_job, case)


def moving_job(rank: int, n: int) -> None:
    schedule = ddp.Schedule({0: thinwire.SignSGD(), 9: thinwire.SignSGD(block_size=64)})
    options: dict[str, Any] = {"error_feedback": True, "algorithm": "reduce_scatter"}
    with pytest.raises(RegistrationError, match=r"at step 9, weight would be cut into other pieces"):
        ddp.register(DistributedDataParallel(nn.Linear(100, 100)), schedule, **options)
    fine = ddp.Schedule({0: "keep", 5: thinwire.SignSGD(), 9: thinwire.ORQ()})
    ddp.register(DistributedDataParallel(nn.Linear(100, 100)), fine, **options).close()


def test_a_schedule_that_moves_an_owners_residuals_is_refused(four: Workers) -> None:
    four.run(moving_job)


def python_reducer_job(rank: int, n: int) -> None:
    with torch._dynamo.config.patch(optimize_ddp="python_reducer"):
        model = net()
    with pytest.raises(RegistrationError, match="python reducer"):
        ddp.register(model, thinwire.ORQ())


def test_the_python_reducer_is_refused(team: Workers) -> None:
    team.run(python_reducer_job)


def twice_job(rank: int, n: int) -> None:
    model = net()
    handle = ddp.register(model, thinwire.ORQ())
    with pytest.raises(RegistrationError, match="already has a communication hook"):
        ddp.register(model, thinwire.ORQ())
    backward(model)
    assert handle.stats().steps == 1
    handle.close()
    model.zero_grad()
    with pytest.raises(ChannelError, match="closed"):
        backward(model)


def test_a_second_registration_is_refused_and_the_first_works_on(team: Workers) -> None:
    team.run(twice_job)


def test_a_model_that_is_not_wrapped_is_refused() -> None:
    with pytest.raises(RegistrationError, match="wrapped in DistributedDataParallel, got Linear"):
        ddp.register(nn.Linear(3, 3), thinwire.ORQ())  # type: ignore[arg-type]


def converted_job(rank: int, n: int) -> None:
    model = net()
    handle = ddp.register(model, thinwire.ORQ())
    del handle._policy.segments(0)[model.module[0].bias]
    with pytest.raises(RegistrationError, match="did not have at registration"):
        backward(model)
    handle.close()


def test_a_parameter_unknown_at_registration_is_refused(team: Workers) -> None:
    team.run(converted_job)


def observer_job(rank: int, n: int, failing_step: int, enabled: bool) -> str:
    model = net()
    handle = ddp.register(model, thinwire.ORQ())
    handle.enabled = enabled

    def observe(message: thinwire.types.Message, key: thinwire.Key) -> None:
        if rank == n - 1 and key.step == failing_step:
            raise ValueError("not on my watch")

    handle.observer = observe
    for _ in range(failing_step):
        backward(model)
    model.zero_grad()
    with pytest.raises(ChannelError) as caught:
        backward(model)
    assert isinstance(caught.value, PeerFailure) == enabled
    local = torch.autograd.grad(model.module(torch.ones(3, 40)).sum(), list(model.parameters()))
    assert all(torch.equal(p.grad, mine) for p, mine in zip(model.parameters(), local))  # they survive
    handle.close()
    # DDP itself cannot go on after a failed backward pass, whatever its hook; a new one on the same ranks can.
    anew = net()
    anew.load_state_dict(model.state_dict())
    handle = ddp.register(anew, thinwire.ORQ())
    backward(anew)
    handle.close()
    return str(caught.value)


@pytest.mark.parametrize("failing_step", [0, 3])
def test_a_failure_in_one_ranks_hook_ends_backward_on_all_with_its_cause(team: Workers, failing_step: int) -> None:
    n = len(team.processes)
    expected = f"rank {n - 1} could not encode: ValueError: not on my watch"
    assert team.run(observer_job, failing_step, True) == [expected] * n


def test_a_failure_while_averaging_plainly_reaches_all_too(team: Workers) -> None:
    n = len(team.processes)
    expected = f"rank {n - 1} failed: ValueError: not on my watch"
    assert team.run(observer_job, 2, False) == [expected] * n


def die_in_training(rank: int, count: int, store: str, pipe: Connection) -> None:
    join(rank, count, store)
    model = net()
    ddp.register(model, thinwire.ORQ())
    try:
        for step in range(100):
            if rank == 1 and step == 3:
                os.kill(os.getpid(), 9)
            backward(model)
    except ChannelError as error:
        pipe.send(str(error))
    pipe.recv()


def test_backward_ends_on_the_others_when_a_rank_is_killed() -> None:
    team = Workers(3, die_in_training)
    assert all("lost contact with another rank" in team.answer(rank) for rank in (0, 2))
    for process in team.processes:
        process.kill()
    team.stop()
