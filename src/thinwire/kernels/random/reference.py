"""The specification of the random bits, in int64 tensors."""

from torch import Tensor

__all__ = ["mix", "random_bits"]

_MASK = 0xFFFFFFFF


def mix(counter: Tensor, keys: Tensor) -> Tensor:
    """32 bits from counters (up to 2^62) and 64-bit keys, both int64; kernels/random/cpu.py does the same in uint32."""
    low, high = keys & _MASK, (keys >> 32) & _MASK
    high = (high + (counter >> 32) * 0x9E3779B9) & _MASK
    h = (counter ^ low) & _MASK
    h = ((h ^ (h >> 16)) * 0x21F0AAAD) & _MASK
    h = ((h ^ (h >> 15)) + high) & _MASK
    h = ((h ^ (h >> 17)) * 0xD35A2D97) & _MASK
    h = ((h ^ (h >> 15)) * 0x735A2D97) & _MASK
    return h ^ (h >> 15)


def random_bits(positions: Tensor, keys: Tensor, shift: int = 0) -> Tensor:
    """Draw 16 bits for each position.

    Args:
        positions: int64, any shape, non-negative.
        keys: int64 (the bits of a uint64 stream key), broadcastable to positions.
        shift: is added, modulo 2^16.
    Returns:
        int64 in [0, 65536), the shape of positions.
    """
    counter = ((positions >> 8) << 7) | (positions & 127)
    upper_half = (positions >> 7) & 1
    return ((mix(counter, keys) >> (16 * upper_half)) + shift) & 0xFFFF
