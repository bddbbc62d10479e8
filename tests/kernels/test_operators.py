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
        "pack": (ops.pack, (codes, 5)),
        "unpack": (ops.unpack, (packed, 5, 300)),
        "checksum": (ops.checksum, (torch.zeros(64, dtype=torch.uint8),)),
    }


@pytest.mark.parametrize("name", cases())
def test_opcheck(name):
    op, args = cases()[name]
    result = torch.library.opcheck(op.default, args)
    assert set(result.values()) == {"SUCCESS"}
