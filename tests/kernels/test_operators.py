"""The operators are well-formed torch.library operators: schema, fake kernels, no hidden mutation."""

import pytest
import torch
from tests.kernels.data import cut, hostile_values

from thinwire import kernels


def cases():
    values, table = hostile_values(300, 0), cut([200, 100], 64)
    keys = torch.arange(len(table))
    rows, _ = kernels.gather_rows(values, table, 64)
    ascending = kernels.sort_rows(rows)
    levels = kernels.solve_orq(ascending, table[:, 1].contiguous(), 5)
    packed = kernels.quantize(values, levels, table, keys, False)
    codes = kernels.unpack(packed, 5, 300)
    ops = torch.ops.thinwire
    return {
        "gather_rows": (ops.gather_rows, (values, table, 64)),
        "sort_rows": (ops.sort_rows, (rows,)),
        "solve_orq": (ops.solve_orq, (ascending, table[:, 1].contiguous(), 5)),
        "quantize": (ops.quantize, (values, levels, table, keys, False)),
        "dequantize": (ops.dequantize, (packed, levels, table, torch.zeros(300), True)),
        "pack": (ops.pack, (codes, 5)),
        "unpack": (ops.unpack, (packed, 5, 300)),
        "checksum": (ops.checksum, (torch.zeros(64, dtype=torch.uint8),)),
    }


@pytest.mark.parametrize("name", cases())
def test_opcheck(name):
    op, args = cases()[name]
    result = torch.library.opcheck(op.default, args)
    assert set(result.values()) == {"SUCCESS"}
