"""Rounding with packing, and back: the kernels equal the reference to the bit at every border that they have."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.data import both, cut, hostile_values

from thinwire import kernels
from thinwire.kernels import digit_layout

# Every kind of layout: one byte, two bytes, whole bytes, bit planes; one part and several, even and uneven; rounding in
# registers (up to 9 levels), by counting, and by searching (from 34 on).
LEVELS = (2, 3, 4, 5, 6, 7, 9, 10, 16, 17, 22, 33, 34, 74, 129, 229, 256)


def levels_of(blocks: int, count: int, seed: int) -> torch.Tensor:
    """Ascending levels, among them equal ones, subnormal ones, huge ones, and a block of NaN."""
    generator = torch.Generator().manual_seed(seed)
    grid = torch.randn(blocks, count, generator=generator).sort(1).values
    grid[seed % blocks] = grid[seed % blocks, 0]
    grid[(seed + 1) % blocks] *= 1e-42
    grid[(seed + 2) % blocks] *= 2.0**125
    if blocks > 4:
        grid[3] = float("nan")
    return grid


def check(values: torch.Tensor, table: torch.Tensor, levels: torch.Tensor, nearest: bool) -> None:
    keys = torch.arange(len(table)) * 0x1234567_89ABCDEF
    count = int(table[:, 1].sum())
    packed, by_cpu = both(kernels.quantize, values, levels, table, keys, nearest)
    assert torch.equal(packed, by_cpu)
    codes = kernels.unpack(packed, levels.shape[1], count)
    assert torch.equal(packed, kernels.pack(codes, levels.shape[1]))
    for dtype in (torch.float32, torch.float64):
        for add in (False, True):
            totals = [torch.linspace(-1, 1, len(values), dtype=dtype) for _ in range(2)]
            for name, total in zip(("reference", "cpu"), totals):
                with kernels.backend(name):
                    kernels.dequantize(packed, levels, table, total, add)
            assert totals[0].numpy().tobytes() == totals[1].numpy().tobytes()


@pytest.mark.parametrize("levels", LEVELS)
def test_many_values_across_stretches_groups_runs_and_blocks(levels):
    values = hostile_values(13_000, levels)
    for block_size in (300, 2048, None):
        table = cut([9_001, 0, 3_999], block_size)
        for nearest in (False, True):
            check(values, table, levels_of(len(table), levels, levels), nearest)


@pytest.mark.parametrize("levels", [34, 129, 256])
def test_levels_that_crowd_in_one_place(levels):
    generator = torch.Generator().manual_seed(levels)
    values, table = hostile_values(3_000, 4), cut([3_000], 512)
    grid = torch.exp(5 * torch.randn(len(table), levels, generator=generator)).sort(1).values
    grid[1] = 1 + grid[1] * 1e-9
    grid[2, levels // 2 :] = grid[2, -1]
    for nearest in (False, True):
        check(values, table, grid, nearest)


@pytest.mark.parametrize("levels", [3, 9, 17])
def test_every_count_around_a_group(levels):
    group = 64 * digit_layout(levels).count
    for count in (1, 2, 63, 64, 65, group - 1, group, group + 1):
        table = cut([count], 64)
        check(hostile_values(count, count), table, levels_of(len(table), levels, count), False)


@settings(deadline=None, max_examples=60)
@given(
    segments=st.lists(st.integers(0, 900), min_size=1, max_size=5),
    block_size=st.one_of(st.none(), st.integers(2, 700)),
    levels=st.sampled_from((2, 3, 5, 9, 16, 33)),
    nearest=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_segments_and_blocks(segments, block_size, levels, nearest, seed):
    table = cut(segments, block_size)
    if len(table):
        check(hostile_values(sum(segments), seed), table, levels_of(len(table), levels, seed), nearest)


@pytest.mark.parametrize("shift", [0, 1, 40_000])
def test_codes_are_right_one_by_one(shift):
    """Against the rule itself, value by value, in float32."""
    values = torch.randn(700, generator=torch.Generator().manual_seed(0))
    table, keys = cut([700], 256), torch.tensor([5, 6, 7])
    for count in (2, 5, 12, 40):
        grid = levels_of(3, count, 3)
        grid[0], grid[1] = torch.linspace(-2, 2, count), torch.linspace(-1, 3, count)
        codes = kernels.unpack(kernels.quantize(values, grid, table, keys, False, shift), count, 700).tolist()
        for i in range(512):
            x, level = np.float32(values[i]), grid[i // 256].numpy()
            below = max([k for k in range(count - 1) if level[k] <= x], default=0)
            h = int(kernels.random_bits(torch.tensor([i]), keys[i // 256 : i // 256 + 1]))
            u = np.float32(((h + shift) % 65536 + 0.5) / 65536)
            assert codes[i] == below + (x - level[below] > u * (level[below + 1] - level[below]))


def test_non_finite_levels_give_code_zero():
    values = torch.tensor([1.0, float("inf"), float("nan"), -1.0])
    for count in LEVELS:
        grid = torch.full((1, count), float("nan"))
        for packed in both(kernels.quantize, values, grid, cut([4], 4), torch.tensor([1]), False):
            assert not kernels.unpack(packed, count, 4).any()


@pytest.mark.parametrize("levels", LEVELS)
def test_bytes_that_no_encoder_writes_decode_alike(levels):
    count = 64 * digit_layout(levels).count + 17
    table, grid = cut([count], None), levels_of(1, levels, levels).sort(1).values
    for octets in (torch.full((kernels.packed_bytes(count, levels),), 255, dtype=torch.uint8), None):
        if octets is None:
            rng = np.random.default_rng(levels)
            octets = torch.from_numpy(rng.integers(0, 256, kernels.packed_bytes(count, levels), dtype=np.uint8))
        totals = [torch.zeros(count) for _ in range(2)]
        for name, total in zip(("reference", "cpu"), totals):
            with kernels.backend(name):
                kernels.dequantize(octets, grid, table, total, False)
        assert torch.equal(*totals)


def test_results_do_not_depend_on_the_number_of_threads():
    values = hostile_values(200_000, 0)
    table = cut([120_000, 80_000], 512)
    levels, keys = levels_of(len(table), 9, 1), torch.arange(len(table))
    before, results = kernels.threads(), []
    try:
        for threads in (1, 2, 5):
            kernels.set_threads(threads)
            packed = kernels.quantize(values, levels, table, keys, False)
            total = torch.zeros(200_000)
            kernels.dequantize(packed, levels, table, total, True)
            results.append((packed, total.view(torch.uint8)))
    finally:
        kernels.set_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))
