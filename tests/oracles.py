"""Independent answers by brute force, in exact rational arithmetic. Imports nothing from thinwire.

Values are sequences of finite Python or NumPy floats; results are Fractions unless stated. Slow by intention.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np

GROUP_WORDS = 64


def exact(values: Sequence[float]) -> list[Fraction]:
    """Convert floats to Fractions without rounding."""
    return [Fraction(float(v)) for v in values]


# --- stochastic and nearest rounding ---


def stochastic_error(values: Sequence[float], levels: Sequence[float]) -> Fraction:
    """Return the sum of E (Q(x) - x)^2 for stochastic rounding to ascending levels, clipped outside."""
    b = exact(levels)
    total = Fraction(0)
    for x in exact(values):
        if x <= b[0] or x >= b[-1]:
            total += (x - b[0]) ** 2 if x <= b[0] else (x - b[-1]) ** 2
        else:
            lo = max(v for v in b if v <= x)
            hi = min(v for v in b if v >= x)
            total += (hi - x) * (x - lo)
    return total


def nearest_error(values: Sequence[float], levels: Sequence[float]) -> Fraction:
    """Return the sum of the least (x - b)^2 over all levels b."""
    b = exact(levels)
    return sum((min((x - v) ** 2 for v in b) for x in exact(values)), Fraction(0))


# --- ORQ ---


def three_level_error(values: Sequence[float], left: float, level: float, right: float) -> Fraction:
    """Return the error of stochastic rounding to (left, level, right) of those values that lie within them."""
    inside = [v for v in values if left <= v <= right]
    return stochastic_error(inside, [left, level, right])


def condition_gap(values: Sequence[float], left: float, level: float, right: float) -> Fraction:
    """Return by how much T leaves [N_{>b}, N_{>=b}], 0 where the optimal condition holds.

    The counts and T = sum (x - left) / (right - left) run over the values within [left, right].
    """
    lo, b, hi = exact([left, level, right])
    inside = [x for x in exact(values) if lo <= x <= hi]
    if lo == hi:
        return Fraction(0)
    t = sum((x - lo for x in inside), Fraction(0)) / (hi - lo)
    above = sum(x > b for x in inside)
    at_or_above = sum(x >= b for x in inside)
    return max(above - t, t - at_or_above, Fraction(0))


def halvings(levels: int) -> Iterator[tuple[int, int, int]]:
    """Yield (left parent, level, right parent) as indices, for levels = 2^K + 1, in the order of placing."""
    step = levels - 1
    while step > 1:
        for left in range(0, levels - 1, step):
            yield left, left + step // 2, left + step
        step //= 2


# --- two levels ---


def partial_error(values: Sequence[float], b: Fraction) -> Fraction:
    """Return BinGrad-pb's objective: b^2 - x^2 for |x| <= b, (|x| - b)^2 beyond."""
    magnitudes = [abs(x) for x in exact(values)]
    return sum((b * b - a * a if a <= b else (a - b) ** 2 for a in magnitudes), Fraction(0))


def partial_candidates(values: Sequence[float]) -> list[Fraction]:
    """Return every b at which the objective can be least: the magnitudes and all S_k / n."""
    magnitudes = sorted((abs(x) for x in exact(values)), reverse=True)
    sums = [sum(magnitudes[: k + 1], Fraction(0)) / len(magnitudes) for k in range(len(magnitudes))]
    return sorted({*magnitudes, *sums})


def partial_bounds(values: Sequence[float], b: Fraction) -> tuple[Fraction, Fraction]:
    """Return (sum of |x| > b, sum of |x| >= b): n b lies between them at the optimum."""
    magnitudes = [abs(x) for x in exact(values)]
    return (
        sum((a for a in magnitudes if a > b), Fraction(0)),
        sum((a for a in magnitudes if a >= b), Fraction(0)),
    )


def two_means(values: Sequence[float]) -> tuple[Fraction, Fraction, Fraction]:
    """Return (error, low mean, high mean) of the best of all splits of the sorted values into two sides.

    A block that cannot be split (one value, or all equal) has both means equal.
    """
    xs = sorted(exact(values))
    best = _split_error(xs, len(xs))
    for k in range(1, len(xs)):
        best = min(best, _split_error(xs, k), key=lambda found: found[0])
    return best


def _split_error(xs: list[Fraction], k: int) -> tuple[Fraction, Fraction, Fraction]:
    low, high = xs[:k], xs[k:]
    low_mean = sum(low, Fraction(0)) / len(low)
    high_mean = sum(high, Fraction(0)) / len(high) if high else low_mean
    error = sum(((x - low_mean) ** 2 for x in low), Fraction(0))
    error += sum(((x - high_mean) ** 2 for x in high), Fraction(0))
    return error, low_mean, high_mean


# --- packing ---


def pack(codes: Sequence[int], levels: int, digits: int, bits: int) -> bytes:
    """Pack codes in [0, levels) as words of `bits` bits that hold `digits` digits of base `levels` each.

    Words come in groups of 64. Word j of a group that starts at value v holds, as digit i, the code at
    v + i L + j, with L = 64, or L = ceil(r / digits) in a last group of r values. Missing digits are 0.
    A group is written as the low bits // 8 bytes of each word, then a plane of ceil(L / 8) bytes for each further bit.
    """
    packed = bytearray()
    span = GROUP_WORDS * digits
    for start in range(0, len(codes), span):
        group = codes[start : start + span]
        count = GROUP_WORDS if len(group) == span else -(-len(group) // digits)
        words = [sum(int(code) * levels**i for i, code in enumerate(group[j::count])) for j in range(count)]
        for word in words:
            packed += (word % 256 ** (bits // 8)).to_bytes(bits // 8, "little")
        for bit in range(8 * (bits // 8), bits):
            plane = sum((word >> bit & 1) << j for j, word in enumerate(words))
            packed += plane.to_bytes(-(-count // 8), "little")
    return bytes(packed)


# --- float32 ---


def ulp32(value: Fraction) -> Fraction:
    """Return the spacing of float32 numbers at a rational number."""
    return Fraction(float(np.spacing(np.float32(abs(float(value))))))
