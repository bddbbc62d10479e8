"""Packing against big-integer arithmetic: every level count, every tail length of a group."""

import math

import numpy as np
import pytest
import torch

from thinwire import kernels
from thinwire.kernels import digit_layout, packed_bytes


def packed_by_hand(codes: list[int], levels: int) -> bytes:
    """The documented layout in Python integers."""
    digits = digit_layout(levels)
    out = b""
    for first in range(0, len(codes), 64 * digits.count):
        group = codes[first : first + 64 * digits.count]
        lanes = -(-len(group) // digits.count)
        words = [sum(c * levels**i for i, c in enumerate(group[j::lanes])) for j in range(lanes)]
        whole = digits.bits // 8
        out += b"".join((word % 256**whole).to_bytes(whole, "little") for word in words)
        for plane in range(8 * whole, digits.bits):
            bits = sum((word >> plane & 1) << j for j, word in enumerate(words))
            out += bits.to_bytes(-(-lanes // 8), "little")
    return out


def codes_of(count: int, levels: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(0, levels, count, dtype=np.uint8))


@pytest.mark.parametrize("levels", range(2, 257))
def test_every_level_count_packs_within_two_percent_and_comes_back(levels):
    digits = digit_layout(levels)
    assert levels**digits.count <= 2**digits.bits
    assert digits.bits / digits.count <= 1.02 * math.log2(levels)
    run = 64 * digits.count
    for count in (0, 1, digits.count, run - 1, run, run + 1, 2 * run + digits.count + 1):
        codes = codes_of(count, levels, count)
        expected = packed_by_hand(codes.tolist(), levels)
        assert len(expected) == packed_bytes(count, levels)
        for name in ("reference", "cpu"):
            with kernels.backend(name):
                assert kernels.pack(codes, levels).numpy().tobytes() == expected
                assert torch.equal(kernels.unpack(kernels.pack(codes, levels), levels, count), codes)


@pytest.mark.parametrize("levels", [2, 3, 5, 9, 17, 229])
def test_every_tail_length(levels):
    for count in range(64 * digit_layout(levels).count + 2):
        codes = codes_of(count, levels, count)
        packed = kernels.pack(codes, levels)
        assert packed.numel() == packed_bytes(count, levels)
        assert torch.equal(kernels.unpack(packed, levels, count), codes)


@pytest.mark.parametrize("levels", [2, 3, 5, 9, 134, 229, 256])
def test_all_words_of_extreme_digits(levels):
    digits = digit_layout(levels)
    for fill in (0, levels - 1):
        codes = torch.full((64 * digits.count + 3,), fill, dtype=torch.uint8)
        assert torch.equal(kernels.unpack(kernels.pack(codes, levels), levels, len(codes)), codes)


@pytest.mark.parametrize("levels", range(2, 257, 7))
def test_bytes_that_no_encoder_writes_still_give_codes_below_the_level_count(levels):
    count = 64 * digit_layout(levels).count + 17
    for octets in (
        torch.full((packed_bytes(count, levels),), 255, dtype=torch.uint8),
        codes_of(packed_bytes(count, levels), 256),
    ):
        unpacked = []
        for name in ("reference", "cpu"):
            with kernels.backend(name):
                unpacked.append(kernels.unpack(octets, levels, count))
        assert torch.equal(*unpacked)
        assert int(unpacked[0].max()) < levels


def test_documented_layouts():
    known = {2: (8, 8), 3: (5, 8), 4: (4, 8), 5: (24, 56), 9: (5, 16), 16: (2, 8), 256: (1, 8)}
    assert {s: (digit_layout(s).count, digit_layout(s).bits) for s in known} == known
