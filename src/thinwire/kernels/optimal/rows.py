"""Optimal levels of every row of a matrix: the certified solver on each, and exact k-means."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.optimal.atoms import value_atoms
from thinwire.kernels.optimal.chain import solve_chain
from thinwire.kernels.pool import for_ranges

__all__ = ["solve_mean_rows", "solve_optimal_rows"]

_TOLERANCE = 1e-12  # relative to f(2)


@njit(nogil=True, cache=True, error_model="numpy")
def _optimal(rows, lengths, s, wanted, rounds, out, first, stop):
    no_curve = np.empty((2, 0))
    for b in range(first, stop):
        x = rows[b, : lengths[b]]
        last = len(x) - 1
        out[b] = x[0]
        if x[last] > x[0]:
            # sums lose least where most values lie on the left
            flip = x[last >> 1] - x[0] > x[last] - x[last >> 1]
            if flip:
                x = (-x[::-1]).copy()
            centre = np.float64(min(max(np.float32(0), x[0]), x[last]))
            N, S, two_level = value_atoms(x, centre)
            v, _, _, _ = solve_chain(N, S, x, x, centre, s, _TOLERANCE * two_level, wanted, rounds, no_curve)
            for k in range(s):
                level = x[min(v[k], last)]
                out[b, s - 1 - k if flip else k] = -level if flip else level


def solve_optimal_rows(rows: Tensor, lengths: Tensor, s: int, exact: bool) -> Tensor:
    """Choose s levels of least sum (hi - x)(x - lo) for each row, on the CPU.

    Args:
        rows: float32 `[blocks, width]`, ascending, finite in the first lengths[b] columns.
        lengths: int64 `[blocks]`, at least 1.
        exact: certified within 1e-12 f(2), unless rounding forbids; otherwise one round over 3 s blocks and a polish.
            No difference up to 3 levels.
    Returns:
        float32 `[blocks, s]`, ascending, values of the row, on the device of rows.
    """
    source, counts = rows.cpu().numpy(), lengths.cpu().numpy()
    out = np.empty((len(source), s), np.float32)
    if s <= 3:
        wanted, rounds = 1, 0  # one free level is optimal at once
    else:
        wanted, rounds = (max(64, 4 * s), 64) if exact else (3 * s, 1)
    for_ranges(len(source), 4, lambda a, b: _optimal(source, counts, s, wanted, rounds, out, a, b))
    return torch.from_numpy(out).to(rows.device)


@njit(nogil=True, cache=True, error_model="numpy")
def _gain(S, i, j):
    """What one mean for values i..j-1 takes off the sum of squares."""
    total = S[j] - S[i]
    return total * total / (j - i)


@njit(nogil=True, cache=True, error_model="numpy")
def _mean_layer(S, before, here, choice, k, n, stack):
    """here[j] = max over i of before[i] + gain(i, j): k clusters for the first j values; the best i grows with j."""
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = k, n, k - 1, n - 1
    top = 1
    while top > 0:
        top -= 1
        j0, j1, i0, i1 = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3]
        j = (j0 + j1) >> 1
        best, where = -np.inf, i0
        for i in range(i0, min(i1, j - 1) + 1):
            value = before[i] + _gain(S, i, j)
            if value > best:
                best, where = value, i
        here[j], choice[j] = best, where
        if j0 < j:
            stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = j0, j - 1, i0, where
            top += 1
        if j < j1:
            stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = j + 1, j1, where, i1
            top += 1


@njit(nogil=True, cache=True, error_model="numpy")
def _means(rows, lengths, s, out, first, stop):
    width = rows.shape[1]
    before, here = np.empty(width + 1), np.empty(width + 1)
    choice = np.empty((s + 1, width + 1), np.int64)
    stack = np.empty((128, 4), np.int64)
    for b in range(first, stop):
        x = rows[b, : lengths[b]]
        n, centre = len(x), np.float64(x[len(x) >> 1])
        _, S, _ = value_atoms(x, centre)
        clusters = min(s, n)
        for j in range(1, n + 1):
            before[j] = _gain(S, 0, j)
        for k in range(2, clusters + 1):
            _mean_layer(S, before, here, choice[k], k, n, stack)
            for j in range(k, n + 1):
                before[j] = here[j]
        j = n
        for k in range(clusters, 0, -1):
            i = choice[k, j] if k > 1 else 0
            out[b, k - 1] = min(max((S[j] - S[i]) / (j - i) + centre, np.float64(x[i])), np.float64(x[j - 1]))
            j = i
        out[b, clusters:] = out[b, clusters - 1]


def solve_mean_rows(rows: Tensor, lengths: Tensor, s: int) -> Tensor:
    """Choose the s levels of least squared error under nearest rounding for each row: exact 1-D k-means, on the CPU.

    Args:
        rows: float32 `[blocks, width]`, ascending, finite in the first lengths[b] columns.
        lengths: int64 `[blocks]`, at least 1.
    Returns:
        The clusters' means, float32 `[blocks, s]`, ascending; the last repeats where there are fewer values than s.
    """
    source, counts = rows.cpu().numpy(), lengths.cpu().numpy()
    out = np.empty((len(source), s), np.float32)
    for_ranges(len(source), 4, lambda a, b: _means(source, counts, s, out, a, b))
    return torch.from_numpy(out).to(rows.device)
