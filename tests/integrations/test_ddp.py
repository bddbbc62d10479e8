"""The DDP hook between real processes: gradients to the bit in every mode of DDP, counters, the switch."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from ddp_nets import MODES, backward, build, in_memory_order
from thinwire import ddp
from thinwire.schemes import METHODS, Scheme
from thinwire.types import Key, Message
from thinwire.wire import accumulate, capacity, encode
from workers import Workers, workers


def expected_means(seen: list[tuple[Message, Key]], n: int) -> dict[str, Tensor]:
    """Each parameter's averaged gradient in memory order, by the long way: all ranks' frames made and read here."""
    gathered: list[Any] = [None] * n
    dist.all_gather_object(gathered, [(m.layout, [v.clone() for v in m.values], key) for m, key in seen])
    means = {}
    for buckets in zip(*gathered):
        layout = buckets[0][0]
        wide = layout[0].dtype == torch.float64
        total = torch.zeros(sum(s.numel for s in layout), dtype=torch.float64 if wide else torch.float32)
        for rank, (_, values, key) in enumerate(buckets):
            assert key.rank == rank
            accumulate(encode(Message(layout, values), key), layout, total)
        for segment, mean in zip(layout, (total / n).split([s.numel for s in layout])):
            means[segment.name] = mean.to(segment.dtype)
    return means


def train_job(
    rank: int, n: int, kind: str, scheme: Scheme, options: dict[str, Any], accumulating: bool, seed: int = 0
) -> tuple[list[bytes], list[int]]:
    """Four steps of SGD, each gradient checked. Returns the parameters' bytes and the number of buckets by step."""
    model = build(kind, **options)
    handle = ddp.register(model, scheme, min_values=100, seed=seed, algorithm="all_gather")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen: list[tuple[Message, Key]] = []
    handle.observer = lambda m, key: seen.append((Message(m.layout, [v.clone() for v in m.values]), key))
    frame_bytes, most, buckets = 0, 0, []
    for step in range(4):
        seen.clear()
        backward(model, rank, step, accumulating)
        assert [key for _, key in seen] == [Key(seed=seed, step=step, rank=rank)] * len(seen)
        means = expected_means(seen, n)
        for name, parameter in model.module.named_parameters():
            if name.startswith("idle"):
                assert parameter.grad is None
            else:
                assert parameter.grad is not None
                assert torch.equal(in_memory_order(parameter.grad), means[name]), name
        buckets.append(len(seen))
        frame_bytes += sum(encode(m, key).numel() for m, key in seen)
        most += sum(capacity(m.layout) for m, _ in seen)
        optimizer.step()
        optimizer.zero_grad()
    stats = handle.stats()
    assert (stats.steps, stats.calls, stats.frame_bytes) == (4, sum(buckets), frame_bytes)
    if not scheme.elastic:
        assert frame_bytes == most
        assert stats.bytes_sent == stats.bytes_received == (n - 1) * frame_bytes
    else:  # frames of a length of their own: tests/collectives/test_elastic.py
        assert (n - 1) * frame_bytes <= stats.bytes_sent <= (n - 1) * most
    assert stats.bits_per_value == 8 * frame_bytes / stats.values
    handle.close()
    return [in_memory_order(p.detach()).view(torch.uint8).numpy().tobytes() for p in model.parameters()], buckets


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_the_mean_of_the_frames_and_parameters_equal_on_all_ranks(team: Workers, mode: str) -> None:
    kind, options, accumulating = MODES[mode]
    results = team.run(train_job, kind, thinwire.ORQ(levels=5), options, accumulating)
    assert all(parameters == results[0][0] for parameters, _ in results)
    if options.get("bucket_cap_mb"):
        buckets = results[0][1]
        assert buckets[-1] > 1
    if mode == "several buckets":
        assert buckets[0] != buckets[1], "the first step's buckets were not rebuilt, as they should be here"


@pytest.mark.parametrize("scheme", [build_scheme() for build_scheme in METHODS.values()], ids=lambda s: s.label)
def test_every_method_keeps_parameters_equal_on_all_ranks(team: Workers, scheme: Scheme) -> None:
    results = team.run(train_job, "mlp", scheme, {"bucket_cap_mb": 0.01}, False)
    assert all(parameters == results[0][0] for parameters, _ in results)


def default_job(rank: int, n: int) -> None:
    gradients = []
    for schemes in ((), (thinwire.Dithered(bits=2.0, weighting="tensor"),)):
        model = build("mlp")
        handle = ddp.register(model, *schemes)
        backward(model, rank, 0)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
        handle.close()
    assert torch.equal(*gradients)


def test_without_a_scheme_gradients_travel_at_two_bits(four: Workers) -> None:
    four.run(default_job)


def test_runs_repeat_to_the_bit_and_seeds_differ(four: Workers) -> None:
    first, again, other = (
        four.run(train_job, "mlp", thinwire.QSGD(levels=3), {}, False, seed)[0][0] for seed in (0, 0, 1)
    )
    assert first == again
    assert first != other


def join_job(rank: int, n: int) -> tuple[float, int]:
    model = build("mlp", bucket_cap_mb=0.01)
    handle = ddp.register(model, thinwire.ORQ(levels=5))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with model.join():
        for step in range(2 + rank):
            optimizer.zero_grad()
            backward(model, rank, step)
            optimizer.step()
    handle.close()
    return sum(p.sum().item() for p in model.parameters()), handle.stats().steps


def test_ranks_with_fewer_batches_take_part_to_the_end_under_join(team: Workers) -> None:
    n = len(team.processes)
    results = team.run(join_job)
    assert results == [(results[0][0], n + 1)] * n


def forgotten_job(rank: int, n: int) -> None:
    def threads() -> int:
        return sum(thread.name == "thinwire" for thread in threading.enumerate())

    before = threads()
    model = build("mlp")
    handle = ddp.register(model, thinwire.ORQ())
    backward(model, rank, 0)
    assert threads() == before + 1
    del model, handle
    gc.collect()
    deadline = time.monotonic() + 10
    while threads() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == before


def test_a_forgotten_model_takes_its_thread_along(team: Workers) -> None:
    team.run(forgotten_job)


class Twins(nn.Module):
    """Two parameters with equal gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(1 << 14))
        self.b = nn.Parameter(torch.zeros(1 << 14))

    def forward(self, x: Tensor) -> Tensor:
        return ((self.a + self.b) * x).sum()


def twins_job(rank: int, n: int) -> tuple[Tensor, float]:
    """Errors of the averaged gradients of both parameters in two steps; all ranks have the same gradients."""
    x = torch.randn(1 << 14, generator=torch.Generator().manual_seed(0))
    model = DistributedDataParallel(Twins())
    scheme = thinwire.QSGD(levels=5)
    handle = ddp.register(model, scheme, algorithm="all_gather")
    errors = []
    for _ in range(2):
        model.zero_grad()
        model(x).backward()
        errors += [model.module.a.grad - x, model.module.b.grad - x]
    handle.close()
    return torch.stack(errors), thinwire.expected_error(x, scheme) * float(x.square().mean())


def test_ranks_steps_and_parameters_draw_independently(four: Workers) -> None:
    errors, single = four.run(twins_job)[0]
    correlation = torch.corrcoef(errors) - torch.eye(4)
    assert correlation.abs().max() < 5 / 128  # 5 standard errors
    assert errors.square().mean() == pytest.approx(single / 4, rel=0.05)


def plain_job(rank: int, n: int, kind: str) -> None:
    """Switched off it is DDP's own averaging; switched on again it goes on."""
    plain, hooked = build(kind), build(kind)
    handle = ddp.register(hooked, thinwire.ORQ(levels=3))
    handle.enabled = False
    observed: list[int] = []
    handle.observer = lambda message, key: observed.append(key.step)
    for step in range(2):
        for model in (plain, hooked):
            model.zero_grad()
            backward(model, rank, step)
        assert all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), hooked.parameters()))
    values = [p.numel() for p in hooked.parameters()]
    stats = handle.stats()
    assert stats.values == stats.frame_bytes == 0
    sent = 2 * 2 * 4 * (sum(values) - sum(values) // n)  # two steps, two legs, four bytes
    if kind == "mlp":  # one bucket, a multiple of n values
        assert sum(values) % n == 0
        assert stats.bytes_sent == stats.bytes_received == sent
    assert observed[0] == 0
    assert observed[-1] == 1
    handle.enabled = True
    backward(hooked, rank, 2)
    assert handle.stats().values == sum(values)
    handle.close()


@pytest.mark.parametrize("kind", ["mlp", "mixed", "float16"])
def test_disabled_is_plain_averaging(team: Workers, kind: str) -> None:
    team.run(plain_job, kind)


def small_job(rank: int, n: int) -> None:
    model = build("mlp")
    handle = ddp.register(model, thinwire.ORQ(levels=9), min_values=480)
    schemes: dict[str, Scheme] = {}
    handle.observer = lambda message, key: schemes.update({s.name: s.scheme for s in message.layout})
    backward(model, rank, 0)
    for name, parameter in model.module.named_parameters():
        small = parameter.numel() < 480  # last.weight has as many
        assert schemes[name] == (thinwire.NoCompression() if small else thinwire.ORQ(levels=9))
    handle.close()


def test_small_parameters_travel_uncompressed(team: Workers) -> None:
    team.run(small_job)


def user_collectives_job(rank: int, n: int) -> None:
    """Collectives of the program itself, between backward and step and on another thread's time, are not touched."""
    model = build("mlp", bucket_cap_mb=0.01)
    handle = ddp.register(model, thinwire.SignSGD())
    for step in range(5):
        backward(model, rank, step)
        loss = torch.full((1000,), float(rank))
        dist.all_reduce(loss)
        assert torch.equal(loss, torch.full((1000,), float(sum(range(n)))))
    handle.close()


def test_the_programs_own_collectives_are_not_touched(team: Workers) -> None:
    team.run(user_collectives_job)


def result_job(rank: int, n: int, kind: str) -> None:
    model = build(kind)
    handle = ddp.register(model, thinwire.ORQ(levels=5))
    average = handle.average

    def checked(bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        before = bucket.buffer().clone()
        future = average(bucket)
        result = future.wait()
        assert (result.shape, result.dtype) == (before.shape, before.dtype)
        assert result.data_ptr() == bucket.buffer().data_ptr()  # DDP would keep another one for a whole step
        assert n == 1 or not torch.equal(result, before)
        return future

    handle.average = checked  # type: ignore[method-assign]
    backward(model, rank, 0)
    handle.close()


@pytest.mark.parametrize("kind", ["mlp", "mixed", "float16", "float64"])
def test_the_result_is_the_bucket_itself_and_of_its_count_and_dtype(team: Workers, kind: str) -> None:
    """DDP itself takes any length and dtype in silence."""
    team.run(result_job, kind)


def overlap_job(rank: int, n: int) -> None:
    """Rank 1 sends its first bucket's frame only after rank 0, which waits for it, has begun to encode its second."""
    model, token, buckets = build("mlp", bucket_cap_mb=0.01), torch.zeros(1), 0

    def observe(*_: object) -> None:
        nonlocal buckets
        buckets += 1
        if (rank, buckets) == (1, 1):
            dist.recv(token, 0)
        elif (rank, buckets) == (0, 2):
            dist.send(token, 1)

    handle = ddp.register(model, thinwire.ORQ())
    backward(model, rank, 0)  # DDP makes its buckets
    handle.observer = observe
    backward(model, rank, 1)
    assert buckets > 1
    handle.close()


def test_a_bucket_is_encoded_while_another_is_being_sent() -> None:
    workers(2).run(overlap_job)
