"""Level solvers: Numba equals the reference to the bit, for any blocks, chunks and threads; NaN where not finite."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.kernels.data import BLOCK_SIZES, cut, hostile_values
from tests.strategies import blocks

from thinwire import kernels

SOLVERS = {
    "clipped pair": (kernels.solve_clipped_pair,),
    "full range": (kernels.solve_full_range,),
    "largest magnitude": (kernels.solve_largest_magnitude,),
    "mean magnitude": (kernels.solve_mean_magnitude,),
    "orq-3": (kernels.solve_orq, 3),
    "orq-9": (kernels.solve_orq, 9),
    "orq-33": (kernels.solve_orq, 33),
    "quantiles-2": (kernels.solve_quantiles, 2),
    "quantiles-16": (kernels.solve_quantiles, 16),
    "root energy": (kernels.solve_root_energy,),
    "two means": (kernels.solve_two_means,),
    "within deviations": (kernels.solve_within_deviations, 2.5),
}
every_solver = pytest.mark.parametrize("name", SOLVERS)
POISONS = (float("nan"), float("inf"), -float("inf"), 2.0**127, -(2.0**127))
SPECIALS = (0.0, -0.0, 2.0**-149, -(2.0**-126), 1e30, -1e30, 2.0**126, *POISONS)


def both(name: str, values: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The levels, after a check that both backends give the same bits and no negative zeros."""
    solve, *numbers = SOLVERS[name]
    results = []
    for backend in ("reference", "cpu"):
        with kernels.backend(backend):
            results.append(solve(values, table, *numbers))
    reference, cpu = results
    assert reference.dtype == cpu.dtype == torch.float32
    assert reference.shape == cpu.shape
    assert torch.equal(reference.isnan(), cpu.isnan())
    assert reference.nan_to_num(7).numpy().tobytes() == cpu.nan_to_num(7).numpy().tobytes()
    assert not (torch.signbit(cpu) & (cpu == 0)).any()
    return cpu


@every_solver
@given(parts=st.lists(blocks(), min_size=1, max_size=5), block_size=st.sampled_from([2, 7, 64, None]))
@settings(max_examples=100, deadline=None)
def test_any_blocks(name, parts, block_size):
    values = torch.from_numpy(np.concatenate(parts))
    found = both(name, values, kernels.block_table(_places([len(part) for part in parts]), block_size)[0])
    assert torch.isfinite(found).all()


@every_solver
@given(x=st.lists(st.sampled_from(SPECIALS) | st.floats(width=32), min_size=1, max_size=30), size=st.integers(2, 8))
@settings(max_examples=100, deadline=None)
def test_special_values(name, x, size):
    values = torch.tensor(x, dtype=torch.float32)
    found = both(name, values, cut([len(x)], size))
    finite = torch.tensor([bool((block.abs() < 2.0**127).all()) for block in values.split(size)])
    assert torch.equal(~found.isnan().any(1), finite)


@every_solver
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_hostile_blocks(name, block_size):
    for seed in range(12):
        count = 3 * block_size + 1 + seed
        both(name, hostile_values(count, seed), cut([count - 2, 0, 2], block_size))


@every_solver
@pytest.mark.parametrize("counts", [[], [0], [1], [200_000, 3, 70_000, 1, 1], [5] * 100 + [170_000]])
def test_blocks_of_very_different_lengths(name, counts):
    values = torch.randn(sum(counts), generator=torch.Generator().manual_seed(0))
    table, _ = kernels.block_table(_places(counts), None)
    found = both(name, values, table)
    assert len(found) == sum(count > 0 for count in counts)


@every_solver
@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("place", [64, 100, 127])
def test_a_non_finite_value_makes_its_block_nan_and_no_other(name, poison, place):
    values = torch.randn(230)
    clean = both(name, values, cut([230], 64))
    values[place] = poison
    found = both(name, values, cut([230], 64))
    assert torch.isnan(found[1]).all()
    assert torch.equal(found[[0, 2, 3]], clean[[0, 2, 3]])


@every_solver
def test_threads_change_nothing(name):
    values = torch.randn(500_000, generator=torch.Generator().manual_seed(0))
    table = cut([300_001, 99_999, 100_000], 512)
    solve, *numbers = SOLVERS[name]
    before, results = kernels.threads(), []
    try:
        for threads in (1, 2, 5):
            kernels.set_threads(threads)
            results.append(solve(values, table, *numbers))
    finally:
        kernels.set_threads(before)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def _places(counts: list[int]) -> list[tuple[int, int]]:
    """Back-to-back segments of these counts."""
    return list(zip(np.cumsum([0, *counts]).tolist(), counts))
