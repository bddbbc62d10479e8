"""Blocks gathered as rows, and rows sorted."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import operator
from thinwire.kernels.rows import cpu, reference

__all__ = ["gather_rows", "sort_rows"]


def _gather_rows(values: Tensor, table: Tensor, width: int) -> tuple[Tensor, Tensor]:
    blocks = table.shape[0]
    return values.new_empty((blocks, width)), values.new_empty(blocks, dtype=torch.bool)


gather_rows = operator(reference.gather_rows, cpu.gather_rows, _gather_rows)
sort_rows = operator(reference.sort_rows, cpu.sort_rows, torch.empty_like)
