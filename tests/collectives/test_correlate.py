"""correlate=True: the errors of the ranks' means by theory, and what stays as it was."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

import thinwire
from thinwire.collectives import Channel, all_gather, all_reduce, mean_of_frames, reduce_scatter, shares
from thinwire.errors import UnexpectedFrameError
from thinwire.schemes import METHODS
from thinwire.types import Key
from thinwire.wire import compose
from workers import Workers, new_group

VALUES = 1 << 16
TWO = thinwire.MinMax(levels=2, block_size=None)  # 0 and 1 of the values below: a value is its chance to be 1


def uniform(seed: int) -> Tensor:
    x = torch.rand(VALUES, generator=torch.Generator().manual_seed(seed))
    x[0], x[1] = 0, 1
    return x


def squared_error(xs: list[Tensor], mean: Tensor) -> float:
    return float((mean - torch.stack(xs).double().mean(0)).square().mean())


def law_job(rank: int, n: int, algorithm: str) -> None:
    """A rank's error is 1/6 a value. Without correlation the mean has 1 / (6 n).

    With it: of equal values n x = k + g ranks, of which k or k + 1 round up, g (1 - g) / n^2, 1 / (6 n^2) on average.
    Of independent ones: given u errors are independent, 1/12 each, about 1/2 - u, whose sum over the shifted u has the
    variance 1/12: (n + 1) / (12 n^2).
    """
    second = {} if algorithm == "all_gather" else {"second_leg": thinwire.NoCompression()}
    mean = functools.partial(all_reduce, scheme=TWO, key=Key(seed=2), algorithm=algorithm, **second)
    same, unlike = [uniform(0)] * n, [uniform(i) for i in range(n)]
    for xs, correlate, expected in (
        (same, False, 1 / (6 * n)),
        (same, True, 1 / (6 * n * n)),
        (unlike, False, 1 / (6 * n)),
        (unlike, True, (n + 1) / (12 * n * n)),
    ):
        assert squared_error(xs, mean(xs[rank], correlate=correlate)) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
def test_the_error_of_the_mean_is_that_of_theory(four: Workers, algorithm: str) -> None:
    four.run(law_job, algorithm)


def leaders_job(rank: int, n: int) -> None:
    """Only leaders encode: two of them."""
    channel = Channel(ranks_per_node=2)
    x = uniform(0)
    message, _ = compose(x, TWO)
    found = {}
    for correlate in (False, True):
        future = channel.submit(
            mean_of_frames(channel, message, Key(), algorithm="hierarchical", correlate=correlate), x.device
        )
        found[correlate] = squared_error([x], future.wait())
    channel.close()
    assert found[False] == pytest.approx(1 / 12, rel=0.03)
    assert found[True] == pytest.approx(1 / 24, rel=0.03)


def test_leaders_of_nodes_correlate(four: Workers) -> None:
    four.run(leaders_job)


def ranks_job(rank: int, n: int) -> None:
    """Each rank for itself is unbiased: the mean over draws within 5 standard errors, rank by rank.

    Between levels 0 and 1 the variance is x (1 - x); Bernstein's inequality adds 25/6 / draws.
    """
    x, draws = uniform(1)[:500], 200
    for scheme in (TWO, thinwire.QSGD(levels=3, block_size=None)):
        decoded = torch.stack(
            [torch.stack(all_gather(x, scheme, key=Key(step=step), correlate=True)) for step in range(draws)]
        )
        deviation, wide = decoded.double().mean(0) - x, x.double()
        assert (deviation.abs() <= 5 * (wide * (1 - wide) / draws).sqrt() + 25 / 6 / draws).all()


def test_every_rank_stays_unbiased(four: Workers) -> None:
    four.run(ranks_job)


def methods_job(rank: int, n: int) -> list[bytes]:
    """No method loses by it, and those that draw no uniforms are as before, rotations each rank's own."""
    x = torch.randn(5000, generator=torch.Generator().manual_seed(3))
    means = []
    for build in METHODS.values():
        scheme, key = build(), Key(seed=1)
        plain, spread = (
            all_reduce(x, scheme, key=key, algorithm="all_gather", correlate=correlate) for correlate in (False, True)
        )
        assert squared_error([x], spread) <= 1.1 * squared_error([x], plain) + 1e-12, scheme
        if getattr(scheme, "rounding", "nearest") == "nearest" and not scheme.traits.unbiased:
            assert torch.equal(plain, spread), scheme
        means.append(spread.numpy().tobytes())
    return means


def test_all_methods_take_it(four: Workers) -> None:
    results = four.run(methods_job)
    assert all(result == results[0] for result in results)


def share_job(rank: int, n: int) -> None:
    x = uniform(0)
    share = reduce_scatter(x, TWO, key=Key(), correlate=True)
    place = shares(x, TWO, n)[rank][0]
    assert squared_error([x[place]], share) == pytest.approx(1 / (6 * n * n), rel=0.05)


def test_a_share_of_the_mean(four: Workers) -> None:
    four.run(share_job)


def differ_job(rank: int, n: int) -> None:
    group = new_group()  # of its own: a channel that failed takes no more
    with pytest.raises(UnexpectedFrameError, match="shift"):
        all_reduce(uniform(0), TWO, group=group, key=Key(), algorithm="all_gather", correlate=rank == 0)


def test_ranks_that_disagree_are_told(four: Workers) -> None:
    four.run(differ_job)
