"""Best paths over the kinks of a concave chain, layer by layer, within a window of kinks for each level.

A step from kink i to kink j >= i gains (p_j - p_i)(h_i + h_j), which is concave Monge: the first best i never falls as
j grows. So every 16th row of a layer is searched by halving, and the rows between two of these try only the columns
between the two's best. Rows in chunks of 16 and columns in fours make loops of constant length, which vectorize.
"""

import numpy as np
from numba import njit

__all__ = ["PAD", "backward", "between", "forward", "trace"]

PAD = 16  # rows in a chunk; p and h have as many entries more than kinks, so that the last chunk can be a whole one
_LOWEST = -1.0e308
_STACK = 64


@njit(nogil=True, cache=True, error_model="numpy")
def _last_step(p, h, before, first, i0, i1, j):
    """The greatest before[i - first] + (p_j - p_i)(h_i + h_j) over i in i0..i1, and its first i."""
    pj, hj = p[j], h[j]
    gains, places, heights = before[i0 - first : i1 - first + 1], p[i0 : i1 + 1], h[i0 : i1 + 1]
    best, where = _LOWEST, 0
    for i in range(len(places)):
        gain = gains[i] + (pj - places[i]) * (heights[i] + hj)
        if gain > best:
            best, where = gain, i
    return best, i0 + where


@njit(nogil=True, cache=True, error_model="numpy")
def _borders(p, h, before, first, a, rows, where, stack):
    """The best column of each row a, a + 16, ...; where[rows] is the last column."""
    last = first + len(before) - 1
    stack[0, 0], stack[0, 1], stack[0, 2], stack[0, 3] = 0, rows - 1, first, last
    top = 1
    while top > 0:
        top -= 1
        r0, r1, i0, i1 = stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3]
        r = (r0 + r1) >> 1
        j = a + PAD * r
        _, where[r] = _last_step(p, h, before, first, i0, min(i1, j), j)
        if r0 < r:
            stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = r0, r - 1, i0, where[r]
            top += 1
        if r < r1:
            stack[top, 0], stack[top, 1], stack[top, 2], stack[top, 3] = r + 1, r1, where[r], i1
            top += 1
    where[rows] = last


@njit(nogil=True, cache=True, error_model="numpy")
def _chunk(p, h, before, first, i0, i1, j0, best):
    """best[r] = the greatest gain of row j0 + r from columns i0..min(i1, j0 + r), for 16 rows."""
    places, heights = p[j0 : j0 + PAD], h[j0 : j0 + PAD]
    best[:] = _LOWEST
    below = min(i1, j0)  # columns up to here are before all rows; the last one may count several times
    for i in range(i0, below + 1, 4):
        a, b, c, d = i, min(i + 1, below), min(i + 2, below), min(i + 3, below)
        va, vb, vc, vd = before[a - first], before[b - first], before[c - first], before[d - first]
        pa, pb, pc, pd = p[a], p[b], p[c], p[d]
        ha, hb, hc, hd = h[a], h[b], h[c], h[d]
        for r in range(PAD):
            pj, hj = places[r], heights[r]
            ga, gb = va + (pj - pa) * (ha + hj), vb + (pj - pb) * (hb + hj)
            gc, gd = vc + (pj - pc) * (hc + hj), vd + (pj - pd) * (hd + hj)
            left, right = ga if ga > gb else gb, gc if gc > gd else gd
            gain = left if left > right else right
            best[r] = gain if gain > best[r] else best[r]
    for i in range(below + 1, min(i1, j0 + PAD - 1) + 1):
        for r in range(i - j0, PAD):
            gain = before[i - first] + (places[r] - p[i]) * (h[i] + heights[r])
            best[r] = gain if gain > best[r] else best[r]


@njit(nogil=True, cache=True, error_model="numpy")
def _room(kinks):
    """Work arrays of a layer: a chunk's gains, best columns, a stack of halves."""
    return np.empty(PAD), np.empty(kinks // PAD + 2, np.int64), np.empty((_STACK, 4), np.int64)


@njit(nogil=True, cache=True, error_model="numpy")
def _layer(p, h, before, first, a, out, room):
    """out[j - a] = the greatest gain of row j from columns first..j that `before` covers, for len(out) rows."""
    best, where, stack = room
    rows = (len(out) - 1) // PAD + 1
    _borders(p, h, before, first, a, rows, where, stack)
    for r in range(rows):
        j0 = a + PAD * r
        _chunk(p, h, before, first, where[r], where[r + 1], j0, best)
        for j in range(min(PAD, len(out) - PAD * r)):
            out[PAD * r + j] = best[j]


@njit(nogil=True, cache=True, error_model="numpy")
def forward(p, h, kinks, window, offset):
    """V, the best gain of levels 0..k with level k at a kink: flat, by level's window, from offset[k] on."""
    s, room = len(window), _room(kinks)
    gains = np.zeros(offset[s])
    for k in range(1, s):
        before, here = gains[offset[k - 1] : offset[k]], gains[offset[k] : offset[k + 1]]
        _layer(p, h, before, window[k - 1, 0], window[k, 0], here, room)
    return gains


@njit(nogil=True, cache=True, error_model="numpy")
def backward(p, h, kinks, window, offset, gains, least, kept):
    """The first and last kink through which, as level k, a path of gain `least` goes; into kept[k], for 0 < k < s - 1.

    U, the best gain of levels k..s-1 with level k at a kink, is V of the mirrored chain: one kernel serves both.
    Returns False if rounding left a level without any.
    """
    s, end, room = len(window), kinks - 1, _room(kinks)
    q, g = np.zeros(len(p)), np.zeros(len(p))
    for i in range(kinks):
        q[i], g[i] = -p[end - i], h[end - i]
    after = np.zeros(1)
    for k in range(s - 2, 0, -1):
        low, high = window[k, 0], window[k, 1]
        here = np.empty(high - low + 1)
        _layer(q, g, after, end - window[k + 1, 1], end - high, here, room)
        first = last = -1
        for i in range(low, high + 1):
            if gains[offset[k] + i - low] + here[high - i] >= least:
                first = i if first < 0 else first
                last = i
        if first < 0:
            return False
        kept[k, 0], kept[k, 1] = first, last
        after = here
    return True


@njit(nogil=True, cache=True, error_model="numpy")
def trace(p, h, window, offset, gains, reach, path):
    """Walk the best path of len(path) levels back from the last kink, level k in reach[k]; return its gain."""
    s = len(path)
    path[0], path[s - 1] = 0, window[len(window) - 1, 1]
    total = 0.0
    for k in range(s - 2, 0, -1):
        j, before = path[k + 1], gains[offset[k] : offset[k + 1]]
        gain, path[k] = _last_step(p, h, before, window[k, 0], reach[k, 0], min(reach[k, 1], j), j)
        total = gain if k == s - 2 else total
    return total


@njit(nogil=True, cache=True, error_model="numpy")
def between(path, s, kinks):
    """Where the best path of s levels can be, given that of one more: best paths interlace. Its last step is free."""
    reach = np.empty((s, 2), np.int64)
    for k in range(s - 1):
        reach[k, 0], reach[k, 1] = path[k], path[k + 1]
    reach[s - 2, 0], reach[s - 2, 1] = 0, kinks - 1
    return reach
