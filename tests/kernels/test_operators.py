"""The operators are well-formed torch.library operators: schema, fake kernels, no hidden mutation."""

import typing

import pytest
import torch
from tests.kernels.coding import book_tables
from tests.kernels.data import cut, hostile_values
from torch._library.custom_ops import OPDEFS

from thinwire import kernels
from thinwire.kernels.entropy.lengths import mean_lengths
from thinwire.kernels.entropy.reference import ROOM


def cases():
    values, table = hostile_values(300, 0), cut([200, 100], 64)
    keys = torch.arange(len(table))
    levels = kernels.solve_orq(values, table, 5)
    packed = kernels.quantize(values, levels, table, keys, False)
    codes = kernels.unpack(packed, 5, 300)
    aligned, few = cut([200, 100], 256), torch.tensor([[0, 200, 100, 5], [200, 100, 0, 16]])
    rotated, norms = kernels.rotate(values, aligned, keys[:2], 2)
    normal, _, _ = kernels.quantize_rotated(values, aligned, keys[:2], 2, few)
    runs, tables, row_lengths = cut([200, 100], 256), book_tables(), mean_lengths(0)
    classes, steps = torch.full((2,), 34, dtype=torch.uint8), torch.ones(2, dtype=torch.float64)
    phases, counts = torch.zeros(300, dtype=torch.uint8), runs[:, 1]
    coded = (codes.to(torch.int32), phases, counts, classes, tables, 5, 1, 3 * ROOM)
    words, sizes = kernels.entropy.encode_codes(*coded)
    chunks = torch.cat([row[3 * ROOM - size :] for row, size in zip(words, sizes.tolist())])
    starts = torch.tensor([0, *sizes.cumsum(0)])
    thresholds, costs = torch.zeros(44, 64, dtype=torch.float64), torch.zeros(44, 65, dtype=torch.int32)
    ops = torch.ops.thinwire
    return {
        "solve_clipped_pair": (ops.solve_clipped_pair, (values, table)),
        "solve_full_range": (ops.solve_full_range, (values, table)),
        "solve_largest_magnitude": (ops.solve_largest_magnitude, (values, table)),
        "solve_mean_magnitude": (ops.solve_mean_magnitude, (values, table)),
        "solve_orq": (ops.solve_orq, (values, table, 5)),
        "solve_quantiles": (ops.solve_quantiles, (values, table, 5)),
        "solve_root_energy": (ops.solve_root_energy, (values, table)),
        "solve_two_means": (ops.solve_two_means, (values, table)),
        "solve_within_deviations": (ops.solve_within_deviations, (values, table, 2.5)),
        "quantize": (ops.quantize, (values, levels, table, keys, False)),
        "dequantize": (ops.dequantize, (packed, levels, table, torch.zeros(300), True)),
        "round_to_bfloat16": (ops.round_to_bfloat16, (values, 7)),
        "rotate": (ops.rotate, (values, aligned, keys[:2], 2)),
        "rotate_back": (ops.rotate_back, (rotated, norms, aligned, keys[:2], 2, torch.zeros(300), True)),
        "quantize_rotated": (ops.quantize_rotated, (values, aligned, keys[:2], 2, few)),
        "dequantize_rotated": (
            ops.dequantize_rotated,
            (normal, few, norms, aligned, keys[:2], 2, torch.zeros(300), True),
        ),
        "pack": (ops.pack, (codes, 5)),
        "unpack": (ops.unpack, (packed, 5, 300)),
        "run_energies": (ops.run_energies, (values, runs)),
        "settle_classes": (ops.settle_classes, (torch.zeros(2, dtype=torch.int32), 1)),
        "dither_costs": (ops.dither_costs, (values, runs, steps, classes, *row_lengths)),
        "dither_decode": (
            ops.dither_decode,
            (chunks, starts, runs, keys[:2], steps, tables, 1, torch.zeros(300), True),
        ),
        "deadzone_costs": (ops.deadzone_costs, (values, runs, steps, classes, thresholds, costs)),
        "deadzone_decode": (
            ops.deadzone_decode,
            (chunks, starts, runs, steps, torch.zeros(4, dtype=torch.float64), tables, 1, torch.zeros(300), True),
        ),
        "decode_codes": (ops.decode_codes, (chunks, starts, phases, counts, tables, 5, 1)),
        "checksum": (ops.checksum, (torch.zeros(64, dtype=torch.uint8),)),
    }


@pytest.mark.parametrize("name", cases())
def test_opcheck(name):
    op, args = cases()[name]
    result = torch.library.opcheck(op.default, args)
    assert set(result.values()) == {"SUCCESS"}


def test_no_parameter_is_of_a_type_that_torch_2_6_does_not_know():
    functions = {name: op._init_fn for name, op in OPDEFS.items() if name.startswith("thinwire::")}
    assert len(functions) >= len(cases())
    for name, function in functions.items():
        hints = typing.get_type_hints(function)
        del hints["return"]
        assert list not in {typing.get_origin(hint) for hint in hints.values()}, f"{name}: write Sequence, not list"
