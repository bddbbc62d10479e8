"""Codes packed at log2(s) bits, within 2%. The layout of the digits lives here and nowhere else."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import operator
from thinwire.kernels.pack import cpu, reference
from thinwire.kernels.pack.digits import Digits, digit_layout, packed_bytes

__all__ = ["Digits", "digit_layout", "pack", "packed_bytes", "unpack"]


def _pack(codes: Tensor, levels: int) -> Tensor:
    return codes.new_empty(packed_bytes(codes.shape[0], levels))


def _unpack(packed: Tensor, levels: int, values: int) -> Tensor:
    return packed.new_empty(values, dtype=torch.uint8)


pack = operator(reference.pack, cpu.pack, _pack)
unpack = operator(reference.unpack, cpu.unpack, _unpack)
