"""all_reduce between real processes: values to the bit, random numbers, counters, structures."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.distributed as dist

import thinwire
from samples import tensors
from thinwire.collectives import Channel, all_reduce, average
from thinwire.errors import ChannelError, MessageError, PeerFailure, UnexpectedFrameError
from thinwire.schemes import METHODS
from thinwire.types import Key
from thinwire.wire import accumulate, capacity, compose, encode, read
from workers import Workers, new_group

SCHEMES = [build() for build in METHODS.values()]


def mean_of_decoded(ranks: int, scheme: thinwire.schemes.Scheme, key: Key) -> dict[str, torch.Tensor]:
    """The mean by the long way: each rank's frame made and read here, and the values added one frame after another.

    Values that are between two of a narrow dtype, as dither leaves them, are rounded to it once, after averaging.
    """
    total = torch.zeros(sum(own.numel() for own in tensors(0).values()), dtype=torch.float64)
    for rank in range(ranks):
        message = compose(tensors(rank), scheme)[0]
        decoded = torch.zeros_like(total)
        accumulate(encode(message, key.replace(rank=rank)), message.layout, decoded)
        total = total + decoded
    parts = total.split([own.numel() for own in tensors(0).values()])
    return {
        name: (part / ranks).to(own.dtype).reshape(own.shape) for part, (name, own) in zip(parts, tensors(0).items())
    }


def mean_job(rank: int, n: int, scheme: thinwire.schemes.Scheme) -> list[bytes]:
    own = tensors(rank)
    key = Key(seed=3, step=5)
    means = all_reduce(own, scheme, key=key, algorithm="all_gather")
    for name, expected in mean_of_decoded(n, scheme, key).items():
        assert means[name].shape == expected.shape
        assert torch.equal(means[name], expected), f"{name}: {means[name]} is not {expected}"
        assert torch.equal(own[name], tensors(rank)[name]), f"{name} was written to"
    narrow = {name: tensor for name, tensor in own.items() if tensor.dtype != torch.float64}
    means |= {f"narrow {name}": tensor for name, tensor in all_reduce(narrow, scheme).items()}
    return [tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in means.values()]


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.label)
def test_the_mean_is_that_of_the_decoded_frames_to_the_bit_on_all_ranks(
    team: Workers, scheme: thinwire.schemes.Scheme
) -> None:
    results = team.run(mean_job, scheme)
    assert all(result == results[0] for result in results)


def float32_job(rank: int, n: int) -> None:
    """In float32 the additions go from rank 0 up, one by one."""
    scheme, key = thinwire.ORQ(levels=9), Key(seed=1)
    x = [torch.randn(5000, generator=torch.Generator().manual_seed(r)) for r in range(n)]
    total = torch.zeros(5000)
    for r in range(n):
        total += read(encode(compose(x[r], scheme)[0], key.replace(rank=r)))[1][0]
    assert torch.equal(all_reduce(x[rank], scheme, key=key, algorithm="all_gather"), total / n)


def test_float32_values_are_added_in_rank_order(team: Workers) -> None:
    team.run(float32_job)


def repeat_job(rank: int, n: int) -> list[torch.Tensor]:
    """Four calls with automatic keys, on a group of their own so that they are its first."""
    group = new_group()
    return [all_reduce(tensors(rank)["matrix"], thinwire.TernGrad(), group=group) for _ in range(4)]


def test_calls_draw_anew_and_runs_repeat_to_the_bit(team: Workers) -> None:
    first, again = team.run(repeat_job), team.run(repeat_job)
    for calls, same in zip(first, again):
        assert all(torch.equal(a, b) for a, b in zip(calls, same))
    assert not any(torch.equal(first[0][0], later) for later in first[0][1:])


def error_job(rank: int, n: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Every rank brings the same values: errors of single frames, and of means of n frames."""
    x = torch.randn(1 << 16, generator=torch.Generator().manual_seed(0))
    scheme = thinwire.QSGD(levels=3)
    single = [read(encode(compose(x, scheme)[0], Key(step=s)))[1][0] - x for s in range(2)]
    return single, [all_reduce(x, scheme, key=Key(step=step), algorithm="all_gather") - x for step in range(2)]


def test_ranks_and_steps_draw_independently(four: Workers) -> None:
    single, means = four.run(error_job)[0]
    ratio = means[0].square().mean() / single[0].square().mean()
    assert ratio == pytest.approx(1 / 4, rel=0.05)  # 1 if the ranks' errors were the same
    correlation = torch.corrcoef(torch.stack([*single, *means]))
    assert abs(correlation[0, 1]) < 5 / 256  # 5 standard errors
    assert abs(correlation[2, 3]) < 5 / 256


def structure_job(rank: int, n: int) -> None:
    scheme = thinwire.NoCompression()
    mean = (n - 1) / 2
    x = torch.full((2, 3), float(rank), dtype=torch.float16)
    whole = all_reduce(x, scheme)
    assert isinstance(whole, torch.Tensor)
    assert whole.dtype == torch.float16
    assert torch.equal(whole, torch.full_like(x, mean))
    listed = all_reduce([x, x[0] + 1], scheme)
    assert isinstance(listed, list)
    assert torch.equal(listed[1], torch.full((3,), mean + 1, dtype=torch.float16))
    named = all_reduce({"b": x, "a": x[0]}, {"a": thinwire.ORQ(levels=3), "b": scheme})
    assert list(named) == ["b", "a"]
    assert torch.equal(named["b"], whole)
    assert all_reduce([], scheme) == []
    assert all_reduce(torch.empty(0, 4), scheme).shape == (0, 4)
    assert all_reduce(x.requires_grad_(), scheme).requires_grad is False


def test_structure_shapes_and_dtypes_come_back(team: Workers) -> None:
    team.run(structure_job)


def non_finite_job(rank: int, n: int, scheme: thinwire.schemes.Scheme, algorithm: str) -> bytes:
    """Rank n - 1 brings one inf and one NaN, in the first and the third of four blocks."""
    group, block = new_group(), max(2048, getattr(scheme, "block_size", 0))
    x = torch.randn(4 * block, generator=torch.Generator().manual_seed(rank))
    if rank == n - 1:
        x[7], x[2 * block + 904] = float("inf"), float("nan")
    mean = all_reduce(x, scheme, group=group, algorithm=algorithm)
    finite = mean.isfinite()
    assert not finite[7]
    assert not finite[2 * block + 904]
    assert finite[block : 2 * block].all()
    assert finite[3 * block :].all()
    x[7] = x[2 * block + 904] = 1.0
    assert all_reduce(x, scheme, group=group, algorithm=algorithm).isfinite().all()  # the next call is normal
    return mean.numpy().tobytes()


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.label)
def test_a_non_finite_value_of_one_rank_is_seen_by_all_where_it_is(
    team: Workers, scheme: thinwire.schemes.Scheme, algorithm: str
) -> None:
    results = team.run(non_finite_job, scheme, algorithm)
    assert all(result == results[0] for result in results)


def traffic_job(rank: int, n: int) -> None:
    message, _ = compose(tensors(rank), thinwire.ORQ(levels=5))
    channel = Channel()
    for call in range(3):
        average(channel, message, Key(step=call)).wait()
    frame = encode(message, Key())
    assert frame.numel() == capacity(message.layout)
    traffic = channel.traffic
    assert traffic.calls == 3
    assert traffic.bytes_sent == traffic.bytes_received == 3 * (n - 1) * frame.numel()
    assert traffic.frame_bytes == 3 * frame.numel()
    assert traffic.values == 3 * message.numel
    channel.close()
    channel.close()
    with pytest.raises(ChannelError, match="closed"):
        average(channel, message, Key())


def test_counters_are_the_exact_bytes(team: Workers) -> None:
    team.run(traffic_job)


def threads_job(rank: int, n: int) -> None:
    groups = [new_group() for _ in range(2)]
    for group in groups:
        all_reduce(torch.zeros(1), thinwire.NoCompression(), group=group)  # channels are made in one order
    wrong: list[float] = []

    def loop(which: int) -> None:
        x = torch.full((1000,), 10.0 * which + rank)
        for _ in range(25):
            mean = all_reduce(x, thinwire.NoCompression(), group=groups[which])
            wrong.extend(mean[mean != 10.0 * which + (n - 1) / 2].tolist())

    threads = [threading.Thread(target=loop, args=(which,)) for which in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_two_threads_with_a_group_each_do_not_swap_results(four: Workers) -> None:
    four.run(threads_job)


def crossed_job(rank: int, n: int, algorithm: str) -> str:
    group = new_group()
    with pytest.raises((UnexpectedFrameError, PeerFailure)) as caught:  # rank 0 has turned two calls round
        all_reduce(torch.ones(10), thinwire.ORQ(), group=group, key=Key(step=1 if rank else 2), algorithm=algorithm)
    with pytest.raises(type(caught.value), match="expected"):  # the channel stays broken
        all_reduce(torch.ones(10), thinwire.ORQ(), group=group)
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
def test_calls_in_different_order_are_refused_not_mixed(four: Workers, algorithm: str) -> None:
    assert all("step=1" in said and "step=2" in said for said in four.run(crossed_job, algorithm))


def subgroup_job(rank: int, n: int) -> float:
    halves = [new_group([0, 2]), new_group([1, 3])]
    mean = all_reduce(torch.tensor([float(rank)]), thinwire.NoCompression(), group=halves[rank % 2])
    with pytest.raises(ChannelError, match="not a member"):
        all_reduce(torch.ones(2), thinwire.NoCompression(), group=halves[1 - rank % 2])
    return mean.item()


def test_a_group_may_be_smaller_than_the_world(four: Workers) -> None:
    assert four.run(subgroup_job) == [1.0, 2.0, 1.0, 2.0]


def test_without_a_process_group_there_is_one_clear_error() -> None:
    assert not dist.is_initialized()
    with pytest.raises(ChannelError, match=r"init_process_group"):
        all_reduce(torch.ones(3), thinwire.ORQ())


def refused_job(rank: int, n: int) -> None:
    for bad in (torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.complex64), "text"):
        with pytest.raises(MessageError):
            all_reduce(bad, thinwire.ORQ())
    assert all_reduce(torch.ones(3), thinwire.ORQ()).sum() == 3  # nothing was sent, the channel works on


def test_what_cannot_be_encoded_is_refused_before_anything_is_sent(team: Workers) -> None:
    team.run(refused_job)
