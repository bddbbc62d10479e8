"""all_gather, reduce_scatter, and calls that return at once."""

from __future__ import annotations

import pytest
import torch

import thinwire
from samples import tensors
from thinwire.collectives import all_gather, all_reduce, reduce_scatter, shares
from thinwire.types import Key
from thinwire.wire import compose, encode, read
from workers import Workers, new_group


def gather_job(rank: int, n: int) -> None:
    scheme, key = thinwire.ORQ(levels=9), Key(seed=2)
    every = all_gather(tensors(rank), scheme, key=key)
    assert len(every) == n
    for other, got in enumerate(every):
        expected = read(encode(compose(tensors(other), scheme)[0], key.replace(rank=other)))[1]
        for value, (name, tensor) in zip(expected, got.items()):
            assert torch.equal(tensor, value), name
    single = all_gather(torch.full((3, 2), float(rank)), thinwire.NoCompression())
    assert [tensor.tolist() for tensor in single] == [[[r, r]] * 3 for r in range(n)]
    assert all_gather([], scheme) == [[]] * n


def test_all_gather_gives_each_ranks_decoded_tensors(team: Workers) -> None:
    team.run(gather_job)


def scatter_job(rank: int, n: int) -> None:
    own, key = tensors(rank), Key(seed=4)
    mean = all_reduce(own, thinwire.NoCompression(), key=key, algorithm="all_gather")
    part = reduce_scatter(own, thinwire.NoCompression(), key=key)
    for (name, tensor), where in zip(part.items(), shares(own, thinwire.NoCompression(), n)[rank]):
        torch.testing.assert_close(tensor, mean[name].flatten()[where], rtol=0, atol=0 if n == 1 else 1e-6)
        assert tensor.dtype == own[name].dtype
    lossy = reduce_scatter([own["prime"]], thinwire.ORQ())
    assert lossy[0].numel() == sum(
        where.stop - where.start for where in shares([own["prime"]], thinwire.ORQ(), n)[rank]
    )
    assert reduce_scatter([], thinwire.ORQ()) == []
    assert reduce_scatter(torch.ones(1), thinwire.ORQ()).tolist() == ([1.0] if rank == 0 else [])


def test_reduce_scatter_gives_each_rank_its_share_of_the_mean(team: Workers) -> None:
    team.run(scatter_job)


def test_shares_are_a_partition() -> None:
    x = [torch.empty(count, device="meta") for count in (0, 1, 5000, 20_000)]
    by_rank = shares(x, thinwire.ORQ(), 3)
    for index, tensor in enumerate(x):
        covered = sorted(i for share in by_rank for i in range(tensor.numel())[share[index]])
        assert covered == list(range(tensor.numel()))
    assert shares([], thinwire.ORQ(), 3) == [[], [], []]


def async_job(rank: int, n: int, algorithm: str) -> None:
    """Many calls under way at once, of all kinds, give what waiting for each gives."""
    xs = [torch.randn(3000 + i, generator=torch.Generator().manual_seed(rank + 10 * i)) for i in range(6)]
    groups = [new_group() for _ in range(2)]
    waited = [all_reduce(x, thinwire.TernGrad(), group=groups[0], algorithm=algorithm) for x in xs]
    futures = [all_reduce(x, thinwire.TernGrad(), group=groups[1], algorithm=algorithm, async_op=True) for x in xs]
    others = [f(xs[0], thinwire.ORQ(), group=groups[1], async_op=True) for f in (all_gather, reduce_scatter)]
    assert all(torch.equal(future.wait(), mean) for future, mean in zip(futures, waited))
    assert len(others[0].wait()) == n
    assert others[1].wait().dim() == 1


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
def test_calls_may_be_under_way_together(team: Workers, algorithm: str) -> None:
    team.run(async_job, algorithm)


def async_error_job(rank: int, n: int) -> None:
    group = new_group()
    with pytest.raises(thinwire.errors.MessageError):  # here and now
        all_reduce("text", thinwire.ORQ(), group=group, async_op=True)
    future = all_reduce(torch.ones(5), thinwire.ORQ(), key=Key(step=rank), group=group, async_op=True)
    with pytest.raises(thinwire.ThinwireError, match="expected"):
        future.wait()


def test_an_error_of_the_exchange_comes_out_of_wait(four: Workers) -> None:
    four.run(async_error_job)
