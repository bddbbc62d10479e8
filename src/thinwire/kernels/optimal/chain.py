"""The largest polygon of s vertices inscribed in a convex chain, globally, with a certificate.

Atoms are runs of sorted values: i covers counts N[i]..N[i+1] with sum S[i+1] - S[i], between lo[i] and hi[i] (one
value: lo = hi). G(t) = sum max(0, t - x) is convex; h = chord - G is concave, zero at both ends. Levels q cost
f(q) = f(2) - P(q), P = sum (q' - q)(h(q) + h(q')) over neighbours: twice the area of a polygon inscribed under h.

Any partition of the atoms into blocks gives a larger chain, that of the block means, hence a bound P_out >= max P.
Blocks in which no optimal level can lie stay as they are, the others are halved, until both meet.
docs/optimal-levels.md derives each step.
"""

import numpy as np
from numba import njit

from thinwire.kernels.optimal.layers import PAD, backward, between, forward, trace

__all__ = ["solve_chain"]

_FINER = 4.0  # of count * width^2: about 1.6 times as many blocks
_FEW = 16  # atoms a level: split to single atoms at once
_SHRINK = 64.0  # of count * width^2 in a round: blocks a quarter as wide


@njit(nogil=True, cache=True, error_model="numpy")
def _height(t, count, total, chord):
    """h at t, below which there are `count` values of this sum, or on the line that h follows there.

    Seen from the end on whose side of the mean t lies: there, the terms that cancel are small.
    """
    values, whole, left, right, rise, fall = chord
    if values * t < whole:
        return rise * (t - left) - (count * t - total)
    return fall * (right - t) - ((whole - total) - (values - count) * t)


@njit(nogil=True, cache=True, error_model="numpy")
def _polish(v, N, S, lo, centre, chord, sweeps):
    """Move each vertex in turn to the best place between its neighbours, in place; return P.

    v holds atoms' lower edges, len(lo) for the right end. The best place is where h is farthest above the chord of the
    neighbours: where N passes the chord's slope (found by bisection; its two neighbours guard against rounding).
    """
    n, s = len(lo), len(v)
    _, _, left, right, rise, _ = chord
    p, h = np.empty(s), np.zeros(s)
    for k in range(s):
        p[k] = left if v[k] == 0 else right if v[k] == n else np.float64(lo[v[k]]) - centre
        if 0 < v[k] < n:
            h[k] = _height(p[k], N[v[k]], S[v[k]], chord)
    for _ in range(sweeps):
        moved = False
        for k in range(1, s - 1):
            if p[k + 1] <= p[k - 1]:
                continue
            tilt = (h[k + 1] - h[k - 1]) / (p[k + 1] - p[k - 1])
            i, j = v[k - 1], v[k + 1]
            while j - i > 1:
                middle = (i + j) >> 1
                if N[middle] <= rise - tilt:
                    i = middle
                else:
                    j = middle
            best = h[k] - tilt * (p[k] - p[k - 1])
            for c in range(max(i - 1, v[k - 1] + 1, 1), min(i + 3, v[k + 1])):
                t = np.float64(lo[c]) - centre
                height = _height(t, N[c], S[c], chord)
                if height - tilt * (t - p[k - 1]) > best:
                    best, v[k], p[k], h[k], moved = height - tilt * (t - p[k - 1]), c, t, height, True
        if not moved:
            break
    total = 0.0
    for k in range(s - 1):
        total += (p[k + 1] - p[k]) * (h[k] + h[k + 1])
    return total


@njit(nogil=True, cache=True, error_model="numpy")
def _nearest_edge(t, a, b, lo, centre):
    """The atom in a..b whose lower edge is nearest to t."""
    i, j = a, min(b, len(lo) - 1)
    while j - i > 1:
        middle = (i + j) >> 1
        if np.float64(lo[middle]) - centre <= t:
            i = middle
        else:
            j = middle
    return i if t - (np.float64(lo[i]) - centre) <= (np.float64(lo[j]) - centre) - t else j


@njit(nogil=True, cache=True, error_model="numpy")
def _place(path, p, kinks, starts, lo, centre, v):
    """Put each kink of a path on the nearest atom's edge, into v."""
    for k in range(len(v)):
        i = path[k]
        if i == 0 or i == kinks - 1:
            v[k] = 0 if i == 0 else len(lo)
        else:
            v[k] = _nearest_edge(p[i], starts[i - 1], starts[i], lo, centre)
    for k in range(1, len(v)):
        v[k] = max(v[k], v[k - 1])


@njit(nogil=True, cache=True, error_model="numpy")
def _kinks(starts, N, S, lo, hi, centre, chord):
    """Positions and heights of the outer chain: the left end, each block's mean, the right end; then PAD zeros."""
    blocks = len(starts) - 1
    p, h = np.zeros(blocks + 2 + PAD), np.zeros(blocks + 2 + PAD)
    values, whole, p[0], p[blocks + 1], _, _ = chord
    for b in range(blocks):
        i, j = starts[b], starts[b + 1]
        first, last = np.float64(lo[i]) - centre, np.float64(hi[j - 1]) - centre
        t = min(max((S[j] - S[i]) / (N[j] - N[i]), first), last)
        p[b + 1] = t
        edge = i if values * t < whole else j
        h[b + 1] = max(_height(t, N[edge], S[edge], chord), 0.0)
    return p, h


@njit(nogil=True, cache=True, error_model="numpy")
def _halve(i, j, limit, N, lo, hi, stack, out, m):
    """Write to out[m:] the starts of atoms i..j-1 halved by rank while count * width^2 > limit; return their end.

    Nothing is written beyond out, so that an empty one counts.
    """
    stack[0, 0], stack[0, 1] = i, j
    top = 1
    while top > 0:
        top -= 1
        i, j = stack[top, 0], stack[top, 1]
        width = np.float64(hi[j - 1]) - np.float64(lo[i])
        if j - i > 1 and width > 0.0 and (N[j] - N[i]) * width * width > limit:
            middle = (i + j) >> 1
            stack[top, 0], stack[top, 1] = middle, j
            stack[top + 1, 0], stack[top + 1, 1] = i, middle
            top += 2
        else:
            if m < len(out):
                out[m] = i
            m += 1
    return m


@njit(nogil=True, cache=True, error_model="numpy")
def _split(starts, marked, limit, N, lo, hi):
    """Halve marked blocks, as _halve does; the others stay."""
    stack, out = np.empty((64, 2), np.int64), np.empty(0, np.int64)
    m = np.int64(0)
    for writing in range(2):
        if writing:
            out = np.empty(m + 1, np.int64)
        m = np.int64(0)
        for b in range(len(starts) - 1):
            if marked[b]:
                m = _halve(starts[b], starts[b + 1], limit, N, lo, hi, stack, out, m)
            else:
                if writing:
                    out[m] = starts[b]
                m += 1
    out[m] = starts[len(starts) - 1]
    return out


@njit(nogil=True, cache=True, error_model="numpy")
def _first_blocks(N, lo, hi, wanted):
    """Blocks of about equal count * width^2 (the density that quantization itself asks for), at least `wanted`."""
    n = len(lo)
    stack, nothing, none = np.empty((64, 2), np.int64), np.empty(0, np.int64), np.int64(0)
    width = np.float64(hi[n - 1]) - np.float64(lo[0])
    limit = N[n] * width * width
    least = limit * 1e-30
    while limit > least and _halve(none, n, limit, N, lo, hi, stack, nothing, none) < wanted:
        limit /= _FINER
    starts = np.zeros(2, np.int64)
    starts[1] = n
    return _split(starts, np.ones(1, np.bool_), limit, N, lo, hi), limit


@njit(nogil=True, cache=True, error_model="numpy")
def _first_from(starts, rank):
    """The first block that starts at `rank` or later (np.searchsorted takes seconds to compile)."""
    i, j = 0, len(starts)
    while i < j:
        middle = (i + j) >> 1
        if starts[middle] < rank:
            i = middle + 1
        else:
            j = middle
    return i


@njit(nogil=True, cache=True, error_model="numpy")
def _windows(ranks, starts, kinks, n):
    """Each level's window as kinks, from its ranks, ordered like the levels; and whether none is empty."""
    s, ordered = len(ranks), True
    window = np.empty((s, 2), np.int64)
    window[0], window[s - 1] = 0, kinks - 1
    for k in range(1, s - 1):
        window[k, 0] = 0 if ranks[k, 0] < 0 else _first_from(starts, ranks[k, 0]) + 1
        window[k, 1] = kinks - 1 if ranks[k, 1] > n else _first_from(starts, ranks[k, 1])
    for k in range(1, s - 1):
        window[k, 0] = max(window[k, 0], window[k - 1, 0])
    for k in range(s - 2, 0, -1):
        window[k, 1] = min(window[k, 1], window[k + 1, 1])
        ordered = ordered and window[k, 0] <= window[k, 1]
    return window, ordered


@njit(nogil=True, cache=True, error_model="numpy")
def _confine(kept, window, starts, n, ranks, marked):
    """Confine each level to the kinks kept for it and two more on either side, and mark the blocks there.

    One more because a level may lie between a kink and the next, one more so that after splitting there still is a kink
    beyond it.
    """
    kinks = len(starts) + 1
    for k in range(1, len(window) - 1):
        first, last = max(kept[k, 0] - 2, window[k, 0]), min(kept[k, 1] + 2, window[k, 1])
        ranks[k, 0] = -1 if first == 0 else starts[first - 1]
        ranks[k, 1] = n + 1 if last == kinks - 1 else starts[last]
        for b in range(max(first - 1, 0), min(last, len(starts) - 1)):
            marked[b] = True


@njit(nogil=True, cache=True, error_model="numpy")
def _open_atoms(starts, marked, lo, hi):
    """Atoms in marked blocks that can still be split."""
    atoms = 0
    for b in range(len(starts) - 1):
        if marked[b] and hi[starts[b + 1] - 1] > lo[starts[b]] and starts[b + 1] - starts[b] > 1:
            atoms += starts[b + 1] - starts[b]
    return atoms


@njit(nogil=True, cache=True, error_model="numpy")
def solve_chain(N, S, lo, hi, centre, s, tolerance, wanted, rounds, curve):
    """Choose s levels among the atoms' lower edges and the right end.

    Args:
        N: int32 `[atoms + 1]`, values before each atom. S: float64 `[atoms + 1]`, their sums, of x - centre.
        lo, hi: float32 `[atoms]`, least and greatest value of each atom; hi[-1] > lo[0].
        tolerance: stop when the bound is this near, in units of P.
        wanted: blocks to begin with. rounds: most rounds; after one, levels are near-optimal and the bound is loose.
        curve: float64 `[2, s + 1]`, zero, or `[2, 0]`; takes P and P_out of 3..s levels from the first round.
    Returns:
        v, int64 `[s]` (atoms; len(lo) means hi[-1]); P of v; P_out, its upper bound; the ranks that confine each level,
        int64 `[s, 2]`.
    """
    n = len(lo)
    left, right = np.float64(lo[0]) - centre, np.float64(hi[n - 1]) - centre
    rise, fall = (N[n] * right - S[n]) / (right - left), (S[n] - N[n] * left) / (right - left)
    chord = np.float64(N[n]), S[n], left, right, rise, fall  # what heights are made of: rise and fall of G's chord
    starts, limit = _first_blocks(N, lo, hi, wanted)
    ranks, kept = np.empty((s, 2), np.int64), np.empty((s, 2), np.int64)
    ranks[:, 0], ranks[:, 1] = -1, n + 1
    v, best, path = np.zeros(s, np.int64), np.zeros(s, np.int64), np.zeros(s, np.int64)
    best[s - 1] = n
    few, many = np.int64(2), np.int64(8)  # sweeps; literals would compile a polish each
    found = _polish(best, N, S, lo, centre, chord, few) if s == 3 else 0.0  # one free level: the optimum
    bound = np.inf
    offset = np.zeros(s + 1, np.int64)
    for step in range(rounds):
        kinks = len(starts) + 1
        p, h = _kinks(starts, N, S, lo, hi, centre, chord)
        window, ordered = _windows(ranks, starts, kinks, n)
        if not ordered:  # rounding has lost a level
            break
        for k in range(s):
            offset[k + 1] = offset[k] + window[k, 1] - window[k, 0] + 1
        gains = forward(p, h, kinks, window, offset)
        bound = min(bound, trace(p, h, window, offset, gains, window, path))
        _place(path, p, kinks, starts, lo, centre, v)
        gain = _polish(v, N, S, lo, centre, chord, many)
        if gain > found:
            found = gain
            v, best = best, v
        if step == 0 and curve.shape[1] > 0:
            curve[0, s], curve[1, s] = found, bound
            for q in range(s - 1, 2, -1):
                curve[1, q] = trace(p, h, window, offset, gains, between(path, q, kinks), path[:q])
                _place(path[:q], p, kinks, starts, lo, centre, v[:q])
                curve[0, q] = _polish(v[:q], N, S, lo, centre, chord, few)
        if bound - found <= tolerance:
            break
        if not backward(p, h, kinks, window, offset, gains, found - 0.25 * tolerance, kept):
            break
        marked = np.zeros(len(starts) - 1, np.bool_)
        _confine(kept, window, starts, n, ranks, marked)
        atoms = _open_atoms(starts, marked, lo, hi)
        if atoms == 0:
            break
        limit = 0.0 if atoms <= _FEW * s else limit / _SHRINK
        starts = _split(starts, marked, limit, N, lo, hi)
    return best, found, bound, ranks
