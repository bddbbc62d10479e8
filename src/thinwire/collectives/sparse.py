"""The sum of sparse tensors over ranks: each rank's indices and values go to all others."""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import pad

from thinwire.collectives.transport import Link

__all__ = ["sparse_sum"]


def sparse_sum(link: Link, mine: Tensor) -> tuple[Tensor, int, int]:
    """Add sparse tensors in rank order.

    Ranks hold different counts of values: these are gathered first, then everybody's indices and values, each padded to
    the longest.

    Args:
        mine: COO, `sparse_dim` indices (int64) and a row of values an entry; of one shape and dtype on all ranks.

    Returns:
        The sum, coalesced, equal to the bit on all ranks; the bytes that this rank sent, as many as it received; and
        those that it would have sent of float32 values.
    """
    mine = mine.coalesce()
    indices, values = mine.indices().contiguous(), mine.values().contiguous()
    octets = torch.cat([_octets(indices), _octets(values)])
    count = torch.tensor([indices.shape[1]], device=mine.device)
    counts = link.gather(_octets(count)).view(torch.int64).flatten().tolist()
    places, entries = max(counts) * 8 * mine.sparse_dim(), max(counts) * values.shape[1:].numel() * values.itemsize
    length = places + entries
    rows = link.gather(pad(octets, (0, length - octets.numel()))) if length else octets.expand(len(counts), 0)
    parts = [_restored(row, count, mine) for row, count in zip(rows, counts)]
    total = functools.reduce(torch.add, parts).coalesce()
    moved, in_fp32 = 8 + length, 8 + places + entries * 32 // torch.finfo(values.dtype).bits
    return total, (link.world_size - 1) * moved, (link.world_size - 1) * in_fp32


def _octets(values: Tensor) -> Tensor:
    return values.reshape(-1).view(torch.uint8)


def _restored(row: Tensor, count: int, like: Tensor) -> Tensor:
    """The coalesced tensor of `count` entries that `row` begins with, of the kind of `like`."""
    shape = like.values().shape[1:]
    at = 8 * like.sparse_dim() * count
    indices = row[:at].clone().view(torch.int64).view(like.sparse_dim(), count)
    end = at + count * shape.numel() * like.dtype.itemsize
    values = row[at:end].clone().view(like.dtype).view(count, *shape)
    return torch.sparse_coo_tensor(indices, values, like.shape, is_coalesced=True)
