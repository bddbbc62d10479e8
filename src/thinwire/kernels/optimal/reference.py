"""The specification: an exact dynamic programme over all values, layer by layer, by monotone divide and conquer."""

import numpy as np
from numba import njit

__all__ = ["solve_reference"]


@njit(nogil=True, cache=True, error_model="numpy")
def _cost(y, S, Q, i, j):
    """sum of (y_j - y)(y - y_i) over i..j, from prefix sums of y and y^2."""
    count, total, square = j - i + 1, S[j + 1] - S[i], Q[j + 1] - Q[i]
    return (y[i] + y[j]) * total - square - y[i] * y[j] * count


@njit(nogil=True, cache=True, error_model="numpy")
def _fill(y, S, Q, before, here, choice):
    """here[j] = min over i <= j of before[i] + cost(i, j); the best i grows with j. No recursion: Numba's cache."""
    stack = [(0, len(y) - 1, 0, len(y) - 1)]
    while len(stack) > 0:
        j0, j1, i0, i1 = stack.pop()
        j = (j0 + j1) // 2
        best, where = np.inf, i0
        for i in range(i0, min(i1, j) + 1):
            value = before[i] + _cost(y, S, Q, i, j)
            if value < best:
                best, where = value, i
        here[j], choice[j] = best, where
        if j0 < j:
            stack.append((j0, j - 1, i0, where))
        if j < j1:
            stack.append((j + 1, j1, where, i1))


@njit(nogil=True, cache=True, error_model="numpy")
def solve_reference(x, s):
    """Choose s levels of least sum (hi - x)(x - lo): O(s n log n) time, O(s n) memory.

    Args:
        x: float32 `[values]`, ascending. s: at least 2.
    Returns:
        indices of the levels, int64 `[s]`, and the objective of each count of levels 2..s, float64 `[s - 1]`.
    """
    n = len(x)
    y = x.astype(np.float64) - np.float64(x[n // 2])
    S, Q = np.zeros(n + 1), np.zeros(n + 1)
    for i in range(n):
        S[i + 1], Q[i + 1] = S[i] + y[i], Q[i] + y[i] * y[i]
    before = np.array([_cost(y, S, Q, 0, j) for j in range(n)])
    choice = np.zeros((s, n), np.int64)
    curve = np.empty(s - 1)
    curve[0] = before[n - 1]
    for k in range(2, s):
        here = np.empty(n)
        _fill(y, S, Q, before, here, choice[k])
        before = here
        curve[k - 1] = here[n - 1]
    picks = np.zeros(s, np.int64)
    picks[s - 1] = n - 1
    for k in range(s - 1, 1, -1):
        picks[k - 1] = choice[k, picks[k]]
    return picks, curve
