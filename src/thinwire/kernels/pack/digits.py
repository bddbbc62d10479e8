"""Which digits share a word: k base-s digits in b bits, at most 2% above log2(s) bits a digit, for every s <= 256."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

__all__ = ["GROUP", "Digits", "digit_layout", "packed_bytes"]

GROUP = 64  # words packed side by side: digit i of word j is value i * 64 + j, so packing is a vector loop over j
_WORD_BITS = 56  # sums of digits stay well inside int64


@dataclass(frozen=True)
class Digits:
    """`count` digits of base `base` in a word of `bits` bits: whole bytes first, then `planes` single bits."""

    base: int
    count: int
    bits: int

    @property
    def whole_bytes(self) -> int:
        return self.bits // 8

    @property
    def planes(self) -> int:
        return self.bits % 8


@functools.cache
def digit_layout(levels: int) -> Digits:
    """Pick the shortest word within 1% of log2(levels) bits a digit, of whole bytes if any is; else within 2%."""
    fits = []
    for bits in range(1, _WORD_BITS + 1):
        count = 0
        while levels ** (count + 1) <= 1 << bits:
            count += 1
        if count:
            fits.append(Digits(levels, count, bits))
    for tolerance, whole in ((1.01, True), (1.01, False), (1.02, False)):
        for digits in fits:
            if digits.bits / digits.count <= tolerance * math.log2(levels) and not (whole and digits.planes):
                return digits
    raise AssertionError(f"no word of {_WORD_BITS} bits packs base {levels} within 2%")


def packed_bytes(values: int, levels: int) -> int:
    """Bytes that `values` codes take: full groups of 64 words, and a last group of just the words needed."""
    digits = digit_layout(levels)
    groups, rest = values // (GROUP * digits.count), values % (GROUP * digits.count)  # symbolic sizes know no divmod
    words = -(-rest // digits.count)
    return groups * 8 * digits.bits + words * digits.whole_bytes + -(-words // 8) * digits.planes
