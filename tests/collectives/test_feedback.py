"""The two calls by which error feedback takes part in an exchange."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import thinwire
from thinwire.collectives import Channel, average
from thinwire.collectives.shards import cut
from thinwire.types import Key, Message
from thinwire.wire import compose
from workers import Workers


class Memory:
    """The simplest feedback: one residual a segment, by name and stream, for float32 segments."""

    def __init__(self) -> None:
        self.residuals: dict[tuple[str, int], Tensor] = {}
        self.calls: list[str] = []

    def compensate(self, message: Message) -> Message:
        self.calls.append("compensate")
        values = [
            value + self.residuals.get((segment.name, segment.stream), torch.zeros(segment.numel))
            for segment, value in zip(message.layout, message.values)
        ]
        return Message(message.layout, values)

    def keep(self, message: Message, decoded: Tensor) -> None:
        self.calls.append("keep")
        parts = decoded.split([segment.numel for segment in message.layout])
        for segment, value, part in zip(message.layout, message.values, parts):
            self.residuals[segment.name, segment.stream] = value - part


def gradients(rank: int, step: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return {name: torch.randn(count, generator=generator) for name, count in (("a", 5000), ("b", 7), ("c", 0))}


def telescoping_job(rank: int, n: int, algorithm: str) -> None:
    """What was received so far, plus the mean of what is still kept, is the sum of the true means."""
    channel, memory = Channel(), Memory()
    received, true = torch.zeros(5007), torch.zeros(5007)
    for step in range(8):
        message, _ = compose(gradients(rank, step), thinwire.SignSGD())
        received += average(channel, message, Key(step=step), algorithm, feedback=memory).wait()
        true += torch.stack([torch.cat(list(gradients(r, step).values())) for r in range(n)]).mean(0)
    kept = torch.cat([memory.residuals.pop((name, stream)) for stream, name in enumerate("abc")]) / n
    own = cut(message.layout, n)[rank]
    for piece, segment in zip(own.pieces, own.layout if memory.residuals else ()):
        residual = memory.residuals.pop((segment.name, segment.stream))
        kept[piece.at : piece.at + piece.count] += residual  # of the mean, which is sent once
    assert not memory.residuals
    every = channel.submit(lambda: channel.link.add(kept)).wait()
    torch.testing.assert_close(received + every, true, rtol=0, atol=1e-4)
    assert (received - true).abs().max() > 0.1  # without what is kept it would not hold
    assert memory.calls == ["compensate", "keep"] * (8 if algorithm == "all_gather" else 16)
    channel.close()


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
def test_nothing_is_lost_only_delayed(team: Workers, algorithm: str) -> None:
    team.run(telescoping_job, algorithm)


class Broken(Memory):
    def __init__(self, where: str) -> None:
        super().__init__()
        self.where = where

    def compensate(self, message: Message) -> Message:
        if self.where == "compensate":
            raise MemoryError("no room to add")
        return super().compensate(message)

    def keep(self, message: Message, decoded: Tensor) -> None:
        if self.where == "keep":
            raise MemoryError("no room to keep")
        super().keep(message, decoded)


def broken_job(rank: int, n: int, where: str, algorithm: str) -> str:
    channel = Channel()
    feedback = Broken(where) if rank == 2 else Memory()
    message, _ = compose(torch.ones(3000), thinwire.SignSGD())

    def step() -> Tensor:
        return average(channel, message, Key(), algorithm, feedback=feedback).wait()

    with pytest.raises(thinwire.ThinwireError) as caught:
        step(), step()  # the others may learn of it at their next exchange
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize("where", ["compensate", "keep"])
def test_feedback_that_fails_on_one_rank_ends_all_with_its_cause(four: Workers, where: str, algorithm: str) -> None:
    results = four.run(broken_job, where, algorithm)
    assert all("rank 2" in said and "MemoryError: no room to" in said for said in results), results
