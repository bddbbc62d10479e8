"""Error feedback in DDP: the recursion to the bit in every mode, skipped steps, loss scales, what is never lost."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from ddp_nets import MODES, backward, build, in_memory_order
from thinwire import ddp
from thinwire.collectives.shards import cut
from thinwire.integrations.ddp.state import own_key
from thinwire.types import Key, Message, Segment
from thinwire.wire import accumulate, encode
from workers import Workers

SIGN = thinwire.SignSGD(block_size=64)


class Recursion:
    """sent = Q(g + residual), residual <- (g + residual) - sent, a parameter at a time, kept by its name."""

    def __init__(self) -> None:
        self.residuals: dict[str, Tensor] = {}

    def send(self, segment: Segment, given: Tensor, key: Key) -> Tensor:
        meant = given.float()
        if segment.name in self.residuals and given.any():
            meant = meant + self.residuals[segment.name]
        sent = torch.zeros(segment.numel, dtype=torch.float64 if segment.dtype == torch.float64 else torch.float32)
        values = given if segment.scheme.traits.exact else meant.to(given.dtype)
        accumulate(encode(Message((segment,), [values], meant), key), (segment,), sent)
        if given.any() and not segment.scheme.traits.exact:
            self.residuals[segment.name] = (meant - sent).float()
        return sent


def feedback_job(rank: int, n: int, mode: str) -> list[bytes]:
    """Six steps, each gradient compared with the recursion's mean. Returns the parameters' bytes."""
    kind, options, accumulating = MODES[mode]
    model = build(kind, **options)
    handle = ddp.register(model, SIGN, error_feedback=True, min_values=100, algorithm="all_gather")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    recursion = Recursion()
    sent: dict[str, Tensor] = {}

    def observe(message: Message, key: Key) -> None:
        for segment, values in zip(message.layout, message.values):
            sent[segment.name] = recursion.send(segment, values.clone(), key)

    handle.observer = observe
    for step in range(6):
        backward(model, rank, step, accumulating)
        gathered: list[Any] = [None] * n
        dist.all_gather_object(gathered, sent)
        for name, parameter in model.module.named_parameters():
            if parameter.grad is not None:
                mean = sum(each[name] for each in gathered) / n
                assert torch.equal(in_memory_order(parameter.grad), mean.to(parameter.dtype)), name
        optimizer.step()
        optimizer.zero_grad()
    kept = handle.state_dict()[own_key(rank)]
    assert recursion.residuals.keys() <= kept.keys()
    for name, residual in kept.items():
        assert torch.equal(residual, recursion.residuals.get(name, torch.zeros_like(residual))), name
    assert any(residual.any() for residual in kept.values())
    handle.close()
    return [in_memory_order(p.detach()).view(torch.uint8).numpy().tobytes() for p in model.parameters()]


@pytest.mark.parametrize("mode", MODES)
def test_residuals_follow_parameters_through_rebuilt_buckets_and_every_mode_of_ddp(four: Workers, mode: str) -> None:
    """From the first step on: no minimum start step as in pytorch#51427, nor keys that a rebuild exchanges."""
    results = four.run(feedback_job, mode)
    assert all(parameters == results[0] for parameters in results)


class Quadratic(nn.Module):
    """A sum of parameters times given factors: the factors are the gradients."""

    def __init__(self, *counts: int, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(count, dtype=dtype)) for count in counts])

    def forward(self, factors: list[Tensor]) -> Tensor:
        return torch.stack([(part * factor).sum() for part, factor in zip(self.parts, factors)]).sum()


def factors(model: DistributedDataParallel, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(part.shape, generator=generator).to(part.dtype) for part in model.module.parts]


def step(model: DistributedDataParallel, given: list[Tensor]) -> list[Tensor]:
    model.zero_grad()
    model(given).backward()
    return [part.grad.clone() for part in model.module.parts]


def own(handle: ddp.Handle, rank: int) -> dict[str, Tensor]:
    return {name: kept.clone() for name, kept in handle.state_dict()[own_key(rank)].items()}


def one_rank_infinite_job(rank: int, n: int, bad: float) -> None:
    model = DistributedDataParallel(Quadratic(300, 70))
    handle = ddp.register(model, SIGN, error_feedback=True, min_values=1)
    for number in range(6):
        given = factors(model, 10 * number + rank)
        before = own(handle, rank)
        if number == 4 and rank == n - 1:
            given[0][130] = bad
        means = step(model, given)
        finite = [mean.isfinite() for mean in means]
        assert finite[1].all()
        assert finite[0].logical_not().nonzero().flatten().tolist() == (list(range(128, 192)) if number == 4 else [])
        after = own(handle, rank)
        assert all(kept.isfinite().all() for kept in after.values())
        if number == 4 and rank == n - 1:
            assert torch.equal(after["parts.0"][128:192], before["parts.0"][128:192])
    handle.close()


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_non_finite_gradient_on_one_rank_reaches_all_and_the_next_step_is_normal(team: Workers, bad: float) -> None:
    """pytorch#49374: there it stays in the residual for good."""
    team.run(one_rank_infinite_job, bad)


def all_zero_job(rank: int, n: int) -> None:
    model = DistributedDataParallel(Quadratic(300, 70))
    handle = ddp.register(model, SIGN, error_feedback=True, min_values=1)
    zeros = [torch.zeros(300), torch.zeros(70)]
    assert all(not mean.any() for mean in step(model, zeros))
    step(model, factors(model, rank))
    owed = own(handle, rank)
    assert all(not mean.any() for mean in step(model, zeros))
    for name, kept in own(handle, rank).items():
        assert torch.equal(kept, owed[name])
        assert kept.any()
    handle.close()


def test_an_all_zero_bucket_stays_exactly_zero_and_keeps_its_residual(team: Workers) -> None:
    """pytorch#55738: there it becomes NaN for good. So does nothing of what DDP throws away get lost."""
    team.run(all_zero_job)


def delivered_job(rank: int, n: int, algorithm: str, dtype: torch.dtype) -> None:
    """What was delivered and what all ranks still owe add up to what was given."""
    model = DistributedDataParallel(Quadratic(1000, 77, 2049), bucket_cap_mb=0.005)
    handle = ddp.register(model, SIGN, error_feedback=True, min_values=1, algorithm=algorithm)
    given = [torch.zeros_like(part) for part in model.module.parts]
    received = [torch.zeros_like(part) for part in model.module.parts]
    for number in range(8):
        mine = factors(model, 10 * number + rank)
        for total, part in zip(given, mine):
            mean = part / n
            dist.all_reduce(mean)
            total += mean
        for total, mean in zip(received, step(model, mine)):
            total += mean
    for index, (was_given, arrived) in enumerate(zip(given, received)):
        owed = torch.zeros_like(was_given)
        for name, kept in own(handle, rank).items():
            parameter, _, piece = name.partition(", piece ")
            if parameter == f"parts.{index}" and piece:
                start = piece_start(handle, index, int(piece), n)
                owed[start : start + kept.numel()] += kept
            elif parameter == f"parts.{index}":
                owed += kept / n
        dist.all_reduce(owed)
        torch.testing.assert_close(arrived + owed, was_given, atol=1e-4, rtol=0)
        assert (arrived - was_given).abs().max() > 0.01
    handle.close()


def piece_start(handle: ddp.Handle, index: int, number: int, n: int) -> int:
    segment = next(s for s in handle._policy.segments(0).values() if s.stream == index)
    pairs = [pair for shard in cut((segment,), n) for pair in zip(shard.pieces, shard.layout)]
    return next(piece.start for piece, part in pairs if part.stream >> 32 == number)


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
def test_what_arrived_and_what_is_owed_add_up_to_what_was_given(four: Workers, algorithm: str) -> None:
    four.run(delivered_job, algorithm, torch.float32)


def scaler_job(rank: int, n: int, algorithm: str) -> None:
    """A real GradScaler on CPU; rank 1's gradient overflows in step 3."""
    model = DistributedDataParallel(Quadratic(300, 70), bucket_cap_mb=0.0005)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)
    options = {"error_feedback": True, "min_values": 1, "algorithm": algorithm}
    handle = ddp.register(model, SIGN, grad_scaler=scaler, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    unscaled = Recursion()
    scales = []
    for number in range(7):
        given = factors(model, 10 * number + rank)
        overflows = number == 3
        if overflows and rank == n - 1:
            given[1][5] = math.inf
        before, weights = own(handle, rank), [part.detach().clone() for part in model.module.parts]
        scale = scaler.get_scale()
        scales.append(scale)
        optimizer.zero_grad()
        scaler.scale(model(given)).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped = all(torch.equal(part, weight) for part, weight in zip(model.module.parts, weights))
        assert skipped == overflows
        for name, kept in own(handle, rank).items():
            if overflows:
                ratio = scale / scales[-2]
                assert torch.equal(kept, before[name] * ratio), "a skipped step puts all residuals back"
            elif ", piece" not in name:
                segment = Segment(shape=kept.shape, dtype=torch.float32, scheme=SIGN, name=name)
                unscaled.send(segment, given[int(name[-1])], Key())
                assert torch.equal(kept, unscaled.residuals[name] * scale)
    assert scales == [1024, 1024, 2048, 2048, 1024, 1024, 2048]
    handle.close()


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
def test_a_step_skipped_by_grad_scaler_puts_all_residuals_back_and_scales_follow(team: Workers, algorithm: str) -> None:
    team.run(scaler_job, algorithm)


def autocast_job(rank: int, n: int, dtype: torch.dtype) -> None:
    model = build("mlp", bucket_cap_mb=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    handle = ddp.register(model, SIGN, error_feedback=True, grad_scaler=scaler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in range(4):
        x = torch.randn(6, model.module.features, generator=torch.Generator().manual_seed(number + 100 * rank))
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=dtype):
            loss = model(x, True).float().square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    total = sum(p.double().sum().item() for p in model.parameters())
    gathered: list[Any] = [None] * n
    dist.all_gather_object(gathered, total)
    assert gathered == [total] * n
    assert math.isfinite(total)
    handle.close()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_with_a_grad_scaler(team: Workers, dtype: torch.dtype) -> None:
    team.run(autocast_job, dtype)


def repeated_job(rank: int, n: int) -> list[bytes]:
    """Two backward passes before a step, both synchronized: the second averages an average and a new gradient."""
    model = build("mlp", bucket_cap_mb=0.01)
    handle = ddp.register(model, SIGN, error_feedback=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for number in range(4):
        optimizer.zero_grad()
        backward(model, rank, number)
        backward(model, rank, number + 50)
        optimizer.step()
    assert handle.stats().steps == 8
    handle.close()
    return [p.detach().numpy().tobytes() for p in model.parameters()]


def test_two_synchronized_backward_passes_keep_ranks_equal(team: Workers) -> None:
    results = team.run(repeated_job)
    assert all(parameters == results[0] for parameters in results)


def unfrozen_job(rank: int, n: int) -> None:
    """A frozen parameter keeps no residual; after unfreezing, the model is wrapped and registered anew."""
    module = Quadratic(300, 300)
    module.parts[1].requires_grad = False
    model = DistributedDataParallel(module)
    handle = ddp.register(model, SIGN, error_feedback=True, min_values=1, algorithm="all_gather")
    model.zero_grad()
    model(factors(model, rank)).backward()
    saved = handle.state_dict()
    assert list(saved[own_key(rank)]) == ["parts.0"]
    handle.close()
    module.parts[1].requires_grad = True
    model = DistributedDataParallel(module)
    handle = ddp.register(model, SIGN, error_feedback=True, min_values=1, algorithm="all_gather")
    handle.load_state_dict(saved, strict=False)
    kept = own(handle, rank)
    assert torch.equal(kept["parts.0"], saved[own_key(rank)]["parts.0"])
    assert not kept["parts.1"].any()
    step(model, factors(model, rank))
    assert own(handle, rank)["parts.1"].any()
    handle.close()


def test_unfrozen_parameters_begin_at_zero(team: Workers) -> None:
    team.run(unfrozen_job)


def memory_job(rank: int, n: int, dtype: str) -> None:
    """As docs/error-feedback.md says: r F between steps, r F / n more for an owner, at most twice that within one."""
    model = DistributedDataParallel(Quadratic(8192, 4096, 77), bucket_cap_mb=0.02)
    options = {"error_feedback": True, "algorithm": "reduce_scatter", "residual_dtype": dtype}
    handle = ddp.register(model, SIGN, **options)
    residuals = handle._residuals
    assert residuals is not None
    fed, size = 8192 + 4096, getattr(torch, dtype).itemsize
    highest = 0

    def count() -> int:
        kept = [*residuals._kept.values(), *(owed for owed in residuals._before.values() if owed is not None)]
        return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in kept}.values())

    keep = residuals.keep

    def watched(message: Message, decoded: Tensor) -> None:
        nonlocal highest
        keep(message, decoded)
        highest = max(highest, count())

    residuals.keep = watched  # type: ignore[method-assign]
    for number in range(4):
        step(model, factors(model, 10 * number + rank))
        assert count() == size * (fed + fed // n)
    assert size * (fed + fed // n) < highest <= 2 * size * (fed + fed // n)
    handle.close()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_residuals_take_the_memory_that_the_docs_say(team: Workers, dtype: str) -> None:
    team.run(memory_job, dtype)
