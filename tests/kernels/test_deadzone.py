"""Rounding with a dead zone: the kernels equal the reference to the bit, and codes are those that cost least."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.kernels.coding import book_tables
from tests.kernels.data import both
from tests.kernels.test_dither import at_random

from thinwire import kernels
from thinwire.kernels.deadzone import deadzone_costs, deadzone_decode, deadzone_encode
from thinwire.kernels.entropy.reference import ROOM
from thinwire.schemes.deadzone import _lengths, _thresholds


@pytest.mark.parametrize("scale", [0.02, 0.9, 6.0, 3000.0])
@pytest.mark.parametrize("seed", [s for s in range(12) if s not in (4, 5, 9, 10)])
def test_kernels_equal_the_reference(seed, scale):
    values, table, _, steps, classes = at_random(seed, scale)
    tables, thresholds, room = book_tables(seed % 4), _thresholds(seed % 4), 6 * ROOM
    assert torch.equal(*both(deadzone_costs, values, table, 1 / steps, classes, thresholds, _lengths(seed % 4)))
    (words, lengths, sums), by_cpu = both(
        deadzone_encode, values, table, 1 / steps, classes, thresholds, tables, 3, room
    )
    assert torch.equal(lengths, by_cpu[1])
    assert torch.equal(sums, by_cpu[2])
    assert int(lengths.min()) > 0
    chunks = [[row[room - n :] for row, n in zip(w, lengths.tolist())] for w in (words, by_cpu[0])]
    assert all(torch.equal(a, b) for a, b in zip(*chunks))
    starts, joined = torch.tensor([0, *lengths.cumsum(0)]), torch.cat(chunks[0])
    distances = torch.tensor([0, 0.0625, -0.25, 0.125], dtype=torch.float64)
    for dtype in (torch.float32, torch.float64):
        for add in (False, True):
            totals = [torch.linspace(-1, 1, len(values), dtype=dtype) for _ in range(2)]
            for name, total in zip(("reference", "cpu"), totals):
                with kernels.backend(name):
                    assert deadzone_decode(joined, starts, table, steps, distances, tables, 3, total, add).all()
            assert totals[0].numpy().tobytes() == totals[1].numpy().tobytes()
    step = torch.repeat_interleave(steps, table[:, 1])
    total = torch.zeros(len(values), dtype=torch.float64)
    deadzone_decode(joined, starts, table, steps, torch.zeros(4, dtype=torch.float64), tables, 3, total, False)
    assert ((total - values).abs() <= step * (1 + 1e-9)).all()


def test_codes_and_sums_by_hand():
    """Thresholds of a quarter: sizes of 3/4, give or take 1/64, and more become 1; with low bits, the nearest."""
    sizes = [0.0, 0.5, 0.7343, 0.7657, 1.25, 1.7343, 1.7657, 2.7, 3.0, 7.7657]
    values = torch.tensor([s for size in sizes for s in (size, -size)])
    table, inverse = torch.tensor([[0, len(values), 0, 0]]), torch.ones(1, dtype=torch.float64)
    thresholds, lengths = (
        torch.full((44, 64), 0.25, dtype=torch.float64),
        torch.arange(65, dtype=torch.int32).repeat(44, 1),
    )
    for class_, magnitudes in ((36, [0, 0, 0, 1, 1, 1, 2, 2, 3, 8]), (46, [0, 1, 1, 1, 1, 2, 2, 3, 3, 8])):
        classes, low = torch.tensor([class_], dtype=torch.uint8), int(class_ > 45)
        for cost in both(deadzone_costs, values, table, inverse, classes, thresholds, lengths):
            assert int(cost) == 2 * sum((m >> low) + 1024 * low for m in magnitudes)
        distances = np.floor((np.array(sizes, np.float32) - magnitudes) * 65536.0 + 0.5)
        groups = [[d for d, m in zip(distances, magnitudes) if min(m, 3) == k] for k in (1, 2, 3)]
        wanted = [[2 * len(g) for g in groups], [2 * sum(g) for g in groups]]
        for _, _, sums in both(
            deadzone_encode, values, table, inverse, classes, thresholds, book_tables(), 1, 3 * ROOM
        ):
            assert sums.tolist() == wanted


def test_sizes_within_the_spread_of_a_threshold_become_codes_in_proportion():
    share, count = 0.4, 256
    values, table = torch.full((count,), 0.75 - 1 / 64 + share / 32), torch.tensor([[0, count, 0, 0]])
    thresholds, lengths = torch.full((44, 64), 0.25, dtype=torch.float64), torch.ones(44, 65, dtype=torch.int32)
    lengths[:, 0] = 0
    classes, inverse = torch.tensor([36], dtype=torch.uint8), torch.ones(1, dtype=torch.float64)
    for cost in both(deadzone_costs, values, table, inverse, classes, thresholds, lengths):
        assert int(cost) == pytest.approx(share * count, abs=2)
