"""The closed form of the expected error against brute force, and against the mean of many encodings."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from tests import oracles
from tests.schemes.cases import CASES
from tests.strategies import KINDS, block

import thinwire
from thinwire.schemes import LeveledScheme, partition
from thinwire.types import DTYPES, Message, Segment

LEVELED = [case for case in CASES if isinstance(case, LeveledScheme)]
ALONE = [case for case in CASES if not case.traits.joint]
label = repr


def seen_levels(x: torch.Tensor, scheme: LeveledScheme) -> list[list[float]]:
    """Each block's levels as the receiver of the tensor will see them."""
    layout = (Segment(shape=tuple(x.shape), dtype=x.dtype, scheme=scheme),)
    group = partition(layout)[1][0]
    return scheme.plan(Message(layout, [x.reshape(-1)]), group).levels.tolist()


def brute_force(x: torch.Tensor, scheme: LeveledScheme) -> Fraction:
    """The vNMSE of a tensor, exactly, from the levels alone."""
    error = Fraction(0)
    cost = oracles.stochastic_error if scheme.rounding == "stochastic" else oracles.nearest_error
    for values, levels in zip(x.to(torch.float32).split(scheme.block_size), seen_levels(x, scheme)):
        error += cost(values.tolist(), levels)
    return error / sum(v * v for v in oracles.exact(x.tolist()))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("zeros", "subnormal")])
@pytest.mark.parametrize("scheme", LEVELED, ids=label)
def test_closed_form_equals_brute_force(scheme, kind):
    x = torch.from_numpy(block(kind, 7, 150))
    scheme = replace(scheme, block_size=64)
    expected = brute_force(x, scheme)
    assert thinwire.expected_error(x, scheme) == pytest.approx(float(expected), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scheme", LEVELED, ids=label)
def test_closed_form_in_every_dtype(scheme, dtype):
    x = torch.from_numpy(block("laplace", 3, 150)).to(dtype)
    scheme = replace(scheme, block_size=64)
    assert thinwire.expected_error(x, scheme) == pytest.approx(float(brute_force(x, scheme)), rel=1e-9)


@pytest.mark.parametrize("kind", ["normal", "laplace", "sparse", "offset", "ties", "atoms"])
@pytest.mark.parametrize("scheme", ALONE, ids=label)
def test_closed_form_equals_the_mean_over_many_draws(scheme, kind):
    """Within 5 standard errors; every segment of a message draws numbers of its own.

    Where it is a law for nearly normal coordinates, within a tenth.
    """
    draws, n = 400, 300
    x = torch.from_numpy(block(kind, 11, n))
    decoded = torch.stack(thinwire.decode(thinwire.encode([x] * draws, scheme, seed=1)))
    errors = ((decoded.double() - x.double()) ** 2).sum(1) / (x.double() ** 2).sum()
    standard_error = errors.std().item() / math.sqrt(draws)
    expected = thinwire.expected_error(x, scheme)
    slack = 1e-6 if isinstance(scheme, LeveledScheme) else 0.1
    assert abs(errors.mean().item() - expected) <= 5 * standard_error + slack * expected


@pytest.mark.parametrize("scheme", ALONE, ids=label)
def test_errors_add_up_over_segments(scheme):
    parts = {
        "a": torch.from_numpy(block("normal", 1, 500)),
        "b": torch.from_numpy(block("cauchy", 2, 33)).reshape(3, 11),
        "c": torch.zeros(0),
        "d": torch.zeros(7),
    }
    energies = {name: float((v.double() ** 2).sum()) for name, v in parts.items()}
    total = sum(thinwire.expected_error(v, scheme) * energies[name] for name, v in parts.items())
    assert thinwire.expected_error(parts, scheme) == pytest.approx(total / sum(energies.values()), rel=1e-12)


@pytest.mark.parametrize("scheme", CASES, ids=label)
@pytest.mark.parametrize("shape", [(0,), (), (5,), (2, 0, 3)])
def test_zeros_and_nothing_cost_nothing(scheme, shape):
    assert thinwire.expected_error(torch.zeros(shape), scheme) == 0.0


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("scheme", CASES, ids=label)
def test_a_non_finite_value_has_no_expected_error(scheme, bad):
    x = torch.randn(5000)
    x[4321] = bad
    assert math.isnan(thinwire.expected_error(x, scheme))


@pytest.mark.parametrize("levels", [3, 5, 9])
@pytest.mark.parametrize("kind", ["normal", "laplace", "lognormal", "cauchy", "sparse", "positive"])
def test_orq_has_less_error_than_linear_and_qsgd(kind, levels):
    x = torch.from_numpy(np.concatenate([block(kind, seed, 2048) for seed in range(8)]))
    orq = thinwire.expected_error(x, thinwire.ORQ(levels=levels))
    assert orq <= thinwire.expected_error(x, thinwire.Linear(levels=levels))
    assert orq <= thinwire.expected_error(x, thinwire.QSGD(levels=levels))


@pytest.mark.parametrize("kind", KINDS)
def test_bingrad_b_has_less_error_than_signsgd(kind):
    x = torch.from_numpy(np.concatenate([block(kind, seed, 2048) for seed in range(4)]))
    sign = thinwire.expected_error(x, thinwire.SignSGD())
    assert thinwire.expected_error(x, thinwire.BinGradB()) <= sign * (1 + 1e-12)
