"""Frames that are shorter than their capacity, and differ in length between ranks and steps."""

from __future__ import annotations

import pytest
import torch

import thinwire
from samples import Squeezed
from thinwire.collectives import Channel, all_gather, average
from thinwire.collectives.shards import cut
from thinwire.types import Key, Message
from thinwire.wire import capacity, compose, encode
from workers import Workers, new_group

COUNT = 10_000


def values(rank: int, step: int) -> torch.Tensor:
    """Nothing but zeros from some place on, which depends on rank and step."""
    x = torch.randn(COUNT, generator=torch.Generator().manual_seed(rank))
    x[(3000 * rank + 2500 * step) % COUNT :] = 0
    return x


def mean_job(rank: int, n: int, algorithm: str) -> list[bytes]:
    channel, means = Channel(), []
    for step in range(4):
        message, _ = compose([values(rank, step), torch.ones(5)], Squeezed())
        mean = average(channel, message, Key(step=step), algorithm).wait()
        expected = torch.stack([values(r, step) for r in range(n)]).sum(0) / n
        torch.testing.assert_close(mean[:COUNT], expected, rtol=1e-6, atol=1e-6)
        assert torch.equal(mean[COUNT:], torch.ones(5))
        means.append(mean.numpy().tobytes())
    channel.close()
    return means


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
def test_means_are_right_and_alike(team: Workers, algorithm: str) -> None:
    results = team.run(mean_job, algorithm)
    assert all(result == results[0] for result in results)


def length_job(rank: int, n: int) -> tuple[int, int]:
    """What gloo is handed is the frames themselves, not the room that the receivers have for them."""
    channel = Channel()
    message, _ = compose(values(rank, 1), Squeezed())
    average(channel, message, Key(), "all_gather").wait()
    frame = encode(message, Key())
    assert frame.numel() < capacity(message.layout)
    assert channel.traffic.bytes_sent == (n - 1) * frame.numel()
    before = channel.traffic.bytes_sent
    average(channel, message, Key(), "reduce_scatter").wait()
    shards = [encode(shard.of(message), Key()).numel() for shard in cut(message.layout, n)]
    assert (
        before < channel.traffic.bytes_sent < before + sum(shards) + n * capacity(cut(message.layout, n)[rank].layout)
    )
    channel.close()
    return channel.traffic.bytes_sent, channel.traffic.bytes_received


def test_their_true_length_is_sent_and_counted(four: Workers) -> None:
    sent, received = zip(*four.run(length_job))
    assert sum(sent) == sum(received)


def too_long_job(rank: int, n: int) -> str:
    class Lying(Squeezed):
        def encode(self, message: Message, *args: object) -> list[torch.Tensor]:
            return [torch.ones(message.numel + (rank == 1))]

    group = new_group()
    with pytest.raises(thinwire.errors.PeerFailure) as caught:
        all_gather(torch.ones(100), Lying(), group=group)
    return str(caught.value)


def test_a_frame_longer_than_its_capacity_is_the_encoders_fault_on_all_ranks(four: Workers) -> None:
    results = four.run(too_long_job)
    assert set(results) == {results[0]}
    assert results[0].startswith("rank 1 could not encode: ")
