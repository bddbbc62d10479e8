"""Subtractive dither: the kernels equal the reference to the bit, and the reference obeys the theory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.kernels.coding import book_tables, ideal_bits
from tests.kernels.data import both, cut, hostile_values

from thinwire import kernels
from thinwire.kernels.dither import NO_ENERGY, dither_costs, dither_decode, dither_encode, run_energies, settle_classes
from thinwire.kernels.entropy.lengths import mean_lengths
from thinwire.kernels.entropy.reference import ROOM
from thinwire.kernels.random import random_bits

COUNTS = [700, 0, 256, 3, 255, 257]


@pytest.mark.parametrize("seed", range(12))
def test_energies_are_the_sums(seed):
    values, table = hostile_values(sum(COUNTS), seed), cut(COUNTS, 256)
    reference, cpu = both(run_energies, values, table)
    assert reference.numpy().tobytes() == cpu.numpy().tobytes()
    for (start, count, *_), found in zip(table.tolist(), cpu.tolist()):
        part = values[start : start + count].tolist()
        assert found == pytest.approx([math.fsum(x * x for x in part), math.fsum(map(abs, part))], rel=1e-13)


def test_energies_of_runs_that_are_not_finite():
    values, table = torch.ones(1024), cut([1024], 256)
    values[[10, 300, 600]] = torch.tensor([math.nan, -math.inf, 2.0**127])
    for found in both(run_energies, values, table):
        assert torch.isnan(found).tolist() == [[True, True]] * 3 + [[False, False]]


def test_a_class_is_kept_while_it_is_near():
    positions = torch.tensor([64, 71, 72, 60, 63, 57, NO_ENERGY, 68, NO_ENERGY - 1, -50, 5000, 71], dtype=torch.int32)
    for found in both(settle_classes, positions, 11):
        assert found.tolist() == [10, 10, 11, 10, 10, 10, 1, 10, 0, 2, 111, 11]


def at_random(seed: int, scale: float = 1.0):
    """Values in runs, their keys, and steps near what their classes stand for."""
    values, table = hostile_values(sum(COUNTS), seed), cut(COUNTS, 256)
    energies = run_energies(values, table)[:, 0] / table[:, 1]
    rms = energies.sqrt()
    steps = torch.where(rms > 0, rms / scale, 1.0).to(torch.float64)
    position = torch.where(rms > 0, torch.round(32 * (torch.log2(rms / steps) + 8)), float(NO_ENERGY))
    keys = torch.arange(len(table)) * 0x1234567_89ABCDEF
    return values, table, keys, steps, settle_classes(position.to(torch.int32), 3)


@pytest.mark.parametrize("scale", [0.02, 0.9, 6.0, 3000.0])
@pytest.mark.parametrize("seed", [s for s in range(12) if s not in (4, 5, 9, 10)])
def test_kernels_equal_the_reference_and_errors_stay_within_half_a_step(seed, scale):
    values, table, keys, steps, classes = at_random(seed, scale)
    shift = 6_000 * seed
    tables, room = book_tables(seed % 4), 6 * ROOM
    assert torch.equal(*both(dither_costs, values, table, 1 / steps, classes, *mean_lengths(seed % 4)))
    (words, lengths), (by_cpu, lengths_by_cpu) = both(
        dither_encode, values, table, keys, 1 / steps, classes, tables, 3, room, shift
    )
    assert torch.equal(lengths, lengths_by_cpu)
    assert int(lengths.min()) > 0
    chunks = [[row[room - n :] for row, n in zip(w, lengths.tolist())] for w in (words, by_cpu)]
    assert all(torch.equal(a, b) for a, b in zip(*chunks))
    starts, joined = torch.tensor([0, *lengths.cumsum(0)]), torch.cat(chunks[0])
    for dtype in (torch.float32, torch.float64):
        for add in (False, True):
            totals = [torch.linspace(-1, 1, len(values), dtype=dtype) for _ in range(2)]
            for name, total in zip(("reference", "cpu"), totals):
                with kernels.backend(name):
                    assert dither_decode(joined, starts, table, keys, steps, tables, 3, total, add, shift).all()
            assert totals[0].numpy().tobytes() == totals[1].numpy().tobytes()
    total = torch.zeros(len(values), dtype=torch.float64)
    dither_decode(joined, starts, table, keys, steps, tables, 3, total, False, shift)
    step = torch.repeat_interleave(steps, table[:, 1])
    assert ((total - values).abs() <= step / 2 * (1 + 1e-9)).all()


def test_the_error_is_uniform_whatever_the_value():
    """No bias, a mean square of step^2 / 12, and a flat histogram, each within 5 standard errors."""
    draws, step = 1 << 15, 0.7
    table = cut([draws], 256)
    tables, keys = book_tables(), torch.full((len(table),), 77)
    steps = torch.full((len(table),), step, dtype=torch.float64)
    for value in (0.0, 1e-9, 0.2, 0.35, 0.6999, -3.1):
        values, classes = torch.full((draws,), value), torch.full((len(table),), 34, dtype=torch.uint8)
        words, lengths = dither_encode(values, table, keys, 1 / steps, classes, tables, len(table), draws + 2 * ROOM)
        total = torch.zeros(draws, dtype=torch.float64)
        words, starts = words[0, words.shape[1] - int(lengths) :], torch.tensor([0, int(lengths)])
        assert dither_decode(words, starts, table, keys, steps, tables, len(table), total, False).all()
        error = (total - values.double()) / step
        assert abs(float(error.mean())) <= 5 * math.sqrt(1 / 12 / draws)
        assert abs(float((error**2).mean()) - 1 / 12) <= 5 * math.sqrt(1 / 180 / draws)
        histogram = np.histogram(error.numpy(), 16, (-0.5, 0.5))[0]
        assert (np.abs(histogram - draws / 16) <= 5 * math.sqrt(draws / 16)).all()


def test_sixteen_bits_leave_a_bias_of_a_131072th_of_a_step():
    """Exactly, over all 65,536 values of the dither."""
    u = (np.arange(1 << 16) + 0.5) * 2.0**-16
    for x in (0.0, 2.0**-17, 1 / 3, 0.49999, 0.5, 7.77, -1e-6):
        assert abs((np.floor(x + u) + 0.5 - u - x).mean()) <= 2.0**-17


@pytest.mark.parametrize("class_", [2, 12, 20, 26, 30, 36, 44, 52])
def test_the_cost_is_the_mean_of_ideal_code_lengths(class_):
    """Against the lengths of the codes that many draws give, within 5 standard errors and 1/32 step of placing."""
    n = 1 << 13
    low_bits = max(0, -((44 - 1 - (class_ - 2)) // 4))
    row = class_ - 2 - 4 * low_bits
    scale = 2.0 ** ((class_ - 2) / 4 - 8)
    values = torch.from_numpy((scale * np.random.default_rng(1).standard_normal(n)).astype(np.float32))
    table, tables = cut([n], 256), book_tables()
    classes, inverse = torch.full((32,), class_, dtype=torch.uint8), torch.ones(32, dtype=torch.float64)
    expected = int(dither_costs(values, table, inverse, classes, *mean_lengths(0)).sum()) / 1024 / n
    bits = random_bits(torch.arange(n), torch.tensor(5))
    codes = torch.floor(values.double() + (bits + 0.5) * 2.0**-16).to(torch.int64).tolist()
    phases = (bits >> 11).tolist()
    found = np.array([ideal_bits(q, p, row, low_bits, tables, 5) for q, p in zip(codes, phases)])
    assert abs(expected - found.mean()) <= 5 * found.std() / math.sqrt(n) + 0.01
