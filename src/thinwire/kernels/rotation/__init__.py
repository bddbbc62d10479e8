"""Rotating and rounding in one pass: rotated coordinates, four bytes a value, are never written to memory."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import operator
from thinwire.kernels.rotation import cpu, reference

__all__ = ["dequantize_rotated", "quantize_rotated"]


def _quantize(values: Tensor, table: Tensor, keys: Tensor, rounds: int, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    codes = values.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.uint8)
    return codes, values.new_empty(table.shape[0]), values.new_empty(table.shape[0])


def _dequantize(
    codes: Tensor, rows: Tensor, scales: Tensor, table: Tensor, keys: Tensor, rounds: int, total: Tensor, add: bool
) -> None:
    return None


quantize_rotated = operator(reference.quantize_rotated, cpu.quantize_rotated, _quantize)
dequantize_rotated = operator(reference.dequantize_rotated, cpu.dequantize_rotated, _dequantize, mutates=("total",))
