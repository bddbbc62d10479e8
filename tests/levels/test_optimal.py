"""Globally optimal levels: against brute force, against an independent dynamic programme, and as mathematics."""

import os
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit

import thinwire
from thinwire.errors import MessageError, SchemeError
from thinwire.kernels.optimal import solve_sorted, solve_unsorted
from thinwire.kernels.optimal.reference import solve_reference
from thinwire.levels import optimal_levels


@njit
def brute_force(x, s):
    """min over s levels among sorted values, ends fixed, by the plain recursion on a matrix of costs by definition."""
    n = len(x)
    cost = np.zeros((n, n))
    for i in range(n):
        for j in range(i, n):
            for k in range(i, j + 1):
                cost[i, j] += (x[j] - x[k]) * (x[k] - x[i])
    best = cost[0].copy()
    for _ in range(s - 2):
        last = best.copy()
        for j in range(n):
            for i in range(j + 1):
                best[j] = min(best[j], last[i] + cost[i, j])
    return best[n - 1]


def objective(x, levels):
    """sum (hi - x)(x - lo) by definition, float64."""
    x, b = np.asarray(x, np.float64).ravel(), np.unique(np.asarray(levels, np.float64))
    if len(b) == 1:
        return 0.0
    low = np.clip(np.searchsorted(b, x, side="right") - 1, 0, len(b) - 2)
    return float(((b[low + 1] - x) * (x - b[low])).sum())


def small_case(rng):
    n, kind = rng.integers(1, 61), rng.integers(0, 8)
    z = rng.standard_normal(n)
    draws = [
        lambda: z,
        lambda: np.exp(5 * z),
        lambda: rng.integers(-2, 3, n),
        lambda: np.tan(np.pi * (rng.random(n) - 0.5)),
        lambda: 1000 + z,
        lambda: np.where(rng.random(n) < 0.7, 0, z),
        lambda: np.abs(z),
        lambda: np.where(np.arange(n) == 0, 1e6, z),
    ]
    return draws[kind]().astype(np.float32)


def test_twenty_thousand_small_cases_against_brute_force():
    rng = np.random.default_rng(0)
    closed = 0
    for _ in range(20_000):
        x, s = small_case(rng), int(rng.integers(2, 12))
        found = optimal_levels(torch.from_numpy(x), s)
        best = brute_force(np.sort(x).astype(np.float64), s)
        unit = found.two_level or 1.0
        assert abs(objective(x, found.levels) - found.objective) <= 1e-9 * found.objective
        assert found.lower_bound <= best + 1e-15 * unit  # the allowance for rounding is in the bound
        if found.closed:
            assert abs(found.objective - best) <= 1e-12 * unit
            closed += 1
        levels = found.levels.numpy()
        assert (np.diff(levels) >= 0).all()
        assert set(levels) <= set(x)
        assert (levels[0], levels[-1]) == (x.min(), x.max())
    assert closed > 19_000


SIZE = 1 << 16


def distributions():
    rng = np.random.default_rng(1)
    z = rng.standard_normal(SIZE)
    signs = rng.choice([-1, 1], SIZE)
    made = {
        "normal": z,
        "lognormal": np.exp(z),
        "signed lognormal": signs * np.exp(z),
        "laplace": rng.laplace(size=SIZE),
        "t3": rng.standard_t(3, SIZE),
        "t2": rng.standard_t(2, SIZE),
        "cauchy": np.tan(np.pi * (rng.random(SIZE) - 0.5)),
        "uniform": rng.random(SIZE),
        "offset": 1000 + z,
        "sparse": np.where(rng.random(SIZE) < 0.9, 0, z),
        "rounded": np.round(z * 8) / 8,
        "two clusters": z * 0.01 + signs,
        "exponential": rng.exponential(size=SIZE),
        "beta": rng.beta(0.3, 0.3, SIZE),
        "heavy lognormal": np.exp(3 * z),
    }
    return {name: values.astype(np.float32) for name, values in made.items()}


@pytest.mark.parametrize("name", distributions())
def test_both_paths_against_the_independent_dynamic_programme(name):
    x = distributions()[name]
    ascending = np.sort(x)
    _, curve = solve_reference(ascending, 64)
    for s in (3, 4, 5, 9, 16, 64):
        best = float(curve[s - 2])
        for solution in (solve_sorted(ascending, s, 1e-12), solve_unsorted(x, s, 1e-12)):
            if solution is None:
                continue
            assert abs(objective(x, solution.levels) - solution.objective) <= 1e-11 * solution.two_level
            assert solution.lower_bound <= best + 1e-9 * solution.two_level
            if solution.gap <= 1e-12:
                assert solution.objective <= best + 1e-9 * solution.two_level
        bounds = optimal_levels(torch.from_numpy(x), s).curve
        for (upper, lower), exact in zip(bounds, curve):
            assert lower - 1e-9 * curve[0] <= exact <= upper + 1e-9 * curve[0]


@pytest.mark.parametrize("name", ["normal", "laplace", "lognormal", "t3", "two clusters"])
@pytest.mark.parametrize("s", [3, 5, 16])
def test_certificates_close_on_a_million_values(name, s):
    x = np.tile(distributions()[name], 4)
    x = (x * np.linspace(1, 1.5, len(x))).astype(np.float32)
    found = optimal_levels(torch.from_numpy(x), s)
    assert found.closed
    sorted_path = solve_sorted(np.sort(x), s, 1e-12)
    assert abs(sorted_path.objective - found.objective) <= 3e-12 * found.two_level


def test_a_cell_of_many_values_is_counted_exactly():
    x = np.zeros((1 << 23) + 1000, np.float32)
    x[:1000] = distributions()["normal"][:1000]
    found = optimal_levels(torch.from_numpy(x), 3)
    nonzero = optimal_levels(torch.from_numpy(np.append(x[:1000], [0.0] * 1000).astype(np.float32)), 3)
    assert found.closed
    assert found.objective <= objective(x, [x.min(), 0.0, x.max()]) * (1 + 1e-6)
    assert found.objective >= nonzero.objective * (1 - 1e-6)


def test_a_long_tail_closes_without_sorting():
    x = np.exp(np.random.default_rng(2).standard_normal(1 << 22)).astype(np.float32)
    for s in (5, 16):
        assert solve_unsorted(x, s, 1e-12).gap <= 1e-12


MEASURE_PEAK = """
import ctypes, sys
import numpy as np, torch
import thinwire

def status(key):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(key))

s, n = int(sys.argv[1]), 1 << 22
rng = np.random.default_rng(0)
thinwire.optimal_levels(torch.from_numpy(rng.standard_normal(1 << 17).astype(np.float32)), s)  # compile
x = torch.from_numpy(rng.laplace(size=n).astype(np.float32))
ctypes.CDLL(None).malloc_trim(0)
open("/proc/self/clear_refs", "w").write("5")  # the peak starts from here
before = status("VmRSS")
assert thinwire.optimal_levels(x, s).closed
print((status("VmHWM") - before) / n)
"""


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="needs Linux's count of resident pages")
@pytest.mark.parametrize(("s", "table", "each"), [(5, 2 << 20, 1), (16, 2 << 20, 1), (17, 0, 16), (64, 0, 16)])
def test_extra_memory_for_four_million_values(s, table, each):
    run = subprocess.run([sys.executable, "-c", MEASURE_PEAK, str(s)], capture_output=True, text=True, check=True)
    fixed = table + 128 * s * s + (1 << 20)  # the layers of the first round, and what an allocator keeps
    assert float(run.stdout) <= each + fixed / (1 << 22)


@pytest.mark.parametrize("s", [2, 3, 9])
def test_two_values_alone(s):
    x = torch.from_numpy(np.sign(distributions()["normal"]).repeat(4))
    found = optimal_levels(x, s)
    assert (found.objective, found.closed) == (0.0, True)
    assert set(found.levels.tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize("outliers", [[-1e20], [1e20], [-1e6], [-1e12, 1e12], [-1e4, 1e9], [1e9] * 15])
@pytest.mark.parametrize("s", [3, 4, 9])
def test_outliers_on_either_side_never_give_a_false_certificate(outliers, s):
    rest = np.array([-2, -1, -0.5, 0, 0, 0.25, 1, 2, 3], np.float32)
    x = np.append(rest, np.array(outliers, np.float32))
    best = exact_objective(x, s)
    found = optimal_levels(torch.from_numpy(x), s)
    assert found.lower_bound <= best * (1 + 1e-12)
    assert abs(found.objective - objective(x, found.levels)) <= 1e-9 * found.objective
    if found.closed:
        assert found.objective <= best + 2e-12 * found.two_level


def exact_objective(x, s):
    """The optimum in exact arithmetic, as a float; for a few values."""
    y = sorted(Fraction(float(v)) for v in x)
    n = len(y)
    cost = [[sum((y[j] - z) * (z - y[i]) for z in y[i : j + 1]) for j in range(n)] for i in range(n)]
    best = cost[0]
    for _ in range(s - 2):
        best = [min(best[i] + cost[i][j] for i in range(j + 1)) for j in range(n)]
    return float(best[-1])


@pytest.mark.parametrize("outlier", [1e6, 1e9, 1e15, -1e6, -1e15])
def test_an_outlier_keeps_the_certificate_honest(outlier):
    x = distributions()["normal"].copy()
    rest = optimal_levels(torch.from_numpy(x), 8).levels.numpy()
    x[17] = outlier
    known = objective(x, np.append(rest, outlier))  # the outlier a level of its own
    found = optimal_levels(torch.from_numpy(x), 9)
    assert found.lower_bound <= known
    assert objective(x, found.levels) <= known + found.gap * found.two_level
    assert found.closed == (found.gap <= 1e-12)


values = st.lists(st.floats(-1e3, 1e3, width=32), min_size=1, max_size=80)


@settings(max_examples=150, deadline=None)
@given(values, st.integers(2, 9), st.integers(0, 2**32 - 1))
def test_never_above_any_other_levels_and_falling_and_convex_in_s(data, s, seed):
    x = torch.tensor(data)
    found = optimal_levels(x, s)
    slack = 1e-11 * found.two_level
    rng = np.random.default_rng(seed)
    for _ in range(5):
        other = np.concatenate([[x.min(), x.max()], rng.choice(x.numpy(), s - 2)])
        assert found.objective <= objective(x, other) + slack
    if s in (3, 5, 9):
        layout = thinwire.wire.layout_of(x, thinwire.ORQ(levels=s, block_size=80))[0]
        group = thinwire.schemes.partition(layout)[1][0]
        plan = layout[0].scheme.plan(thinwire.wire.compose(x, layout[0].scheme)[0], group)
        assert found.objective <= objective(x, plan.levels[0]) + slack
    f = [optimal_levels(x, k).objective for k in (s, s + 1, s + 2)]
    assert f[0] >= f[1] - slack
    assert f[1] >= f[2] - slack
    assert f[0] + f[2] >= 2 * f[1] - 2 * slack


@settings(max_examples=100, deadline=None)
@given(values, st.integers(2, 9), st.integers(-20, 20), st.integers(0, 99))
def test_permutation_scale_shift_and_sign(data, s, exponent, seed):
    x = torch.tensor(data, dtype=torch.float64).mul(64).round().div(64).float()  # so that shifts below are exact
    found = optimal_levels(x, s)
    slack = 1e-11 * found.two_level
    shuffled = x[torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))]
    assert optimal_levels(shuffled, s).objective == found.objective
    assert abs(optimal_levels(-x, s).objective - found.objective) <= slack
    assert abs(optimal_levels(x + 256, s).objective - found.objective) <= slack
    scaled = optimal_levels(x * 2.0**exponent, s)
    assert abs(scaled.objective - found.objective * 4.0**exponent) <= slack * 4.0**exponent


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_dtypes_shapes_and_degenerate_data(dtype):
    assert optimal_levels(torch.tensor(3.0, dtype=dtype), 4).levels.tolist() == [3, 3, 3, 3]
    same = optimal_levels(torch.full((5, 7), -2.0, dtype=dtype), 3)
    assert (same.levels.tolist(), same.objective, same.closed) == ([-2, -2, -2], 0, True)
    few = optimal_levels(torch.tensor([[1, 2], [2, 1]], dtype=dtype), 5)
    assert set(few.levels.tolist()) == {1, 2}
    assert few.levels.dtype == dtype
    assert few.objective == 0
    assert few.closed


@pytest.mark.parametrize(
    ("x", "s", "error", "says"),
    [
        (torch.empty(0), 3, MessageError, "got 0"),
        (torch.tensor([1.0, float("nan")]), 3, MessageError, "not finite"),
        (torch.tensor([1.0, -float("inf")]), 3, MessageError, "not finite"),
        (torch.tensor([1, 2]), 3, MessageError, "int64"),
        (torch.tensor([1.0]), 1, SchemeError, "2..1024"),
        (torch.tensor([1.0]), 2000, SchemeError, "2..1024"),
        (torch.tensor([1.0]), 2.5, SchemeError, "integer"),
    ],
)
def test_bad_input_is_refused_by_name(x, s, error, says):
    with pytest.raises(error, match=says):
        optimal_levels(x, s)
