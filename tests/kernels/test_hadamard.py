"""The randomized Hadamard transform: against its definition, orthonormal, its own inverse, for any length."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.data import both, cut, hostile_values

from thinwire import kernels
from thinwire.kernels.hadamard.reference import _signs, _transform, lane_sum

LENGTHS = (1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200, 255, 256)


def walsh(count: int) -> np.ndarray:
    """Entry (i, j) is (-1)^(number of bits that i and j share) / sqrt(count)."""
    shared = np.array([[bin(i & j).count("1") for j in range(count)] for i in range(count)])
    return (-1.0) ** shared / np.sqrt(count)


def backwards(rotated, sizes, table, keys, rounds, values, add=False, dtype=torch.float32):
    """What both backends write, after a check that they write the same."""
    totals = [torch.linspace(-1, 1, values, dtype=dtype) for _ in range(2)]
    for name, total in zip(("reference", "cpu"), totals):
        with kernels.backend(name):
            kernels.rotate_back(rotated, sizes, table, keys, rounds, total, add)
    assert torch.equal(*[total.nan_to_num(7) for total in totals])
    return totals[0]


def forwards(values, table, keys, rounds):
    reference, cpu = both(kernels.rotate, values, table, keys, rounds)
    for a, b in zip(reference, cpu):
        assert a.dtype == b.dtype == torch.float32
        assert torch.equal(a.nan_to_num(7), b.nan_to_num(7))
    return cpu


@pytest.mark.parametrize("count", [1, 2, 4, 32, 64, 256])
def test_the_transform_is_what_its_definition_says(count):
    assert np.allclose(_transform(torch.eye(count)).numpy(), walsh(count), atol=1e-6)


@pytest.mark.parametrize("count", [32, 64, 128, 256, 512])
def test_orthonormal_and_its_own_inverse(count):
    matrix = _transform(torch.eye(count)).to(torch.float64)
    assert torch.allclose(matrix @ matrix, torch.eye(count, dtype=torch.float64), atol=2e-6)
    assert torch.equal(matrix, matrix.T)


def test_a_block_is_filled_up_to_the_next_power_of_two():
    lengths = torch.tensor([1, 31, 32, 33, 64, 65, 256, 257, 8192, 8193, 1 << 24, (1 << 40) + 1])
    table = lengths[:, None].expand(-1, 4)
    expected = [32, 32, 32, 64, 64, 128, 256, 512, 8192, 16384, 1 << 24, 1 << 41]
    assert kernels.coordinates(table).tolist() == expected


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_block_by_hand(count, rounds):
    """Unit mean square, then signs and transform, in float64."""
    x = torch.randn(count, generator=torch.Generator().manual_seed(count))
    table, keys = cut([count], 256), torch.tensor([0x123456789ABCDEF])
    rotated, sizes = forwards(x, table, keys, rounds)
    width = int(kernels.coordinates(table))
    wide = torch.nn.functional.pad(x.to(torch.float64), (0, width - count))
    size = wide.square().mean().sqrt()
    expected, matrix = wide / size, _transform(torch.eye(width)).to(torch.float64)
    for turn in range(rounds):
        expected = matrix @ (expected * _signs(torch.zeros(1, dtype=torch.int64), keys, width, turn)[0])
    assert sizes.item() == pytest.approx(size.item(), rel=1e-6)
    assert torch.allclose(rotated.to(torch.float64), expected, atol=1e-5)
    assert torch.allclose(backwards(rotated, sizes, table, keys, rounds, count), x, atol=1e-5)


@settings(deadline=None, max_examples=60)
@given(
    segments=st.lists(st.integers(0, 900), min_size=1, max_size=5),
    block_size=st.sampled_from([256, 512, None]),
    rounds=st.sampled_from([1, 2]),
    seed=st.integers(0, 1000),
)
def test_any_segments_and_blocks(segments, block_size, rounds, seed):
    values, table = hostile_values(sum(segments), seed), cut(segments, block_size)
    if not len(table):
        return
    keys = torch.arange(len(table)) * 0x1234567_89ABCDEF
    rotated, sizes = forwards(values, table, keys, rounds)
    assert len(rotated) == int(kernels.coordinates(table).sum())
    for add in (False, True):
        for dtype in (torch.float32, torch.float64):
            backwards(rotated, sizes, table, keys, rounds, len(values), add, dtype)
    found = backwards(rotated, sizes, table, keys, rounds, len(values))
    for start, count, _, _ in table.tolist():
        block, got = values[start : start + count].double(), found[start : start + count].double()
        assert (block - got).norm() <= 1e-6 * block.norm() + 1e-42


def test_large_blocks_and_threads():
    values, table = hostile_values(70_000, 0), cut([50_000, 20_000], 8192)
    keys = torch.arange(len(table))
    before, results = kernels.threads(), []
    try:
        for threads in (1, 2, 5):
            kernels.set_threads(threads)
            rotated, sizes = forwards(values, table, keys, 1)
            results.append((rotated, sizes, backwards(rotated, sizes, table, keys, 1, 70_000, True)))
    finally:
        kernels.set_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf"), 2.0**127])
def test_a_non_finite_value_gives_its_block_a_nan_size(poison):
    x = torch.randn(600)
    x[300] = poison
    table, keys = cut([600], 256), torch.zeros(3, dtype=torch.int64)
    rotated, sizes = forwards(x, table, keys, 2)
    assert sizes.isnan().tolist() == [False, True, False]
    assert not rotated[256:512].any()
    decoded = backwards(rotated, sizes, table, keys, 2, 600)
    assert decoded.isnan().nonzero().flatten().tolist() == list(range(256, 512))


def test_zeros_have_size_zero_and_come_back_as_zeros():
    table, keys = cut([300], 256), torch.zeros(2, dtype=torch.int64)
    rotated, sizes = forwards(torch.zeros(300), table, keys, 2)
    assert not sizes.any()
    assert not rotated.any()
    assert not backwards(torch.ones_like(rotated), sizes, table, keys, 2, 300).any()


@pytest.mark.parametrize("exponent", [-140, -120, 0, 100, 126])
def test_powers_of_two_change_sizes_alone(exponent):
    x = torch.randn(256, generator=torch.Generator().manual_seed(1)).clamp(-1.9, 1.9)
    table, keys = cut([256], 256), torch.tensor([5])
    rotated, sizes = forwards(x, table, keys, 2)
    again, scaled = forwards((x.double() * 2.0**exponent).float(), table, keys, 2)
    assert torch.allclose(again, rotated, atol=1e-5 if exponent > -130 else 1e-1)
    assert scaled.item() == pytest.approx(sizes.item() * 2.0**exponent, rel=1e-6 if exponent > -130 else 1e-2)


def test_signs_are_fair_and_differ_by_round_run_and_key():
    keys = torch.tensor([1, 2])
    position = torch.zeros(2, dtype=torch.int64)
    drawn = torch.cat([_signs(position + 65536 * p, keys, 65536, turn) for turn in (0, 1) for p in (0, 1)])
    count = drawn.shape[1]
    assert (drawn.mean(1).abs() < 5 / np.sqrt(count)).all()
    correlation = drawn @ drawn.T / count - torch.eye(len(drawn))
    assert (correlation.abs() < 5 / np.sqrt(count)).all()
    for shift in (1, 8, 64, 256):
        assert abs(float((drawn[0] * drawn[0].roll(shift)).mean())) < 5 / np.sqrt(count)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 256, 8192])
def test_lane_sums_are_sums(count):
    x = torch.randn(3, count)
    assert torch.allclose(lane_sum(x).double(), x.double().sum(1), atol=1e-4)
