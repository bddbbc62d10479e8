"""The random bits as a scalar inline for other Numba kernels: LLVM vectorizes the loop around it."""

import numpy as np
from numba import njit

__all__ = ["mix"]

# Module constants are compiled in; every step is cast back, because uint32 op uint32 is uint64 in Numba.
_M1, _M2, _M3 = np.uint32(0x21F0AAAD), np.uint32(0xD35A2D97), np.uint32(0x735A2D97)
_S15, _S16, _S17 = np.uint32(15), np.uint32(16), np.uint32(17)


@njit(inline="always")
def mix(counter, low, high):
    """32 hash bits of a uint32 counter under a uint32 key pair; `high` already holds the counter's upper word."""
    h = np.uint32(counter ^ low)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> _S16)) * _M1)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> _S15)) + high)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> _S17)) * _M2)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> _S15)) * _M3)
    return np.uint32(h ^ np.uint32(h >> _S15))
