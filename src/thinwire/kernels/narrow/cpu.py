"""Stochastic rounding to bfloat16 on the CPU: a run of 128 hashes serves 256 values, as kernels/random says."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.narrow.reference import LARGEST
from thinwire.kernels.pool import for_ranges
from thinwire.kernels.random.cpu import mix, split

__all__ = ["round_to_bfloat16"]

_RUN = 256
_HALF = np.uint32(0xFFFF)
_MAGNITUDE, _SIGN = np.uint32(0x7FFFFFFF), np.uint32(0x8000)
_LARGEST, _16 = np.uint32(LARGEST), np.uint32(16)
_SMALLEST = 64  # runs worth a thread


@njit(inline="always")
def _rounded(word, bits):
    magnitude = np.uint32(np.uint32(np.uint32(word & _MAGNITUDE) + bits) >> _16)
    return np.uint16(min(magnitude, _LARGEST) | np.uint32(np.uint32(word >> _16) & _SIGN))


@njit(nogil=True, cache=True, error_model="numpy")
def _round_run(words, base, low, high, out):
    """Up to 256 values of one run; apart from the loop over runs, or LLVM would multiply 64 bits."""
    for j in range(min(len(words), _RUN // 2)):
        out[j] = _rounded(words[j], np.uint32(mix(np.uint32(base + np.uint32(j)), low, high) & _HALF))
    for j in range(len(words) - _RUN // 2):
        h = mix(np.uint32(base + np.uint32(j)), low, high)
        out[_RUN // 2 + j] = _rounded(words[_RUN // 2 + j], np.uint32(h >> _16))


@njit(nogil=True, cache=True, error_model="numpy")
def _round_runs(words, key, first, stop, out):
    for run in range(first, stop):
        base, low, high = split(run * (_RUN // 2), key)
        part = slice(run * _RUN, min((run + 1) * _RUN, len(words)))
        _round_run(words[part], base, low, high, out[part])


def round_to_bfloat16(values: Tensor, key: int) -> Tensor:
    words = values.contiguous().numpy().view(np.uint32)
    out = np.empty(len(words), dtype=np.uint16)
    bits = np.uint64(key % (1 << 64))
    for_ranges(-(-len(words) // _RUN), _SMALLEST, lambda a, b: _round_runs(words, bits, a, b, out))
    return torch.from_numpy(out.view(np.int16)).view(torch.bfloat16)
