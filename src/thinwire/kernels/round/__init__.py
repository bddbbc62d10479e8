"""Rounding values to packed codes, and packed codes back to values."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import operator
from thinwire.kernels.round import cpu, reference

__all__ = ["dequantize", "quantize"]


def _quantize(values: Tensor, levels: Tensor, table: Tensor, keys: Tensor, nearest: bool, shift: int = 0) -> Tensor:
    return values.new_empty(torch.library.get_ctx().new_dynamic_size(), dtype=torch.uint8)


def _dequantize(packed: Tensor, levels: Tensor, table: Tensor, total: Tensor, add: bool) -> None:
    return None


quantize = operator(reference.quantize, cpu.quantize, _quantize)
dequantize = operator(reference.dequantize, cpu.dequantize, _dequantize, mutates=("total",))
