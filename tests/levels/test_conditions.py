"""The optimal conditions as mathematics: every solver against brute force in exact arithmetic."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests import oracles
from tests.strategies import KINDS, block, blocks

from thinwire import levels as solvers
from thinwire.kernels import block_table

MOST_VALUES = 64
BITS = min(62 - MOST_VALUES.bit_length(), 52)  # of the fixed-point sums, at most 52; differences are float64

quick = settings(max_examples=100, deadline=None)
every_kind = pytest.mark.parametrize("kind", KINDS)


def as_block(x: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and block table of one block."""
    return torch.from_numpy(x), block_table([(0, len(x))], None)[0]


def solve(solver, x: np.ndarray, *options) -> list[float]:
    """Levels of one block, after a check that they are finite and ascending."""
    found = solver(*as_block(x), *options)[0].tolist()
    assert all(np.isfinite(found))
    assert found == sorted(found)
    return found


def sums_are_exact(x: np.ndarray) -> bool:
    """Whether every difference of the block is a whole number of fixed-point units, by the bound in docs/math.md."""
    magnitudes = np.abs(x[x != 0]).astype(np.float64)
    if not len(magnitudes):
        return True
    return float(np.ptp(x.astype(np.float64))) < 2.0 ** (BITS - 25) * magnitudes.min()


# --- ORQ ---


@quick
@given(blocks(), st.sampled_from([3, 5, 9, 17]))
def test_orq_levels_are_data_with_the_ends_at_min_and_max(x, levels):
    b = solve(solvers.optimal_condition, x, levels)
    assert b[0] == x.min()
    assert b[-1] == x.max()
    assert set(b) <= set(x.tolist())


@quick
@given(blocks(), st.sampled_from([3, 5, 9, 17]))
def test_orq_levels_meet_the_condition_within_their_parents(x, levels):
    b = solve(solvers.optimal_condition, x, levels)
    slack = 0 if sums_are_exact(x) else Fraction(2 * len(x), 2**BITS)
    for left, middle, right in oracles.halvings(levels):
        assert oracles.condition_gap(x, b[left], b[middle], b[right]) <= slack


@quick
@given(blocks(max_values=25), st.sampled_from([3, 5]))
def test_no_data_value_in_the_interval_has_a_lower_three_level_error(x, levels):
    b = solve(solvers.optimal_condition, x, levels)
    for left, middle, right in oracles.halvings(levels):
        low, high = b[left], b[right]
        error = oracles.three_level_error(x, low, b[middle], high)
        slack = 0 if sums_are_exact(x) else Fraction(2 * len(x), 2**BITS) * (Fraction(high) - Fraction(low)) ** 2
        for other in {v for v in x.tolist() if low <= v <= high}:
            assert error <= oracles.three_level_error(x, low, other, high) + slack


@every_kind
def test_the_condition_holds_exactly_where_t_is_next_to_an_integer(kind):
    """Blocks mirrored about their ends have T = m / 2 exactly, so that a single lost bit would show."""
    for seed in range(20):
        half = block(kind, seed, 12)
        x = np.concatenate([half, -half, [0, 0]]).astype(np.float32)
        b = solve(solvers.optimal_condition, x, 3)
        assert oracles.condition_gap(x, *b) == 0


@given(blocks(), st.randoms())
@quick
def test_orq_does_not_depend_on_the_order_of_the_values(x, random):
    shuffled = x.tolist()
    random.shuffle(shuffled)
    assert solve(solvers.optimal_condition, x, 9) == solve(
        solvers.optimal_condition, np.array(shuffled, dtype=np.float32), 9
    )


@quick
@given(blocks())
def test_more_levels_never_hurt(x):
    errors = [oracles.stochastic_error(x, solve(solvers.optimal_condition, x, s)) for s in (3, 5, 9, 17)]
    assert errors == sorted(errors, reverse=True)


@quick
@given(st.lists(st.floats(-100, 100, width=32), min_size=1, max_size=2, unique=True), st.integers(1, 20))
def test_few_distinct_values_all_become_levels(distinct, repeats):
    x = np.array(distinct * repeats, dtype=np.float32)
    assert set(solve(solvers.optimal_condition, x, 3)) == set(x.tolist())
    assert oracles.stochastic_error(x, solve(solvers.optimal_condition, x, 3)) == 0


@pytest.mark.parametrize("n", [2047, 2048, 2049])
@every_kind
def test_full_blocks_meet_the_condition(kind, n):
    x = block(kind, n, n)
    b = solve(solvers.optimal_condition, x, 9)
    slack = Fraction(2 * n, 2 ** (62 - n.bit_length()))
    for left, middle, right in oracles.halvings(9):
        assert oracles.condition_gap(x, b[left], b[middle], b[right]) <= slack


# --- BinGrad-pb ---


@quick
@given(blocks())
def test_bingrad_pb_meets_its_inequality_to_one_ulp(x):
    b = Fraction(solve(solvers.clipped_pair, x)[0])
    ulp = oracles.ulp32(b)
    below, _ = oracles.partial_bounds(x, b + ulp)
    _, above = oracles.partial_bounds(x, b - ulp)
    assert below <= len(x) * (b + ulp)
    assert len(x) * (b - ulp) <= above


@quick
@given(blocks(max_values=30))
def test_no_other_b_has_a_lower_bingrad_pb_error(x):
    """The error of b is at most that of the best candidate, plus what moving it by one ulp can cost."""
    b = Fraction(solve(solvers.clipped_pair, x)[0])
    best = min(oracles.partial_candidates(x), key=lambda c: oracles.partial_error(x, c))
    assert abs(b - best) <= oracles.ulp32(max(b, best))
    largest = max(abs(v) for v in oracles.exact(x))
    allowance = 2 * len(x) * (largest + b) * abs(b - best)
    assert oracles.partial_error(x, b) <= oracles.partial_error(x, best) + allowance


@every_kind
def test_bingrad_pb_is_exact_at_a_data_value(kind):
    """Where h jumps over zero at a magnitude, by more than fixed-point rounding, b is that very float32."""
    for seed in range(20):
        x = block(kind, seed, 2 + seed)
        largest = max(abs(v) for v in oracles.exact(x))
        best = min(oracles.partial_candidates(x), key=lambda c: oracles.partial_error(x, c))
        below, above = oracles.partial_bounds(x, best)
        if min(len(x) * best - below, above - len(x) * best) > len(x) * largest / 2**30:
            assert Fraction(solve(solvers.clipped_pair, x)[0]) == best


# --- BinGrad-b ---


@quick
@given(blocks())
def test_bingrad_b_equals_brute_force_over_all_splits(x):
    low, high = solve(solvers.two_means, x)
    best, low_mean, high_mean = oracles.two_means(x)
    span = Fraction(float(x.max())) - Fraction(float(x.min()))
    ulp = max(oracles.ulp32(low_mean), oracles.ulp32(high_mean))
    rounding = len(x) * ulp**2  # each mean is within half an ulp; the error is quadratic about the mean
    assert oracles.nearest_error(x, [low, high]) <= best + len(x) * span**2 / 10**12 + rounding


@quick
@given(blocks())
def test_bingrad_b_levels_are_the_conditional_means_about_their_midpoint(x):
    low, high = (Fraction(v) for v in solve(solvers.two_means, x))
    values = oracles.exact(x)
    midpoint = (low + high) / 2
    distance = min(abs(v - midpoint) for v in values)
    unit = (max(values) - min(values)) / 2**BITS  # of the fixed-point sums
    assume(low < high and distance > max(oracles.ulp32(low), oracles.ulp32(high)) + unit)
    for level, side in (
        (low, [v for v in values if v < midpoint]),
        (high, [v for v in values if v > midpoint]),
    ):
        mean = sum(side, Fraction(0)) / len(side)
        assert abs(level - mean) <= oracles.ulp32(mean) + 2 * unit


@quick
@given(blocks())
def test_the_best_split_never_separates_equal_values(x):
    _, low, high = oracles.two_means(x)
    assume(low < high)
    assert (low + high) / 2 not in oracles.exact(x)


# --- SignSGD ---


@quick
@given(blocks())
def test_sign_scale_is_the_mean_magnitude_and_no_other_is_better(x):
    scale = Fraction(solve(solvers.mean_magnitude, x)[0])
    magnitudes = [abs(v) for v in oracles.exact(x)]
    mean = sum(magnitudes, Fraction(0)) / len(x)
    assert abs(scale - mean) <= oracles.ulp32(mean)

    def error(a: Fraction) -> Fraction:
        return sum(((m - a) ** 2 for m in magnitudes), Fraction(0))

    assert error(mean) == sum((m * m for m in magnitudes), Fraction(0)) - len(x) * mean**2
    for other in (mean * Fraction(99, 100), mean * Fraction(101, 100), Fraction(float(np.median(np.abs(x))))):
        assert error(mean) <= error(other)


# --- evenly spaced ---


@quick
@given(blocks(), st.sampled_from([2, 3, 4, 5, 9, 16, 256]))
def test_evenly_spaced_levels_are_even_to_one_rounding(x, levels):
    low, high = solvers.full_range(*as_block(x)).unbind(1)
    assert (low.item(), high.item()) == (x.min(), x.max())
    found = oracles.exact(solvers.evenly_spaced(low, high, levels)[0].tolist())
    first, last = found[0], found[-1]
    assert (first, last) == (Fraction(low.item()), Fraction(high.item()))
    for k, level in enumerate(found):
        exact = first + (last - first) * k / (levels - 1)
        allowance = oracles.ulp32(exact) + (abs(first) + abs(last)) / 2**50
        assert abs(level - exact) <= allowance


@quick
@given(blocks())
def test_symmetric_ranges(x):
    values = [abs(v) for v in oracles.exact(x)]
    largest = solvers.largest_magnitude(*as_block(x)).item()
    assert Fraction(largest) == max(values)
    energy = sum((v * v for v in values), Fraction(0))
    norm = Fraction(solvers.root_energy(*as_block(x)).item())
    ulp = oracles.ulp32(norm)
    assert max(norm - ulp, Fraction(0)) ** 2 <= energy <= (norm + ulp) ** 2
    assert norm >= max(values)


@quick
@given(blocks(), st.sampled_from([0.5, 2.5, 10.0]))
def test_terngrad_never_exceeds_the_largest_magnitude(x, clip):
    largest = solvers.largest_magnitude(*as_block(x)).item()
    assert 0 <= solvers.within_deviations(*as_block(x), clip).item() <= largest
    assert solvers.within_deviations(*as_block(x), None).item() == largest


@quick
@given(blocks(max_values=30), st.sampled_from([3, 5, 9]))
def test_qsgd_error_is_within_the_bound(x, levels):
    """sum E (Q(x) - x)^2 <= min(n D^2 / 4, D sum |x|), D the step (docs/math.md, section 7)."""
    largest = solvers.largest_magnitude(*as_block(x))[:, 0]
    b = solvers.evenly_spaced(-largest, largest, levels)[0].tolist()
    step = max(Fraction(hi) - Fraction(lo) for lo, hi in pairwise(b))
    mass = sum((abs(v) for v in oracles.exact(x)), Fraction(0))
    assert oracles.stochastic_error(x, b) <= min(len(x) * step**2 / 4, step * mass)


# --- Linear ---


@quick
@given(blocks(), st.sampled_from([2, 3, 5, 9]))
def test_linear_cells_hold_equal_mass(x, levels):
    """Each cell between neighbouring ranks holds (n - 1) / (s - 1) steps of the sorted values, to one step."""
    b = solve(solvers.quantiles, x, levels)
    assert (b[0], b[-1]) == (x.min(), x.max())
    ordered = np.sort(x)
    for k, level in enumerate(b):
        exact = Fraction(k * (len(x) - 1), levels - 1)
        lowest = int(np.searchsorted(ordered, level, "left"))
        highest = int(np.searchsorted(ordered, level, "right")) - 1
        assert lowest - Fraction(1, 2) <= exact <= highest + Fraction(1, 2)


# --- all of them ---

SOLVERS = {
    "optimal condition": (solvers.optimal_condition, 9),
    "clipped pair": (solvers.clipped_pair,),
    "two means": (solvers.two_means,),
    "mean magnitude": (solvers.mean_magnitude,),
    "quantiles": (solvers.quantiles, 9),
    "largest magnitude": (solvers.largest_magnitude,),
    "root energy": (solvers.root_energy,),
    "within deviations": (solvers.within_deviations, 2.5),
}


@pytest.mark.parametrize("name", SOLVERS)
@given(x=blocks(exclude=("subnormal", "huge", "tiny")), power=st.integers(-60, 60))
@settings(max_examples=40, deadline=None)
def test_scaling_by_a_power_of_two_scales_the_levels(name, x, power):
    assume(not np.any((x != 0) & (np.abs(x) < 2.0**-60)))
    solver, *options = SOLVERS[name]
    scaled = np.ldexp(x, power).astype(np.float32)
    assert solve(solver, scaled, *options) == np.ldexp(solve(solver, x, *options), power).tolist()


@pytest.mark.parametrize("name", SOLVERS)
@given(x=blocks(), others=blocks())
@settings(max_examples=40, deadline=None)
def test_blocks_do_not_touch_one_another(name, x, others):
    solver, *options = SOLVERS[name]
    values = torch.from_numpy(np.concatenate([x, others]))
    table, _ = block_table([(0, len(x)), (len(x), len(others))], None)
    before = values.clone()
    found = solver(values, table, *options)
    assert torch.equal(values, before)
    assert torch.equal(found[:1], solver(*as_block(x), *options))
    assert torch.equal(found[1:], solver(*as_block(others), *options))
