"""Every Numba kernel equals its reference to the bit, on hostile data, at every block border."""

import numpy as np
import pytest
import torch
from tests.kernels.data import BLOCK_SIZES, cut, hostile_values

from thinwire import kernels
from thinwire.errors import BackendError

COUNTS = (0, 1, 2, 63, 64, 65, 127, 2047, 2048, 2049, 4099)


def both(function, *args):
    results = []
    for name in ("reference", "cpu"):
        with kernels.backend(name):
            results.append(function(*args))
    return results


def same(a, b):
    if isinstance(a, tuple):
        return all(same(x, y) for x, y in zip(a, b))
    equal = a.numpy().tobytes() == b.numpy().tobytes()
    return equal and a.dtype == b.dtype and a.shape == b.shape


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("seed", range(12))
def test_gather_sort_solve_round_and_back(seed, block_size):
    count = 3 * block_size + 1 + seed
    values = hostile_values(count, seed)
    table = cut([count - 2, 0, 2], block_size)
    keys = torch.arange(len(table)) * 0x1234567_89ABCDEF
    reference, cpu = both(kernels.gather_rows, values, table, block_size)
    assert same(reference, cpu)
    rows, cpu_rows = both(kernels.sort_rows, cpu[0])
    assert torch.equal(rows, cpu_rows)  # the order of equal values may differ, their bits do not: no negative zeros
    for levels in (3, 5, 9, 33):
        solved, cpu_solved = both(kernels.solve_orq, rows, table[:, 1], levels)
        assert same(solved, cpu_solved)
        for nearest in (False, True):
            assert same(*both(kernels.quantize, values, solved, table, keys, nearest))


def test_non_finite_blocks_are_marked_and_zeroed():
    values = torch.ones(10)
    values[3], values[6] = float("nan"), float("inf")
    values[9] = 2.0**127
    for rows, finite in both(kernels.gather_rows, values, cut([10], 2), 2):
        assert finite.tolist() == [True, False, True, False, False]
        assert rows.tolist() == [[1, 1], [0, 0], [1, 1], [0, 0], [0, 0]]


@pytest.mark.parametrize("count", COUNTS)
def test_checksum(count):
    frame = torch.from_numpy(np.random.default_rng(count).integers(0, 256, 16 * count, dtype=np.uint8))
    reference, cpu = both(kernels.checksum, frame)
    words = frame.numpy().view("<u4").tolist()
    expected = sum(w * (0x9E3779B97F4A7C15 + i * 0x1D8E4E27C47D124E) for i, w in enumerate(words)) % (1 << 64)
    assert int(reference) % (1 << 64) == int(cpu) % (1 << 64) == expected


def test_results_do_not_depend_on_the_number_of_threads():
    values = hostile_values(100_000, 0)
    table = cut([60_000, 40_000], 512)
    keys = torch.arange(len(table))
    before, results = kernels.threads(), []
    try:
        for threads in (1, 2, 5):
            kernels.set_threads(threads)
            rows, finite = kernels.gather_rows(values, table, 512)
            levels = kernels.solve_orq(kernels.sort_rows(rows), table[:, 1], 9)
            packed = kernels.quantize(values, levels, table, keys, False)
            results.append((rows, finite, levels, packed, kernels.checksum(packed[: len(packed) // 4 * 4])))
    finally:
        kernels.set_threads(before)
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def test_an_explicit_backend_that_cannot_run_says_which_can():
    with kernels.backend("cpu"), pytest.raises(BackendError, match="'reference' or 'auto'"):
        kernels.pack(torch.zeros(5, dtype=torch.uint8, device="meta"), 3)
    with pytest.raises(BackendError, match="auto, reference, cpu"), kernels.backend("gpu"):
        pass
