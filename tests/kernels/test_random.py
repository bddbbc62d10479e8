"""The random bits: against an independent scalar implementation, and as random numbers."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinwire.kernels import random_bits, stream_keys
from thinwire.types import Key

MASK = 0xFFFFFFFF


def scalar_bits(position: int, key: int) -> int:
    """The documented function, in Python integers."""
    counter = position // 256 * 128 + position % 128
    low, high = key & MASK, (key >> 32) + (counter >> 32) * 0x9E3779B9 & MASK
    h = (counter ^ low) & MASK
    h = (h ^ h >> 16) * 0x21F0AAAD & MASK
    h = ((h ^ h >> 15) + high) & MASK
    h = (h ^ h >> 17) * 0xD35A2D97 & MASK
    h = (h ^ h >> 15) * 0x735A2D97 & MASK
    h ^= h >> 15
    return h >> 16 if position % 256 >= 128 else h & 0xFFFF


def draw(count: int, **key: int) -> np.ndarray:
    keys = torch.from_numpy(stream_keys(Key(**key), np.array([key.pop("stream", 0)], np.uint64)).view(np.int64))
    return random_bits(torch.arange(count), keys).numpy()


def test_bits_equal_the_scalar_definition_at_small_and_huge_positions():
    positions = [0, 1, 127, 128, 255, 256, 1000, 2**32 - 1, 2**32, 2**33 + 129, 2**40 + 7]
    for key in (0, 1, 2**63 + 5, 2**64 - 1):
        signed = torch.tensor(key - (1 << 64) if key >> 63 else key)
        got = random_bits(torch.tensor(positions), signed).tolist()
        assert got == [scalar_bits(p, key) for p in positions]


def test_a_shift_is_added_modulo_two_to_the_16():
    positions, key = torch.arange(1000), torch.tensor(5)
    plain = random_bits(positions, key)
    for shift in (1, 40_000, 65_535):
        assert torch.equal(random_bits(positions, key, shift), (plain + shift) % 65536)


@given(st.integers(1, 1 << 15), st.data())
def test_stratified_keys_are_spread_evenly(ranks, data):
    """Neighbours 2^16 / n apart to a unit, around the circle, and none is the shift that means none."""
    index = data.draw(st.integers(0, ranks - 1))
    shifts = [Key().stratified(i, ranks).shift for i in (index, (index + 1) % ranks)]
    assert min(shifts) > 0
    assert max(shifts) < 65536
    apart = (shifts[1] - shifts[0]) % 65536 or 65536 * (ranks == 1)
    assert abs(apart - 65536 / ranks) < 1


def test_stream_keys_differ_in_every_part_of_the_key():
    parts = [Key(), Key(seed=1), Key(step=1), Key(rank=1), Key(stratum=1), Key(seed=1, step=1)]
    keys = np.concatenate([stream_keys(key, np.arange(50, dtype=np.uint64)) for key in parts])
    assert len(np.unique(keys)) == 300


def test_bits_are_uniform():
    bits = draw(1 << 20)
    counts = np.bincount(bits >> 8, minlength=256)
    chi = ((counts - 4096.0) ** 2 / 4096).sum()
    assert abs(chi - 255) < 5 * np.sqrt(2 * 255)
    assert abs(bits.mean() - 32767.5) < 5 * 65536 / np.sqrt(12 * len(bits))


def test_streams_are_uncorrelated_with_each_other_and_with_their_own_shifts():
    count = 1 << 18
    base = draw(count, seed=7) - 32767.5
    others = [draw(count, seed=7, step=1), draw(count, seed=7, rank=1), draw(count, seed=8), draw(count, seed=7)[::-1]]
    shifts = [np.roll(base, k) + 32767.5 for k in (1, 2, 16, 64, 127, 128, 129, 256, 2048)]
    for other in others + shifts:
        correlation = (base * (other - 32767.5)).mean() * 12 / 65536**2
        assert abs(correlation) < 5 / np.sqrt(count)


def test_neighbouring_streams_are_not_permutations_of_one_another():
    keys = torch.from_numpy(stream_keys(Key(), np.arange(8, dtype=np.uint64)).view(np.int64))
    drawn = {tuple(np.sort(random_bits(torch.arange(4096), key).numpy())) for key in keys}
    assert len(drawn) == 8
