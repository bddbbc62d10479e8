"""Optimal levels and exact k-means by row, against brute force on every small row."""

import numpy as np
import pytest
import torch
from numba import njit

from thinwire.kernels.optimal import solve_mean_rows, solve_optimal_rows


@njit
def least_stochastic(x, s):
    """min of sum (hi - x)(x - lo) over s levels among sorted values, by the plain recursion."""
    n = len(x)
    best = np.full((s, n), np.inf)
    best[0, 0] = 0.0
    for k in range(1, s):
        for j in range(n):
            for i in range(j + 1):
                cost = 0.0
                for m in range(i, j + 1):
                    cost += (x[j] - x[m]) * (x[m] - x[i])
                best[k, j] = min(best[k, j], best[k - 1, i] + cost)
    return best[s - 1, n - 1]


@njit
def least_nearest(x, s):
    """min of the squared distance to s means, by the plain recursion over the border of the last cluster."""
    n = len(x)
    best = np.full((s + 1, n + 1), np.inf)
    best[:, 0] = 0.0
    for k in range(1, s + 1):
        for j in range(1, n + 1):
            for i in range(j):
                mean = x[i:j].mean()
                best[k, j] = min(best[k, j], best[k - 1, i] + ((x[i:j] - mean) ** 2).sum())
    return best[s, n]


def rows_of(seed, width=40):
    """Padded sorted rows of 12 kinds and all lengths up to the width."""
    rng = np.random.default_rng(seed)
    rows, lengths = [], []
    for length in range(1, width + 1):
        z = rng.standard_normal(length)
        kinds = [z, np.exp(3 * z), rng.integers(-2, 3, length), 1000 + z, np.where(rng.random(length) < 0.7, 0, z)]
        x = np.sort(kinds[length % 5].astype(np.float32))
        rows.append(np.concatenate([x, np.full(width - length, np.inf, np.float32)]))
        lengths.append(length)
    return torch.from_numpy(np.stack(rows)), torch.tensor(lengths)


def stochastic(x, b):
    b = np.unique(b)
    if len(b) == 1:
        return 0.0
    low = np.clip(np.searchsorted(b, x, side="right") - 1, 0, len(b) - 2)
    return float(((b[low + 1] - x) * (x - b[low])).sum())


@pytest.mark.parametrize("s", [2, 3, 4, 5, 9, 16])
@pytest.mark.parametrize("seed", range(5))
def test_rows_reach_the_optimum_and_fast_ones_come_near(s, seed):
    rows, lengths = rows_of(seed)
    exact = solve_optimal_rows(rows, lengths, s, True).double().numpy()
    fast = solve_optimal_rows(rows, lengths, s, False).double().numpy()
    for row, n, levels, near in zip(rows.double().numpy(), lengths.tolist(), exact, fast):
        x = row[:n]
        unit = float(((x[-1] - x) * (x - x[0])).sum())
        best = least_stochastic(x, s)
        assert abs(stochastic(x, levels) - best) <= 2e-12 * unit
        assert best - 1e-12 * unit <= stochastic(x, near) <= best + 0.1 * unit
        for found in (levels, near):
            assert (np.diff(found) >= 0).all()
            assert set(found) <= set(x)
            assert (found[0], found[-1]) == (x[0], x[-1])


@pytest.mark.parametrize("s", [2, 3, 4, 7])
@pytest.mark.parametrize("seed", range(5))
def test_means_are_the_exact_k_means(s, seed):
    rows, lengths = rows_of(seed)
    means = solve_mean_rows(rows, lengths, s).double().numpy()
    for row, n, levels in zip(rows.double().numpy(), lengths.tolist(), means):
        x = row[:n]
        error = ((x[:, None] - levels[None, :]) ** 2).min(1).sum()
        size = float((x**2).sum())
        assert abs(error - least_nearest(x, min(s, n))) <= 1e-6 * float(np.ptp(x)) ** 2 * n + 1e-12 * size
        assert (np.diff(levels) >= 0).all()


@pytest.mark.parametrize("name", ["normal", "lognormal", "t3"])
def test_fast_levels_of_full_blocks_are_within_a_percent(name):
    rng = np.random.default_rng(0)
    draw = {
        "normal": rng.standard_normal,
        "lognormal": lambda size: np.exp(rng.standard_normal(size)),
        "t3": lambda size: rng.standard_t(3, size),
    }
    rows = torch.from_numpy(np.sort(draw[name]((64, 2048)).astype(np.float32), 1))
    lengths = torch.full((64,), 2048)
    for s in (3, 4, 5, 9, 16):
        exact, fast = (solve_optimal_rows(rows, lengths, s, effort).double().numpy() for effort in (True, False))
        total = [sum(stochastic(x, b) for x, b in zip(rows.double().numpy(), found)) for found in (exact, fast)]
        assert total[0] <= total[1] <= 1.01 * total[0]
