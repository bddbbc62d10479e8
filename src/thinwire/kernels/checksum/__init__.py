"""The checksum of a frame."""

import torch
from torch import Tensor

from thinwire.kernels.checksum import cpu, reference
from thinwire.kernels.checksum.reference import weight
from thinwire.kernels.dispatch import operator

__all__ = ["checksum", "weight"]


def _checksum(frame: Tensor) -> Tensor:
    return frame.new_empty((), dtype=torch.int64)


checksum = operator(reference.checksum, cpu.checksum, _checksum)
