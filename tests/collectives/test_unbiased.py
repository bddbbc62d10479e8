"""Methods that declare themselves unbiased: the mean of many means is the true one, and errors are independent."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from torch import Tensor

import thinwire
from thinwire.collectives import Channel, all_gather, average
from thinwire.schemes import METHODS, Scheme
from thinwire.types import Key
from thinwire.wire import compose
from workers import Workers

STEPS, PARAMETERS, VALUES = 50, 10, 600  # 500 means


def unbiased_methods() -> list[Scheme]:
    methods = [method() for method in METHODS.values()]
    unbiased = [method for method in methods if method.traits.unbiased and not method.traits.exact]
    return [dataclasses.replace(m, block_size=200) if "block_size" in m.options() else m for m in unbiased]


def together(a: Tensor, b: Tensor) -> float:
    """By how many standard errors the mean product of two errors, position by position, differs from zero."""
    product = a.double() * b.double()
    return float(product.sum().abs() / product.square().sum().sqrt())


def means_job(rank: int, n: int, algorithm: str) -> None:
    x = torch.randn(VALUES, generator=torch.Generator().manual_seed(rank))
    channel = Channel(ranks_per_node=2)

    true = channel.submit(lambda: channel.link.add(x.double() / n)).wait()
    for scheme in unbiased_methods():
        message, _ = compose([x] * PARAMETERS, scheme)
        keys = [Key(seed=9, step=step) for step in range(STEPS)]
        futures = [average(channel, message, key, algorithm) for key in keys]
        means = torch.stack([future.wait() for future in futures]).double().view(STEPS, PARAMETERS, VALUES)
        errors = means - true
        every = errors.flatten(0, 1)
        assert every.any()
        variance = every.var(0) + every.abs().max() ** 2 / len(every)  # as if each had erred once more: some rarely do
        assert (every.mean(0).abs() <= 5 * (variance / len(every)).sqrt() + 1e-6).all(), scheme
        assert together(errors[:, 1:], errors[:, :-1]) < 5, f"{scheme}: two parameters"
        assert together(errors[1:], errors[:-1]) < 5, f"{scheme}: two steps"
    channel.close()


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter", "hierarchical"])
def test_the_mean_of_500_means_is_the_true_mean(four: Workers, algorithm: str) -> None:
    four.run(means_job, algorithm)


def independent_job(rank: int, n: int) -> None:
    """All ranks, steps and parameters have the same values; no two of their errors may know of each other."""
    x = torch.randn(20 * VALUES, generator=torch.Generator().manual_seed(0))
    for scheme in unbiased_methods():
        errors = [
            decoded - x
            for step in range(2)
            for of_rank in all_gather([x, x], scheme, key=Key(seed=4, step=step))
            for decoded in of_rank
        ]
        assert len(errors) == 4 * n
        for a, b in itertools.combinations(errors, 2):
            assert together(a, b) < 5, scheme


def test_errors_of_ranks_steps_and_parameters_are_uncorrelated(four: Workers) -> None:
    four.run(independent_job)


def test_correlated_errors_would_be_seen() -> None:
    first, second = torch.randn(2, 20 * VALUES, generator=torch.Generator().manual_seed(1))
    assert together(first, second) < 5
    assert together(first, second + 0.1 * first) > 5
    assert len(unbiased_methods()) >= 5
    assert thinwire.SignSGD not in map(type, unbiased_methods())
