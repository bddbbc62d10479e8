"""The checksum on the CPU: integer sums, so that ranges add up in any order."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.checksum.reference import OFFSET, STRIDE
from thinwire.kernels.pool import for_ranges

__all__ = ["checksum"]

_OFFSET, _STRIDE = np.uint64(OFFSET % (1 << 64)), np.uint64(STRIDE)


@njit(nogil=True, cache=True, error_model="numpy")
def _sum(words, first, stop):
    total = np.uint64(0)
    for i in range(first, stop):
        total += np.uint64(words[i]) * (_OFFSET + np.uint64(i) * _STRIDE)
    return total


def checksum(frame: Tensor) -> Tensor:
    words = frame.numpy().view("<u4")
    sums: list[int] = []
    for_ranges(len(words), 1 << 16, lambda a, b: sums.append(int(_sum(words, a, b))))
    return torch.tensor(np.uint64(sum(sums) % (1 << 64)).astype(np.int64))
