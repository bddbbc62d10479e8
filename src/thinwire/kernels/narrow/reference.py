"""The specification of stochastic rounding to bfloat16, in int64 tensors."""

import torch
from torch import Tensor

from thinwire.kernels.random.reference import random_bits

__all__ = ["LARGEST", "round_to_bfloat16"]

LARGEST = 0x7F7F  # the bits of bfloat16's largest finite number


def round_to_bfloat16(values: Tensor, key: int) -> Tensor:
    """Round to one of the two neighbours in bfloat16, upwards in magnitude with probability (|x| - lo) / (hi - lo).

    Args:
        values: finite float32 `[count]`.
        key: a stream key, the bits of a uint64 as a signed integer; a value's index is its position.
    Returns:
        bfloat16 `[count]`, finite.
    Error: the expectation is the value, except beyond bfloat16's largest number, which nothing exceeds.
    """
    positions = torch.arange(values.numel(), device=values.device)
    bits = values.view(torch.int32).to(torch.int64)
    magnitude = ((bits & 0x7FFFFFFF) + random_bits(positions, positions.new_tensor(key))) >> 16
    rounded = magnitude.clamp(max=LARGEST) | (bits >> 16 & 0x8000)
    return (rounded - (rounded >> 15 << 16)).to(torch.int16).view(torch.bfloat16)
