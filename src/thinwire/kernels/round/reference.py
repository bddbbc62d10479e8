"""From values to packed codes under given levels, and back."""

import torch
from torch import Tensor

from thinwire.kernels.pack.reference import pack, unpack
from thinwire.kernels.random.reference import random_bits
from thinwire.kernels.table import CODE, LENGTH, POSITION, START

__all__ = ["dequantize", "quantize"]


def quantize(values: Tensor, levels: Tensor, table: Tensor, keys: Tensor, nearest: bool, shift: int = 0) -> Tensor:
    """Round each value of a group's blocks to one of its block's levels, in float32 without any division.

    With lo <= x the largest of b_0 .. b_{s-2} (b_0 if none is) and hi the next level:
    stochastic: up when x - lo > u (hi - lo), u = (h + 1/2) / 2^16 for 16 random bits h of the value's position; so a
    value on a level stays, a value outside the levels clips, and the probability is right to 2^-17
    (where hi - lo is at least 2^-109; below that u (hi - lo) itself is rounded to a multiple of 2^-149).
    nearest: the code is the number of midpoints b_k / 2 + b_{k+1} / 2 below x; ties go down.
    NaN levels (a non-finite block) give code 0.

    Args:
        values: float32 `[values]`, a message's flat values.
        levels: float32 `[blocks, s]`, ascending, 2 <= s <= 256, the span finite.
        table: block table, int64 `[blocks, 4]`.
        keys: int64 `[blocks]`, the stream key of each block's segment.
        nearest: round to the nearest level instead of stochastically.
        shift: of the random bits, see kernels/random.
    Returns:
        The codes packed (kernels/pack), uint8 `[packed_bytes(sum of the block lengths, s)]`.
    """
    block = torch.repeat_interleave(torch.arange(len(table), device=table.device), table[:, LENGTH])
    within = torch.arange(len(block), device=table.device) - table[block, CODE]
    x = values[table[block, START] + within]
    if nearest:
        midpoints = 0.5 * levels[:, :-1] + 0.5 * levels[:, 1:]
        codes = torch.zeros_like(block)
        for k in range(midpoints.shape[1]):
            codes += x > midpoints[block, k]
        return pack(codes.to(torch.uint8), levels.shape[1])
    codes = torch.zeros_like(block)
    for k in range(1, levels.shape[1] - 1):
        codes += x >= levels[block, k]
    low, high = levels[block, codes], levels[block, codes + 1]
    bits = random_bits(table[block, POSITION] + within, keys[block], shift)
    u = (bits.to(torch.float32) + 0.5) * 2.0**-16
    codes += (x - low) > u * (high - low)
    return pack(codes.to(torch.uint8), levels.shape[1])


def dequantize(packed: Tensor, levels: Tensor, table: Tensor, total: Tensor, add: bool) -> None:
    """Unpack codes and write (or add) each one's level to its value's place in `total`, in place.

    Args:
        packed: as quantize returns it, uint8.
        levels: float32 `[blocks, s]`.
        table: block table, int64 `[blocks, 4]`.
        total: float32 or float64 `[values]`.
        add: add to total instead of overwriting.
    """
    block = torch.repeat_interleave(torch.arange(len(table), device=table.device), table[:, LENGTH])
    within = torch.arange(len(block), device=table.device) - table[block, CODE]
    place = table[block, START] + within
    codes = unpack(packed, levels.shape[1], len(block))
    decoded = levels[block, codes.to(torch.int64)].to(total.dtype)
    total[place] = total[place] + decoded if add else decoded
