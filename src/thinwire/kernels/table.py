"""The block table: where each block lies. Kernels take it as one int64 tensor `[blocks, 4]`."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["CODE", "LENGTH", "POSITION", "START", "block_table"]

START, LENGTH, CODE, POSITION = range(4)
"""Columns: first value in the message's flat values; values in the block; first code in the group's codes;
first value's position within its segment (what the random numbers count)."""


def block_table(segments: list[tuple[int, int]], block_size: int | None) -> tuple[Tensor, Tensor]:
    """Cut segments into blocks; the last block of a segment may be shorter, and no block crosses a segment's border.

    Args:
        segments: (start in the flat values, number of values) of each segment.
        block_size: values in a full block; None: a segment is one block.
    Returns:
        The table, int64 `[blocks, 4]`, and the segment that each block belongs to, int64 `[blocks]`.
    """
    starts, owners = [torch.empty(0, dtype=torch.int64)], [torch.empty(0, dtype=torch.int64)]
    lengths, positions = list(starts), list(starts)
    for index, (start, count) in enumerate(segments):
        size = block_size or max(count, 1)
        position = torch.arange(0, count, size)
        positions.append(position)
        starts.append(position + start)
        lengths.append(torch.clamp(count - position, max=size))
        owners.append(torch.full_like(position, index))
    length = torch.cat(lengths)
    code = torch.cumsum(length, 0) - length
    return torch.stack([torch.cat(starts), length, code, torch.cat(positions)], dim=1), torch.cat(owners)
