"""What solve_chain works on: sorted values, or cells of an exact histogram, with counts and sums."""

import numpy as np
from numba import njit

__all__ = [
    "CELLS",
    "cells_of",
    "gather_marked",
    "height_error",
    "histogram",
    "merge_atoms",
    "objective_sorted",
    "two_level_cost",
    "value_atoms",
]

SHIFT = 14  # a cell is a sign, an exponent and 9 mantissa bits: the upper 18 bits of a float32
CELLS = 1 << 18
_LOW = np.uint32((1 << SHIFT) - 1)
_CHUNK = 1 << 8
_SUM_BITS = 38  # 2^24 values of 14 bits; a count of 2^24 fits above


@njit(nogil=True, cache=True, error_model="numpy")
def _add(whole, lost, y):
    """whole + y, and what rounding has lost from it so far."""
    total = whole + y
    carried = total - whole
    return total, lost + ((whole - (total - carried)) + (y - carried))


@njit(nogil=True, cache=True, error_model="numpy")
def _four_sums(x, S, centre, start, length):
    """Prefix sums of four runs from `start` on, each from zero; a chain of additions waits for each result."""
    a = b = c = d = 0.0
    xa, xb, xc, xd = x[start:], x[start + length :], x[start + 2 * length :], x[start + 3 * length :]
    Sa, Sb, Sc, Sd = S[start:], S[start + length :], S[start + 2 * length :], S[start + 3 * length :]
    for i in range(length):
        Sa[i], Sb[i], Sc[i], Sd[i] = a, b, c, d
        a += np.float64(xa[i]) - centre
        b += np.float64(xb[i]) - centre
        c += np.float64(xc[i]) - centre
        d += np.float64(xd[i]) - centre
    return a, b, c, d


@njit(nogil=True, cache=True, error_model="numpy")
def value_atoms(x, centre):
    """Counts and prefix sums of sorted values, each an atom, and f(2) = sum (max - x)(x - min).

    Each run of at most 2^8 values starts from a compensated sum of the runs before: a prefix is off by at most
    2^8 2^-53 of the sum of magnitudes, and hardly ever by more than one rounding.

    Args:
        x: float32 `[values]`, ascending, at least one. centre: subtracted from each.
    Returns:
        N, int32 `[values + 1]`; S, float64 `[values + 1]`; f(2).
    """
    n = len(x)
    N, S = np.empty(n + 1, np.int32), np.empty(n + 1)
    for i in range(n + 1):
        N[i] = i
    whole = lost = 0.0
    start = 0
    while start + 4 <= n:
        length = min(_CHUNK, (n - start) // 4)
        for total in _four_sums(x, S, centre, start, length):
            base = whole + lost
            for i in range(start, start + length):  # adding to a slice takes seconds to compile
                S[i] += base
            whole, lost = _add(whole, lost, total)
            start += length
    for i in range(start, n):
        S[i] = whole + lost
        whole, lost = _add(whole, lost, np.float64(x[i]) - centre)
    S[n] = whole + lost
    return N, S, two_level_cost(x, x[0], x[n - 1])


@njit(nogil=True, cache=True, error_model="numpy")
def two_level_cost(x, least, greatest):
    """f(2) = sum (greatest - x)(x - least), in eight interleaved sums by chunk."""
    left, right = np.float64(least), np.float64(greatest)
    total, n = 0.0, len(x)
    area = np.empty(8)
    for start in range(0, n, 8 * _CHUNK):
        stop = min(n, start + 8 * _CHUNK)
        area[:] = 0.0
        for i in range(start, stop - 7, 8):
            for lane in range(8):
                y = np.float64(x[i + lane])
                area[lane] += (right - y) * (y - left)
        for i in range(stop - (stop - start) % 8, stop):
            y = np.float64(x[i])
            area[0] += (right - y) * (y - left)
        total += area.sum()
    return total


@njit(nogil=True, cache=True, error_model="numpy")
def objective_sorted(x, levels):
    """sum (hi - x)(x - lo) by its definition, for ascending x from levels[0] to levels[-1]."""
    total, start = 0.0, 0
    for k in range(len(levels) - 1):
        i, stop = start, len(x)
        while (
            i < stop and k < len(levels) - 2
        ):  # the values below the next level; the last step takes all that are left
            middle = (i + stop) >> 1
            if x[middle] < levels[k + 1]:
                i = middle + 1
            else:
                stop = middle
        total += two_level_cost(x[start:stop], levels[k], levels[k + 1])
        start = stop
    return total


@njit(nogil=True, cache=True, error_model="numpy")
def height_error(N, S, lo, hi, centre):
    """A bound of the rounding error of h at any place between the ends: 16 2^-53 of the terms that make it.

    Exact terms for up to 2^13 atoms; of more, runs of n / 2^12 atoms are bounded together.
    """
    first, stop = 0, len(lo)
    values, whole = np.float64(N[stop]), S[stop]
    left, right = np.float64(lo[0]) - centre, np.float64(hi[stop - 1]) - centre
    rise = (abs(values * right) + abs(whole)) / (right - left)
    fall = (abs(values * left) + abs(whole)) / (right - left)
    while np.float64(hi[first]) - centre <= left:
        first += 1
    while np.float64(lo[stop - 1]) - centre >= right:
        stop -= 1
    most, length = 0.0, max(1, (stop - first) >> 12)
    for i in range(first, stop, length):
        j = min(i + length, stop)
        a, b = np.float64(lo[i]) - centre, np.float64(hi[j - 1]) - centre
        far = max(-a, b)
        sums = max(abs(S[i]), abs(S[j])) + (N[j - 1] - N[i]) * far
        if values * a < whole:
            most = max(most, rise * (b - left) + N[j] * far + sums)
        if values * b >= whole:
            most = max(most, fall * (right - a) + (values - N[i]) * far + abs(whole) + sums)
    return 16 * 2.0**-53 * most


@njit(nogil=True, cache=True, error_model="numpy")
def histogram(bits, table):
    """Add float32 bit patterns to a table of cells: count << 38 | sum of the low 14 bits, exact for 2^24 values."""
    one = np.int64(1) << np.int64(_SUM_BITS)
    for i in range(len(bits)):
        table[bits[i] >> np.uint32(SHIFT)] += one | np.int64(bits[i] & _LOW)


@njit(nogil=True, cache=True, error_model="numpy")
def _edge(key, low):
    """The float32 of a cell's key and low bits, by its definition (bit casts are not to be had here)."""
    exponent = (key >> 9) & 0xFF
    mantissa = ((key & 0x1FF) << SHIFT) | low
    if exponent > 0:
        mantissa |= 1 << 23
    magnitude = np.float64(mantissa) * 2.0 ** (max(exponent, 1) - 150)
    return -magnitude if key >> 17 else magnitude


@njit(nogil=True, cache=True, error_model="numpy")
def cells_of(table, least, greatest, centre):
    """The non-empty cells in ascending order as atoms.

    Args:
        table: int64 `[2^18]` from `histogram`. least, greatest: the data's ends. centre: subtracted in sums.
    Returns:
        N, int32 `[atoms + 1]`; S, float64 `[atoms + 1]`; lo, hi, float32 `[atoms]`; keys, int32 `[atoms]`.
    """
    atoms = 0
    for key in range(CELLS):
        atoms += table[key] != 0
    N, S = np.zeros(atoms + 1, np.int32), np.zeros(atoms + 1)
    lo, hi = np.empty(atoms, np.float32), np.empty(atoms, np.float32)
    keys = np.empty(atoms, np.int32)
    m = 0
    total = lost = 0.0
    for step in range(CELLS):
        key = CELLS - 1 - step if step < CELLS // 2 else step - CELLS // 2  # negative keys fall, positive keys rise
        if table[key] == 0:
            continue
        count = table[key] >> np.int64(_SUM_BITS)
        low_sum = np.float64(table[key] & ((np.int64(1) << np.int64(_SUM_BITS)) - 1))
        near, far = _edge(key, np.int64(0)), _edge(key, np.int64((1 << SHIFT) - 1))
        unit = (far - near) / ((1 << SHIFT) - 1)
        y = count * (near - centre) + unit * low_sum
        lo[m], hi[m], keys[m] = min(near, far), max(near, far), key
        if low_sum == 0.0:  # one value alone, most often
            lo[m] = hi[m] = near
        N[m + 1] = N[m] + count
        total, lost = _add(total, lost, y)
        S[m + 1] = total + lost
        m += 1
    if m > 0:
        lo[0], hi[m - 1] = least, greatest
    return N, S, lo, hi, keys


@njit(nogil=True, cache=True, error_model="numpy")
def gather_marked(bits, values, marked, out):
    """Copy the values whose cell is marked, as long as they fit; return how many there are."""
    m, room = 0, len(out) - 1
    for i in range(len(bits)):
        out[min(m, room)] = values[i]
        m += marked[bits[i] >> np.uint32(SHIFT)]
    return m


@njit(nogil=True, cache=True, error_model="numpy")
def merge_atoms(N, S, lo, hi, keys, marked, values, centre):
    """Replace each marked cell by its own values, given sorted: atoms of both kinds, in order."""
    cells = len(lo)
    atoms = len(values)
    for c in range(cells):
        atoms += 0 if marked[keys[c]] else 1
    N2, S2 = np.zeros(atoms + 1, np.int32), np.zeros(atoms + 1)
    lo2, hi2 = np.empty(atoms, np.float32), np.empty(atoms, np.float32)
    m = at = 0
    for c in range(cells):
        if marked[keys[c]]:
            inside = 0.0
            for i in range(N[c + 1] - N[c]):
                N2[m], S2[m] = N[c] + i, S[c] + inside
                lo2[m] = hi2[m] = values[at]
                inside += np.float64(values[at]) - centre
                at, m = at + 1, m + 1
        else:
            N2[m], S2[m], lo2[m], hi2[m] = N[c], S[c], lo[c], hi[c]
            m += 1
    N2[m], S2[m] = N[cells], S[cells]
    return N2, S2, lo2, hi2
