"""The operators are well-formed torch.library operators: schema, fake kernels, no hidden mutation."""

import pytest
import torch
from tests.kernels.data import cut, hostile_values

from thinwire import kernels


def cases():
    values, table = hostile_values(300, 0), cut([200, 100], 64)
    keys = torch.arange(len(table))
    levels = kernels.solve_orq(values, table, 5)
    packed = kernels.quantize(values, levels, table, keys, False)
    codes = kernels.unpack(packed, 5, 300)
    aligned, few = cut([200, 100], 256), torch.tensor([[0, 200, 100, 5], [200, 100, 0, 16]])
    rotated, sizes = kernels.rotate(values, aligned, keys[:2], 2)
    normal, _ = kernels.quantize_normal(rotated, few)
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
        "rotate_back": (ops.rotate_back, (rotated, sizes, aligned, keys[:2], 2, torch.zeros(300), True)),
        "quantize_normal": (ops.quantize_normal, (rotated, few)),
        "dequantize_normal": (ops.dequantize_normal, (normal, few, 300)),
        "pack": (ops.pack, (codes, 5)),
        "unpack": (ops.unpack, (packed, 5, 300)),
        "checksum": (ops.checksum, (torch.zeros(64, dtype=torch.uint8),)),
    }


@pytest.mark.parametrize("name", cases())
def test_opcheck(name):
    op, args = cases()[name]
    result = torch.library.opcheck(op.default, args)
    assert set(result.values()) == {"SUCCESS"}
