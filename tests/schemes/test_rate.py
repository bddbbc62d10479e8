"""Rate control: which runs are looked at, and how well they stand for the others."""

from __future__ import annotations

import numpy as np
import pytest

from thinwire.schemes.rate import choose_runs, estimate_bits


@pytest.mark.parametrize("runs", [1, 2, 512, 1023, 2047, 2048, 2049, 5000, 16384, 65537, 1 << 20])
def test_runs_are_chosen_once_each_in_order_and_all_of_few(runs):
    chosen = choose_runs(runs)
    stride = min(max(runs // 1024, 1), 16)
    assert len(chosen) == -(-runs // stride)
    assert (np.diff(chosen) > 0).all()
    assert 0 <= chosen[0] <= chosen[-1] < runs
    assert np.array_equal(chosen[:-1] // stride, np.arange(len(chosen) - 1))
    if stride > 1:
        shares = np.bincount(chosen[:-1] % stride, minlength=stride) / (len(chosen) - 1)
        assert np.abs(shares * stride - 1).max() < 5 * np.sqrt(stride / len(chosen))


def test_the_estimate_is_exact_where_all_are_looked_at_or_the_law_misses_linearly():
    rng = np.random.default_rng(0)
    law, beside = 500 * rng.random(5000), rng.standard_normal(5000)
    every = np.arange(5000)
    bits = law + rng.standard_normal(5000)
    assert estimate_bits(law, beside, every, bits) == (pytest.approx(bits.sum(), rel=1e-12), 0.0)
    chosen, bits = choose_runs(5000), law + 7 + 30 * beside
    total, deviation = estimate_bits(law, beside, chosen, bits[chosen])
    assert total == pytest.approx(bits.sum(), rel=1e-10)
    assert deviation < 1e-6 * total


def test_the_deviation_is_that_of_many_estimates():
    rng, chosen, errors, claimed = np.random.default_rng(1), choose_runs(8000), [], []
    for _ in range(300):
        law, beside = 500 * rng.random(8000), rng.standard_normal(8000)
        bits = law + 20 * beside + 40 * rng.standard_normal(8000)
        total, deviation = estimate_bits(law, beside, chosen, bits[chosen])
        errors.append(total - bits.sum())
        claimed.append(deviation)
    assert abs(np.mean(errors)) <= 5 * np.std(errors) / np.sqrt(300)
    assert np.std(errors) == pytest.approx(np.mean(claimed), rel=0.25)
