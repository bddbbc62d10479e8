"""Every Numba kernel equals its reference to the bit, on hostile data, at every block border."""

import numpy as np
import pytest
import torch
from tests.kernels.data import BLOCK_SIZES, both, cut, hostile_values

from thinwire import kernels
from thinwire.errors import BackendError
from thinwire.kernels.pool import for_ranges

COUNTS = (0, 1, 2, 63, 64, 65, 127, 2047, 2048, 2049, 4099)


def same(a, b):
    if isinstance(a, tuple):
        return all(same(x, y) for x, y in zip(a, b))
    equal = a.numpy().tobytes() == b.numpy().tobytes()
    return equal and a.dtype == b.dtype and a.shape == b.shape


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("seed", range(12))
def test_solve_round_and_back(seed, block_size):
    count = 3 * block_size + 1 + seed
    values = hostile_values(count, seed)
    table = cut([count - 2, 0, 2], block_size)
    keys = torch.arange(len(table)) * 0x1234567_89ABCDEF
    for levels in (3, 5, 9, 33):
        solved, cpu_solved = both(kernels.solve_orq, values, table, levels)
        assert same(solved, cpu_solved)
        for nearest in (False, True):
            assert same(*both(kernels.quantize, values, solved, table, keys, nearest))


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
            levels = kernels.solve_orq(values, table, 9)
            packed = kernels.quantize(values, levels, table, keys, False)
            results.append((levels, packed, kernels.checksum(packed[: len(packed) // 4 * 4])))
    finally:
        kernels.set_threads(before)
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def test_ranges_within_ranges_end():
    before, done = kernels.threads(), []
    try:
        kernels.set_threads(2)
        for_ranges(4, 1, lambda a, b: for_ranges(b - a, 1, lambda c, d: done.extend(range(a + c, a + d))))
    finally:
        kernels.set_threads(before)
    assert sorted(done) == [0, 1, 2, 3]


def test_an_explicit_backend_that_cannot_run_says_which_can():
    with kernels.backend("cpu"), pytest.raises(BackendError, match="'reference' or 'auto'"):
        kernels.pack(torch.zeros(5, dtype=torch.uint8, device="meta"), 3)
    with pytest.raises(BackendError, match="auto, reference, cpu"), kernels.backend("gpu"):
        pass
