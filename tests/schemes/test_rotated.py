"""Rotated: levels by energy as theory would share them out, within its bits, and right on average for any block."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.data import hostile_values
from tests.sealing import sealed

import thinwire
from thinwire.errors import MalformedFrameError, MessageError
from thinwire.kernels import packed_bytes
from thinwire.kernels.gaussian import MEAN_SQUARED_ERROR
from thinwire.schemes import partition, rotated
from thinwire.wire import compose

LEVELS = sorted(MEAN_SQUARED_ERROR)
ERRORS = [MEAN_SQUARED_ERROR[s] / (1 - MEAN_SQUARED_ERROR[s]) for s in LEVELS]
BITS = [8 * packed_bytes(1 << 24, s) / (1 << 24) for s in LEVELS]


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def energy(x: torch.Tensor) -> float:
    return float((x.double() ** 2).sum())


def in_octaves(factor: float) -> float:
    """Of size, in 1/256, from a factor of energy."""
    return 128 * math.log2(factor)


def test_each_bit_goes_where_it_takes_most_error_away():
    """The thresholds, from the error and the bits of each level count; each further bit gains less than the last."""
    gains = [(a - b) / (t - s) for a, b, s, t in zip(ERRORS, ERRORS[1:], BITS, BITS[1:])]
    assert gains == sorted(gains, reverse=True)
    assert rotated._MORE.tolist() == [round(-in_octaves(gain)) for gain in gains]
    assert round(-in_octaves(1 + ERRORS[0])) == rotated._FULL


@settings(deadline=None)
@given(st.lists(st.floats(-4, 9), min_size=3, max_size=3), st.floats(0.3, 6))
def test_no_other_choice_has_less_error_for_the_bits(octaves, bits):
    """Of three blocks, against all ways to give each a number of levels or half or a quarter of its signs."""
    x = torch.cat([normal(256, i) * 2.0**octave for i, octave in enumerate(octaves)])
    sizes = [energy(block) for block in x.split(256)]
    message, _ = compose([x], thinwire.Rotated(bits=bits, weighting="global"))
    group = partition(message.layout)[1][0]
    plan = message.layout[0].scheme.plan(message, group)
    sent = rotated._sent(plan.sizes, plan.weights, plan.price, rotated.cut(group, 256, x.device))
    fractions = sent.counts / 256
    spent = sum(BITS[w] * p for w, p in zip(sent.which, fractions))
    error = sum(e * ((1 + ERRORS[w]) / p - 1) for e, w, p in zip(sizes, sent.which, fractions))
    choices = [*zip(BITS, ERRORS), *((p, (1 + ERRORS[0]) / p - 1) for p in (0.5, 0.25))]
    others = [
        sum(e * choice[1] for e, choice in zip(sizes, chosen))
        for chosen in itertools.product(choices, repeat=3)
        if sum(choice[0] for choice in chosen) <= spent + 1e-9
    ]
    assert error <= 1.02 * min(others, default=math.inf)  # sizes and fractions are rounded


@pytest.mark.parametrize("bits", [0.5, 1.0, 2.0, 3.0, 4.0])
def test_error_on_a_million_normal_values(bits):
    """Between the limit of unbiased methods and the neighbouring level counts, at what is left of `bits` for codes."""
    x = normal(1 << 20)
    frame = thinwire.encode(x, thinwire.Rotated(bits=bits), seed=1)
    found, spent = energy(thinwire.decode(frame) - x) / energy(x), 8 * frame.numel() / len(x)
    rates, errors = [0.05, *BITS], [(1 + ERRORS[0]) / 0.05 - 1, *ERRORS]
    if bits < 1:
        expected = (1 + ERRORS[0]) / (spent - 1 / 16) - 1
    else:
        expected = float(np.interp(spent - 1 / 16, rates, errors)) if spent - 1 / 16 > 1 else found
    assert 0.99 * bits <= spent <= bits
    assert 1 / (2 ** (2 * spent) - 1) < found <= 1.02 * expected


@pytest.mark.parametrize("weighting", ["tensor", "global"])
@pytest.mark.parametrize("bits", [0.25, 0.5, 1.0, 1.7, 2.0, 3.0, 6.0])
def test_bits_are_met_and_not_exceeded(bits, weighting):
    scheme = thinwire.Rotated(bits=bits, weighting=weighting)
    x, g = normal(150_000), torch.Generator().manual_seed(0)
    scaled = x * torch.exp(2 * torch.randn(600, generator=g)).repeat_interleave(250)
    for message in ({"w": x}, {"a": 1e-4 * x[:40_001], "b": scaled[:60_000].reshape(300, 200), "c": 30 * x[:50_000]}):
        values = sum(t.numel() for t in message.values())
        frame = thinwire.encode(message, scheme)
        assert frame.numel() <= thinwire.capacity(message, scheme)
        assert 0.97 * bits * values <= 8 * frame.numel() <= bits * values


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("n", [1, 7, 31, 33, 256, 300, 5_000])
def test_hostile_values_stay_within_capacity_and_the_closed_form(seed, n):
    for bits in (0.25, 1.0, 4.0, 12.0):
        scheme, x = thinwire.Rotated(bits=bits), hostile_values(n, seed)
        frame = thinwire.encode(x, scheme)
        assert frame.numel() <= thinwire.capacity(x, scheme)
        decoded = thinwire.decode(frame)
        assert torch.isfinite(decoded).all()
        assert energy(decoded - x) <= 30 * thinwire.expected_error(x, scheme) * energy(x) + 2.0**-250


@pytest.mark.parametrize("bits", [0.5, 1, 2, 4])
def test_the_closed_form_is_the_mean_over_many_draws(bits):
    """Within 5 standard errors and 2%: coordinates are nearly normal."""
    scheme = thinwire.Rotated(bits=bits)
    x = {"a": normal(7000), "b": 0.01 * normal(3000, 1) ** 3, "c": normal(90), "zeros": torch.zeros(256)}
    flat = torch.cat([t.reshape(-1) for t in x.values()]).double()
    decoded = [thinwire.decode(thinwire.encode(x, scheme, seed=seed)) for seed in range(200)]
    errors = torch.stack([torch.cat(list(y.values())).double() for y in decoded]) - flat
    relative = (errors**2).sum(1) / energy(flat)
    expected = thinwire.expected_error(x, scheme)
    assert abs(float(relative.mean()) - expected) <= 5 * float(relative.std()) / math.sqrt(200) + 0.02 * expected


SPARSE = {
    "one": lambda n: torch.eye(n)[n // 3],
    "one and a half": lambda n: torch.eye(n)[0] + 0.5 * torch.eye(n)[n - 1],
    "one among small": lambda n: torch.eye(n)[n // 2] + 1e-3 * normal(n),
    "equal": lambda n: torch.ones(n),
    "alternating": lambda n: torch.ones(n) * (1 - 2 * (torch.arange(n) % 2)),
    "powers": lambda n: 0.5 ** torch.arange(n),
    "lognormal": lambda n: torch.exp(3 * normal(n)),
}


@pytest.mark.parametrize("bits", [0.5, 1, 2, 3])
@pytest.mark.parametrize("kind", SPARSE)
@pytest.mark.parametrize("n", [1, 40, 256])
def test_the_bias_is_small_whatever_the_block(n, kind, bits):
    """Its squared norm, estimated without bias, below 0.3% of the block's, and 5 deviations of the estimate.

    2.5% for the 32 coordinates that the rest of a segment is rotated to. A block with one large value has coordinates
    that are sums of as many signs; where such a sum is 0 (0.05 of them, or 0.14), the small values alone decide: the
    mean is off by pi / 2 x sqrt(2 / pi)^2 times that share of the block's norm, along the small ones.
    """
    x, draws = SPARSE[kind](n).to(torch.float32), 4000
    scheme = thinwire.Rotated(bits=bits)
    decoded = torch.stack(thinwire.decode(thinwire.encode([x] * draws, scheme))).double()
    variance = float(decoded.var(0).sum())
    squared = float((decoded.mean(0) - x).square().sum()) - variance / draws
    assert squared <= (0.003 if n == 256 else 0.025) * energy(x) + 5 * math.sqrt(2) * variance / draws


def test_one_block_is_poisoned_alone():
    x = normal(1024)
    x[300] = math.inf
    y = thinwire.decode(thinwire.encode([x, normal(300, 1)], thinwire.Rotated()))
    assert torch.isnan(y[0][256:512]).all()
    assert torch.isfinite(y[0][:256]).all()
    assert torch.isfinite(y[0][512:]).all()
    assert torch.isfinite(y[1]).all()


def test_quiet_blocks_of_a_loud_message_are_scaled_up_parts():
    """At half a bit a quiet tensor, which weighs as much as others only by its own size, is not lost on average."""
    x = {"loud": normal(20_000), "quiet": 2.0**-6 * normal(2_000, 1)}
    scheme = thinwire.Rotated(bits=0.5, weighting="global")
    draws = torch.stack([thinwire.decode(thinwire.encode(x, scheme, seed=s))["quiet"] for s in range(300)]).double()
    along = (draws @ x["quiet"].double()) / energy(x["quiet"])
    assert abs(float(along.mean()) - 1) <= 5 * float(along.std()) / math.sqrt(300)
    assert float(along.std()) > 0.01


def test_a_mapping_must_name_every_tensor():
    scheme = thinwire.Rotated(weighting={"a": 1.0})
    with pytest.raises(MessageError, match="no weight for tensor 'b'"):
        thinwire.encode({"a": normal(300), "b": normal(300)}, scheme)


def test_hostile_bytes_under_a_right_checksum_are_refused_or_decode():
    frame = thinwire.encode([normal(700), normal(40)], thinwire.Rotated(bits=1.5))
    refused = 0
    for at in range(int(thinwire.inspect(frame).parts["header"]), len(frame)):
        broken = frame.clone()
        broken[at] ^= 1 << at % 8
        try:
            decoded = thinwire.decode(sealed(broken))
        except MalformedFrameError:
            refused += 1
            continue
        assert [t.numel() for t in decoded] == [700, 40]
    assert refused > 0
