"""Rotating and rounding in one pass: the same bits as one after the other, wherever the passes are cut."""

import numpy as np
import pytest
import torch
from tests.kernels.data import cut, hostile_values

from thinwire import kernels
from thinwire.kernels.gaussian import MEAN_SQUARED_ERROR
from thinwire.kernels.gaussian.reference import dequantize_normal, quantize_normal

LEVELS = sorted(MEAN_SQUARED_ERROR)


def case(lengths, block_size, seed):
    """Values, their blocks, keys, and rows that round a share of each block's coordinates, codes in any order."""
    generator = np.random.default_rng(seed)
    values, table = hostile_values(sum(lengths), seed), cut(lengths, block_size)
    counts = kernels.coordinates(table)
    sent = torch.from_numpy(generator.integers(0, counts.numpy() + 1))
    place, order = torch.zeros_like(sent), torch.from_numpy(generator.permutation(len(sent)))
    place[order] = sent[order].cumsum(0) - sent[order]
    levels = torch.from_numpy(generator.choice(LEVELS, len(sent)))
    rows = torch.stack([counts.cumsum(0) - counts, sent, place, levels], dim=1)
    return values, table, torch.from_numpy(generator.integers(0, 1 << 62, len(table))), rows


CASES = {
    "one value": ([1], 256),
    "one block": ([256], 256),
    "many blocks and rests": ([256 * 70 + 3, 31, 5000, 1], 256),
    "blocks larger than a pass": ([40000, 17], 16384),
    "two threads' worth": ([1 << 17], 256),
}


@pytest.mark.parametrize("rounds", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_equal_to_one_after_the_other(name, rounds):
    values, table, keys, rows = case(*CASES[name], seed=len(name))
    rotated, sizes = kernels.rotate(values, table, keys, rounds)
    codes, products = quantize_normal(rotated, rows)
    for backend in ("reference", "cpu"):
        with kernels.backend(backend):
            for found, expected in zip(
                kernels.quantize_rotated(values, table, keys, rounds, rows), (codes, products, sizes)
            ):
                assert found.dtype == expected.dtype
                assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    for add in (False, True):
        expected = torch.linspace(-1, 1, len(values))
        kernels.rotate_back(dequantize_normal(codes, rows, len(rotated)), sizes, table, keys, rounds, expected, add)
        for backend in ("reference", "cpu"):
            total = torch.linspace(-1, 1, len(values))
            with kernels.backend(backend):
                kernels.dequantize_rotated(codes, rows, sizes, table, keys, rounds, total, add)
            assert torch.equal(total.nan_to_num(7), expected.nan_to_num(7))


def test_no_blocks():
    empty = torch.zeros(0, 4, dtype=torch.int64)
    nothing = torch.zeros(0, dtype=torch.int64)
    codes, products, sizes = kernels.quantize_rotated(torch.zeros(0), empty, nothing, 2, empty)
    assert len(codes) == len(products) == len(sizes) == 0
    kernels.dequantize_rotated(codes, empty, sizes, empty, nothing, 2, torch.zeros(0), True)
