"""Methods that declare `unbiased` are, in every dtype, for the levels that the receiver sees."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.schemes.cases import CASES
from tests.strategies import block

import thinwire
from thinwire.schemes import LeveledScheme, partition
from thinwire.types import DTYPES, Message, Segment

UNBIASED = [case for case in CASES if case.traits.unbiased and not case.traits.joint]
VALUES = 48  # in a block
DRAWS = 2048
KINDS = ("normal", "lognormal", "offset", "sparse", "ties")
label = repr


def draws(x: torch.Tensor, scheme, seed: int = 0) -> torch.Tensor:
    """Encode DRAWS copies of one block side by side, each a block of its own: float64 `[DRAWS, VALUES]`."""
    frame = thinwire.encode(x.repeat(DRAWS), scheme, seed=seed)
    return thinwire.decode(frame).reshape(DRAWS, len(x)).to(torch.float64)


def neighbours(x: torch.Tensor, scheme) -> tuple[np.ndarray, np.ndarray]:
    """The levels on either side of each value of one block, as the receiver will see them; float64."""
    values = x.to(torch.float32).numpy().astype(np.float64)
    if not isinstance(scheme, LeveledScheme):
        return values, values
    layout = (Segment(shape=tuple(x.shape), dtype=x.dtype, scheme=scheme),)
    plan = scheme.plan(Message(layout, [x]), partition(layout)[1][0])
    levels = plan.levels[0].numpy().astype(np.float64)
    assert levels[0] <= values.min()
    assert values.max() <= levels[-1]
    return (
        np.array([levels[levels <= v].max() for v in values]),
        np.array([levels[levels >= v].min() for v in values]),
    )


def one_block(kind: str, dtype: torch.dtype) -> torch.Tensor:
    x = torch.from_numpy(block(kind, 5, VALUES))
    return x.clamp(-60000, 60000).to(dtype) if dtype == torch.float16 else x.to(dtype)


def sized(scheme):
    return replace(scheme, block_size=VALUES) if isinstance(scheme, LeveledScheme) else scheme


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scheme", UNBIASED, ids=label)
def test_the_mean_over_many_draws_is_the_value(scheme, dtype):
    """Within 5 standard errors for each value and for their sum.

    The standard errors are the exact ones, sqrt((hi - x)(x - lo) / draws). A value close to a level leaves it a few
    times at most: there Bernstein's inequality, at the probability of 5 standard errors, adds 25/6 cells / draws. Their
    sum may be off by the bias of 16 random bits, 2^-17 of each cell.
    """
    for kind in KINDS:
        x = one_block(kind, dtype)
        lo, hi = neighbours(x, sized(scheme))
        got = draws(x, sized(scheme)).numpy()
        assert ((got == lo) | (got == hi)).all()
        wanted = x.to(torch.float32).numpy().astype(np.float64)
        variance = (hi - wanted) * (wanted - lo) / DRAWS
        deviation = got.mean(0) - wanted
        rare = 25 / 6 * (hi - lo) / DRAWS
        assert (np.abs(deviation) <= 5 * np.sqrt(variance) + rare + 1e-9 * np.abs(wanted)).all(), kind
        bias = 2**-17 * (hi - lo).sum() + 1e-9 * np.abs(wanted).sum()
        assert abs(deviation.sum()) <= 5 * math.sqrt(variance.sum()) + bias, kind


@pytest.mark.parametrize("scheme", [case for case in CASES if case.traits.averages_out], ids=label)
def test_seeds_steps_and_segments_are_independent_draws(scheme):
    """The mean over seeds has the variance of independent errors, not that of one error repeated."""
    n, seeds = 2000, 60
    x = torch.from_numpy(block("normal", 9, n))
    expected = thinwire.expected_error([x, x], scheme) * float((x.double() ** 2).sum())
    means = []
    for seed in range(seeds):
        first, second = thinwire.decode(thinwire.encode([x, x], scheme, seed=seed))
        means += [first.double() - x, second.double() - x]
    error_of_mean = float((torch.stack(means).mean(0) ** 2).sum())
    assert error_of_mean == pytest.approx(expected / (2 * seeds), rel=0.25)


@pytest.mark.parametrize("kind", ["normal", "laplace", "ties", "two values", "offset"])
@pytest.mark.parametrize("scheme", [case for case in CASES if case.traits.nearly_unbiased], ids=label)
def test_what_is_nearly_unbiased_has_a_small_bias(scheme, kind):
    """Its squared norm below 0.2% of the values', where they are not few; an unbiased estimate of it.

    |mean - x|^2 over independent draws exceeds the squared bias by the variance of the mean.
    """
    n, seeds = 1000, 1000
    x = torch.from_numpy(block(kind, 7, n))
    decoded = torch.stack(thinwire.decode(thinwire.encode([x] * seeds, scheme))).to(torch.float64)
    squared = float((decoded.mean(0) - x).square().sum() - decoded.var(0).sum() / seeds)
    assert squared <= 0.002 * float(x.to(torch.float64).square().sum())


@pytest.mark.parametrize("scheme", [case for case in CASES if not case.traits.averages_out], ids=label)
def test_what_is_declared_biased_is(scheme):
    """So that the trait says something: the mean of many draws stays away from a skewed block."""
    x = one_block("lognormal", torch.float32)
    segments = thinwire.decode(thinwire.encode([x] * DRAWS, scheme))
    deviation = torch.stack(segments).to(torch.float64).mean(0) - x
    assert float(deviation.abs().max()) > 1e-3 * float(x.abs().max())


def test_a_value_on_a_level_stays_there():
    """Every ORQ level is a value of the block: all of them decode to themselves, whatever the seed."""
    x = one_block("normal", torch.float32)
    scheme = thinwire.ORQ(levels=9, block_size=VALUES)
    lo, hi = neighbours(x, scheme)
    on_a_level = torch.from_numpy(lo == hi)
    assert int(on_a_level.sum()) >= 9
    assert (draws(x, scheme)[:, on_a_level] == x[on_a_level]).all()
