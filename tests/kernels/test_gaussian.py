"""Lloyd-Max levels of N(0, 1): Lloyd's conditions hold, and both backends round and look up alike."""

import itertools
import math

import numpy as np
import pytest
import torch

from thinwire.kernels.gaussian import MEAN_SQUARED_ERROR, levels_of
from thinwire.kernels.gaussian.cpu import dequantize_rows, quantize_rows, tables
from thinwire.kernels.gaussian.make_tables import LEVEL_COUNTS, solve
from thinwire.kernels.gaussian.reference import dequantize_normal, quantize_normal

every_count = pytest.mark.parametrize("count", LEVEL_COUNTS)


def cells(levels: list[float]) -> list[tuple[float, float]]:
    inner = [(a + b) / 2 for a, b in itertools.pairwise(levels)]
    return list(zip([-math.inf, *inner], [*inner, math.inf]))


def mass(a: float, b: float) -> float:
    return (math.erfc(a / math.sqrt(2)) - math.erfc(b / math.sqrt(2))) / 2


def density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


@every_count
def test_each_level_is_the_mean_of_its_cell(count):
    levels = levels_of(count).tolist()
    assert len(levels) == count
    assert levels == sorted(levels)
    for level, (a, b) in zip(levels, cells(levels)):
        if level >= 0:  # the other half mirrors it, and differences of tails are exact on this side alone
            assert level == pytest.approx((density(a) - density(b)) / mass(a, b), rel=2e-6, abs=1e-6)
    assert levels == [-level for level in reversed(levels)]


@every_count
def test_the_stated_error_is_theirs(count):
    levels = levels_of(count).tolist()
    explained = 2 * sum(mass(a, b) * level**2 for level, (a, b) in zip(levels, cells(levels)) if level > 0)
    assert MEAN_SQUARED_ERROR[count] == pytest.approx(1 - explained, rel=1e-3, abs=1e-7)


@every_count
def test_the_kept_tables_are_what_the_script_computes(count):
    levels, error = solve(count)
    assert np.allclose(levels.astype(np.float32), levels_of(count).numpy(), rtol=1e-6)
    assert error == pytest.approx(MEAN_SQUARED_ERROR[count], rel=1e-6)


def rows(shapes: list[tuple[int, int]], seed: int) -> torch.Tensor:
    """Rows of these (coordinates, levels), with gaps between them, and codes in a shuffled order."""
    order = np.random.default_rng(seed).permutation(len(shapes))
    places, at = np.zeros(len(shapes), np.int64), 0
    for index in order:
        places[index] = at
        at += shapes[index][0]
    firsts = np.cumsum([0, *(count + 3 for count, _ in shapes)])[:-1]
    table = [[first, count, place, s] for first, (count, s), place in zip(firsts, shapes, places)]
    return torch.tensor(table, dtype=torch.int64).reshape(-1, 4)


def by_kernel(x: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    codes, products = np.empty(int(table[:, 1].sum()), np.uint8), np.empty(len(table), np.float32)
    quantize_rows(x.numpy(), 0, table.numpy(), *tables(), codes, products, 0, len(table))
    return torch.from_numpy(codes), torch.from_numpy(products)


def back_by_kernel(codes: torch.Tensor, table: torch.Tensor, count: int) -> torch.Tensor:
    x, (starts, levels, _) = np.zeros(count, np.float32), tables()
    dequantize_rows(codes.numpy(), table.numpy(), starts, levels, x, 0, 0, len(table))
    return torch.from_numpy(x)


SHAPES = [(256, s) for s in LEVEL_COUNTS] + [(n, 3) for n in (32, 33, 63, 64, 255, 257, 511, 1000)] + [(8192, 16)]


@pytest.mark.parametrize("seed", range(4))
def test_rounding_and_back_by_reference_and_kernel(seed):
    table = rows(SHAPES, seed)
    x = torch.randn(sum(n + 3 for n, _ in SHAPES), generator=torch.Generator().manual_seed(seed))
    x[::7] = 0.0
    x[::31] = levels_of(256)[200]
    (codes, products), (by_cpu, sums) = quantize_normal(x, table), by_kernel(x, table)
    assert torch.equal(codes, by_cpu)
    assert torch.equal(products, sums)
    back, again = dequantize_normal(codes, table, len(x)), back_by_kernel(codes, table, len(x))
    assert torch.equal(back, again)
    for (first, count, place, s), product in zip(table.tolist(), products.tolist()):
        row, levels = x[first : first + count], levels_of(s)
        nearest = levels[(row[:, None] - levels).abs().argmin(1)]
        decoded = back[first : first + count]
        assert torch.equal(decoded, levels[codes[place : place + count].long()])
        assert torch.allclose((row - decoded).abs(), (row - nearest).abs(), atol=1e-6)
        assert product == pytest.approx(float((row.double() * decoded).sum()), rel=1e-5, abs=1e-4)
        assert not back[first + count : first + count + 3].any()
