"""The two legs of reduce_scatter between real processes: values to the bit, random numbers, bytes, failures."""

from __future__ import annotations

import time

import pytest
import torch

import thinwire
from samples import tensors
from thinwire.collectives import Channel, all_reduce, average, call
from thinwire.collectives.shards import cut
from thinwire.types import Key, Message
from thinwire.wire import accumulate, capacity, compose, encode
from workers import Workers, workers

SCHEMES = [thinwire.ORQ(levels=9), thinwire.SignSGD(block_size=None), thinwire.TernGrad(level_dtype="bfloat16")]


@pytest.fixture(params=[1, 2, 3, 4], ids="{} ranks".format)
def ranks(request: pytest.FixtureRequest) -> Workers:
    return workers(request.param)


def the_long_way(
    n: int, scheme: thinwire.schemes.Scheme, second: thinwire.schemes.Scheme | None, key: Key
) -> torch.Tensor:
    """The mean as the documents describe it: every frame of both legs made and read here."""
    messages = [compose(tensors(r), scheme)[0] for r in range(n)]
    flat = torch.zeros(messages[0].numel, dtype=torch.float64)
    for owner, shard in enumerate(cut(messages[0].layout, n)):
        wide = torch.float64 in {segment.dtype for segment in shard.layout}
        mean = torch.zeros(shard.numel, dtype=torch.float64 if wide else torch.float32)
        for r, message in enumerate(messages):
            accumulate(encode(shard.of(message), key.replace(rank=r)), shard.layout, mean)
        mean /= n
        layout = shard.under(second)
        parts = [part.to(s.dtype) for part, s in zip(mean.split([s.numel for s in layout]), layout)]
        got = torch.zeros(shard.numel, dtype=torch.float64)
        accumulate(
            encode(Message(layout, parts, None if wide else mean), key.replace(rank=owner, stratum=1)), layout, got
        )
        shard.scatter(got, flat)
    return flat


def mean_job(rank: int, n: int, scheme: thinwire.schemes.Scheme, second: thinwire.schemes.Scheme | None) -> bytes:
    channel, key, own = Channel(), Key(seed=3, step=5), tensors(rank)
    message, _ = compose(own, scheme)
    mean = average(channel, message, key, "reduce_scatter", second_leg=second).wait()
    assert torch.equal(mean, the_long_way(n, scheme, second, key))
    assert all(torch.equal(own[name], value) for name, value in tensors(rank).items())  # nothing was written to
    channel.close()
    return mean.numpy().tobytes()


@pytest.mark.parametrize("second", [None, thinwire.QSGD(levels=17)], ids=["same", "qsgd"])
@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.label)
def test_the_mean_is_that_of_both_legs_frames_to_the_bit_on_all_ranks(
    ranks: Workers, scheme: thinwire.schemes.Scheme, second: thinwire.schemes.Scheme | None
) -> None:
    results = ranks.run(mean_job, scheme, second)
    assert all(result == results[0] for result in results)


def exact_job(rank: int, n: int) -> None:
    own = {name: value for name, value in tensors(rank).items() if value.dtype != torch.float64}
    gathered = all_reduce(own, thinwire.NoCompression(), algorithm="all_gather")
    scattered = all_reduce(own, thinwire.NoCompression(), algorithm="reduce_scatter")
    for name, value in gathered.items():
        assert torch.equal(scattered[name], value), name
    for x in ([], torch.empty(0, 4), torch.ones(1)):  # fewer values than ranks: empty shards
        out = all_reduce(x, thinwire.ORQ(), algorithm="reduce_scatter")
        assert out == [] if isinstance(x, list) else torch.equal(out, x)


def test_uncompressed_it_is_what_all_gather_gives_also_with_empty_shards(ranks: Workers) -> None:
    ranks.run(exact_job)


def default_job(rank: int, n: int) -> tuple[bool, bool]:
    x, key = torch.randn(5000, generator=torch.Generator().manual_seed(rank)), Key(step=7)
    default = all_reduce(x, thinwire.ORQ(), key=key)
    named = [all_reduce(x, thinwire.ORQ(), key=key, algorithm=name) for name in ("all_gather", "reduce_scatter")]
    return torch.equal(default, named[0]), torch.equal(default, named[1])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_the_default_is_all_gather_up_to_three_ranks_and_reduce_scatter_beyond(count: int) -> None:
    assert set(workers(count).run(default_job)) == {(count <= 3, count > 3)}


def refused_job(rank: int, n: int) -> None:
    for options in (
        {"algorithm": "ring"},
        {"algorithm": "all_gather", "second_leg": thinwire.ORQ()},
        {"algorithm": "reduce_scatter", "second_leg": "orq-9"},
    ):
        with pytest.raises(thinwire.errors.SchemeError):
            all_reduce(torch.ones(3), thinwire.ORQ(), **options)
    assert all_reduce(torch.ones(3), thinwire.ORQ()).sum() == 3  # nothing was sent, the channel works on


def test_an_unknown_algorithm_or_an_option_without_effect_is_refused(four: Workers) -> None:
    four.run(refused_job)


def pieces_job(rank: int, n: int) -> None:
    """Equal values everywhere: the errors of two pieces, and of the two legs, must not repeat each other."""
    block = torch.randn(2048, generator=torch.Generator().manual_seed(0))
    errors = all_reduce(block.repeat(n), thinwire.QSGD(levels=3), algorithm="reduce_scatter").view(n, 2048) - block
    correlation = torch.corrcoef(errors) - torch.eye(n)
    assert correlation.abs().max() < 5 / 2048**0.5


def test_pieces_of_one_segment_draw_their_own_numbers(four: Workers) -> None:
    four.run(pieces_job)


def traffic_job(rank: int, n: int) -> tuple[int, int]:
    channel = Channel()
    message, _ = compose(tensors(rank), thinwire.ORQ(levels=5))
    second = thinwire.ORQ(levels=17)
    for step in range(2):
        average(channel, message, Key(step=step), "reduce_scatter", second_leg=second).wait()
    shards = cut(message.layout, n)
    first = [capacity(shard.layout) for shard in shards]
    back = [capacity(shard.under(second)) for shard in shards]
    traffic = channel.traffic
    assert traffic.calls == 2
    assert traffic.values == 2 * message.numel
    assert traffic.frame_bytes == 2 * (sum(first) + back[rank])
    assert traffic.bytes_sent == 2 * (sum(first) - first[rank] + (n - 1) * back[rank])
    assert traffic.bytes_received == 2 * ((n - 1) * first[rank] + sum(back) - back[rank])
    stages = ("plan", "encode", "communicate", "decode")
    assert all(getattr(traffic, f"{stage}_seconds") > 0 for stage in stages)
    channel.close()
    return traffic.bytes_sent, traffic.bytes_received


def test_counters_are_all_but_the_own_shard_twice(ranks: Workers) -> None:
    sent, received = zip(*ranks.run(traffic_job))
    assert sum(sent) == sum(received)


def failing(channel: Channel, values: int = 20_000) -> str:
    message, _ = compose(torch.ones(values), thinwire.ORQ(levels=3))
    with pytest.raises(thinwire.ThinwireError) as caught:
        average(channel, message, Key(), "reduce_scatter").wait()
    return f"{type(caught.value).__name__}: {caught.value}"


def encode_job(rank: int, n: int, values: int) -> tuple[str, str]:
    channel = Channel()

    def broken(*_: object, **__: object) -> torch.Tensor:
        raise MemoryError("no room on 2, and " + 200 * "more")

    with pytest.MonkeyPatch.context() as patch:
        if rank == 2:
            patch.setattr(call, "encode", broken)
        return failing(channel, values), failing(channel, values)


@pytest.mark.parametrize("values", [1, 20_000])
def test_a_rank_that_cannot_encode_is_named_by_all_in_the_same_words(four: Workers, values: int) -> None:
    results = four.run(encode_job, values)
    assert results[0][0].startswith("PeerFailure: rank 2 could not encode: MemoryError: no room on 2")
    assert {said for pair in results for said in pair} == {results[0][0]}


def second_leg_job(rank: int, n: int, altered: bool) -> str:
    """Rank 1 alone sees it: the frame of rank 2 for its shard is altered, or its own mean cannot be encoded."""
    channel, calls = Channel(), 0

    def wrong(message: Message, key: Key, **options: bool) -> torch.Tensor:
        nonlocal calls
        frame = encode(message, key, **options)
        if altered and calls == 1:  # rank 2's second frame goes to rank 1
            frame[-20] ^= 4
        elif not altered and key.stratum:
            raise MemoryError("no room for the mean")
        calls += 1
        return frame

    with pytest.MonkeyPatch.context() as patch:
        if rank == (2 if altered else 1):
            patch.setattr(call, "encode", wrong)
        return failing(channel)


@pytest.mark.parametrize("altered", [True, False], ids=["altered in transit", "the owner cannot encode"])
def test_what_a_shards_owner_alone_sees_ends_the_step_on_all_ranks_alike(four: Workers, altered: bool) -> None:
    results = four.run(second_leg_job, altered)
    cause = "AlteredFrameError: frame of rank 2: " if altered else "MemoryError: no room for the mean"
    assert results[0].startswith(f"PeerFailure: rank 1 could not average its shard: {cause}")
    assert set(results) == {results[0]}


def last_leg_job(rank: int, n: int) -> tuple[int, str]:
    """Rank 3 alone gets an altered mean, when nothing more is exchanged in this call."""
    channel, calls = Channel(), 0
    message, _ = compose(torch.ones(20_000), thinwire.ORQ(levels=3))
    sound = channel.link.exchange

    def altered(*args: object) -> dict[int, torch.Tensor]:
        nonlocal calls
        frames = sound(*args)  # type: ignore[arg-type]
        calls += 1
        if rank == 3 and calls == 2:
            frames[0][-20] ^= 4
        return frames

    step = -1
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(channel.link, "exchange", altered)
        try:
            for step in range(2):
                average(channel, message, Key(step=step), "reduce_scatter").wait()
        except thinwire.ThinwireError as error:
            return step, str(error)
    raise AssertionError("nobody noticed")


def test_what_one_rank_alone_sees_in_the_last_leg_ends_the_others_at_their_next_exchange(four: Workers) -> None:
    start = time.monotonic()
    results = four.run(last_leg_job)
    assert [step for step, _ in results] == [1, 1, 1, 0]
    assert all("frame of rank 0: frame: the checksum does not match" in said for _, said in results), results
    assert time.monotonic() - start < 10
