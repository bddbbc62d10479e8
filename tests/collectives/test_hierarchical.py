"""Nodes of several ranks: exact within them, encoded between their leaders."""

from __future__ import annotations

import pytest
import torch

import thinwire
from samples import tensors
from thinwire.collectives import Channel, all_reduce, average, call
from thinwire.errors import ChannelError, PeerFailure, SchemeError
from thinwire.types import Key, Message
from thinwire.wire import accumulate, capacity, compose, encode
from workers import Workers, new_group


def exact_job(rank: int, n: int, size: int) -> None:
    own = tensors(rank)
    mean = all_reduce(own, thinwire.NoCompression(), algorithm="hierarchical", ranks_per_node=size)
    gathered = all_reduce(own, thinwire.NoCompression(), algorithm="all_gather")
    for name, value in gathered.items():
        assert mean[name].shape == value.shape
        assert mean[name].dtype == value.dtype
        few = 1e-6 if value.dtype.itemsize > 2 else 1e-2  # 16-bit nodes' means are rounded
        torch.testing.assert_close(mean[name], value, rtol=few, atol=few)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_uncompressed_it_is_the_mean(four: Workers, size: int) -> None:
    four.run(exact_job, size)


def lossy_job(rank: int, n: int) -> bytes:
    """Two nodes of two: the leaders' frames are those of their nodes' means."""
    scheme, key = thinwire.ORQ(levels=9), Key(seed=3, step=5)
    xs = [torch.randn(5000, generator=torch.Generator().manual_seed(r)) for r in range(n)]
    mean = all_reduce(xs[rank], scheme, key=key, algorithm="hierarchical", ranks_per_node=2)
    total = torch.zeros(5000)
    for leader in (0, 2):
        node, _ = compose((xs[leader] + xs[leader + 1]) / 2, scheme)
        accumulate(encode(node, key.replace(rank=leader)), node.layout, total)
    assert torch.equal(mean, total / 2)
    return mean.numpy().tobytes()


def test_leaders_encode_their_nodes_means_and_all_ranks_get_the_same(four: Workers) -> None:
    results = four.run(lossy_job)
    assert all(result == results[0] for result in results)


def traffic_job(rank: int, n: int) -> None:
    channel = Channel(ranks_per_node=2)
    message, _ = compose(torch.randn(20_000), thinwire.ORQ(levels=3))
    average(channel, message, Key(), "hierarchical").wait()
    plain = capacity(compose(torch.empty(20_000), thinwire.NoCompression())[0].layout)
    frame = capacity(message.layout)
    sent = plain + (0 if rank % 2 else frame)  # to the leader; or to the other node, and back to this one
    assert channel.traffic.bytes_sent == sent
    assert channel.traffic.frame_bytes == (0 if rank % 2 else frame)
    channel.close()


def test_between_nodes_only_frames_travel(four: Workers) -> None:
    four.run(traffic_job)


def environment_job(rank: int, n: int) -> float:
    x = torch.full((3,), float(rank))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCAL_WORLD_SIZE", "2")
        mean = all_reduce(x, thinwire.NoCompression(), algorithm="hierarchical")
        patch.delenv("LOCAL_WORLD_SIZE")
        with pytest.raises(SchemeError, match="ranks_per_node"):
            all_reduce(x, thinwire.NoCompression(), algorithm="hierarchical")
    with pytest.raises(SchemeError, match="knows no nodes"):
        all_reduce(x, thinwire.NoCompression(), algorithm="all_gather", ranks_per_node=2)
    with pytest.raises(ChannelError, match="do not form nodes of 3"):
        all_reduce(x, thinwire.NoCompression(), algorithm="hierarchical", ranks_per_node=3)
    return mean[0].item()


def test_the_node_size_comes_from_the_environment_or_is_asked_for(four: Workers) -> None:
    assert four.run(environment_job) == [1.5] * 4


def failing_job(rank: int, n: int, where: str) -> str:
    """Rank 3 (no leader) cannot encode, or rank 2 (its leader) cannot."""
    group = new_group()

    def broken(message: Message, *args: object, **options: object) -> torch.Tensor:
        if where == "leader" and message.layout[0].scheme.traits.exact:  # within the node
            return encode(message, *args, **options)  # type: ignore[arg-type]
        raise MemoryError("no room")

    with pytest.MonkeyPatch.context() as patch:
        if (where, rank) in (("member", 3), ("leader", 2)):
            patch.setattr(call, "encode", broken)
        with pytest.raises(PeerFailure) as caught:
            all_reduce(torch.ones(100), thinwire.ORQ(), group=group, algorithm="hierarchical", ranks_per_node=2)
    return str(caught.value)


@pytest.mark.parametrize(("where", "culprit"), [("member", 3), ("leader", 2)])
def test_a_failure_in_one_node_reaches_all_ranks_in_the_same_words(four: Workers, where: str, culprit: int) -> None:
    results = four.run(failing_job, where)
    assert set(results) == {results[0]}
    assert f"rank {culprit} could not encode: MemoryError: no room" in results[0]
