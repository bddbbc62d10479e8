"""float32 to bfloat16 by stochastic rounding: unbiased, so that what is kept over many steps does not drift."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import operator
from thinwire.kernels.narrow import cpu, reference

__all__ = ["round_to_bfloat16"]


def _round_to_bfloat16(values: Tensor, key: int) -> Tensor:
    return values.new_empty(values.shape, dtype=torch.bfloat16)


round_to_bfloat16 = operator(reference.round_to_bfloat16, cpu.round_to_bfloat16, _round_to_bfloat16)
