"""The randomized Hadamard transform of blocks: orthonormal, of any length; coordinates are nearly normal."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import operator
from thinwire.kernels.hadamard import cpu, reference
from thinwire.kernels.hadamard.reference import coordinates

__all__ = ["coordinates", "rotate", "rotate_back"]


def _rotate(values: Tensor, table: Tensor, keys: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    return values.new_empty(torch.library.get_ctx().new_dynamic_size()), values.new_empty(table.shape[0])


def _rotate_back(
    rotated: Tensor, scales: Tensor, table: Tensor, keys: Tensor, rounds: int, total: Tensor, add: bool
) -> None:
    return None


rotate = operator(reference.rotate, cpu.rotate, _rotate)
rotate_back = operator(reference.rotate_back, cpu.rotate_back, _rotate_back, mutates=("total",))
