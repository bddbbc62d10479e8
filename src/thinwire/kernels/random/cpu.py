"""The random bits as scalar inlines for other Numba kernels: LLVM vectorizes the loop around it."""

import numpy as np
from numba import njit

__all__ = ["mix", "split"]

# Module constants are compiled in; every step is cast back, because uint32 op uint32 is uint64 in Numba.
_M1, _M2, _M3 = np.uint32(0x21F0AAAD), np.uint32(0xD35A2D97), np.uint32(0x735A2D97)
_GOLDEN, _LOWER, _32 = np.uint64(0x9E3779B9), np.uint64(0xFFFFFFFF), np.uint64(32)
_S15, _S16, _S17 = np.uint32(15), np.uint32(16), np.uint32(17)


@njit(inline="always")
def split(counter, key):
    """What `mix` takes: a counter, at least 0, whose followers share its upper word, under a stream key."""
    place, bits = np.uint64(counter), np.uint64(key)
    high = np.uint32((bits >> _32) + (place >> _32) * _GOLDEN)
    return np.uint32(place & _LOWER), np.uint32(bits & _LOWER), high


@njit(inline="always")
def mix(counter, low, high):
    """32 hash bits of a uint32 counter under a uint32 key pair; `high` already holds the counter's upper word."""
    h = np.uint32(counter ^ low)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> _S16)) * _M1)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> _S15)) + high)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> _S17)) * _M2)
    h = np.uint32(np.uint32(h ^ np.uint32(h >> _S15)) * _M3)
    return np.uint32(h ^ np.uint32(h >> _S15))
