"""From a message's key to one 64-bit stream key for each segment."""

from __future__ import annotations

import numpy as np

from thinwire.types import Key

__all__ = ["stream_keys"]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix64(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finalizer (Steele, Lea, Flood 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def stream_keys(key: Key, streams: np.ndarray) -> np.ndarray:
    """Absorb seed, step, rank, stratum and each stream into one 64-bit word.

    Args:
        key: the message's key.
        streams: uint64 `[segments]`.
    Returns:
        uint64 `[segments]`.
    """
    state = np.zeros(1, dtype=np.uint64)
    for part in (key.seed, key.step, key.rank, key.stratum):
        state = _mix64((state ^ np.uint64(part)) + _GOLDEN)
    return _mix64((state ^ streams) + _GOLDEN)
