"""The specification of the randomized Hadamard transform, in float32 tensors, in a stated order of operations."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.kernels.random.reference import mix
from thinwire.kernels.table import LENGTH, POSITION, START

__all__ = ["LANES", "SHORTEST", "coordinates", "lane_sum", "root", "rotate", "rotate_back"]

SHORTEST = 32  # coordinates: fewer are not nearly normal
LANES = 32


def coordinates(table: Tensor) -> Tensor:
    """How many coordinates each block is rotated to: the next power of two, at least 32; int64 `[blocks]`."""
    below = table[:, LENGTH].clamp(min=SHORTEST) - 1
    for shift in (1, 2, 4, 8, 16, 32):  # set all bits under the first
        below = below | (below >> shift)
    return below + 1


def root(count: int) -> float:
    """count^(-1/2), what a transform of `count` values multiplies by (as float32)."""
    return float(torch.tensor(count, dtype=torch.float64).rsqrt().to(torch.float32))


def lane_sum(x: Tensor) -> Tensor:
    """Sum rows, float32 `[rows, count]`: value j joins lane j % 32 in order; then lanes fold in halves."""
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % LANES)).reshape(len(x), -1, LANES)
    lanes = torch.zeros_like(padded[:, 0])
    for step in range(padded.shape[1]):
        lanes = lanes + padded[:, step]
    half = LANES // 2
    while half:
        lanes = lanes[:, :half] + lanes[:, half : 2 * half]
        half //= 2
    return lanes[:, 0]


def _transform(x: Tensor) -> Tensor:
    """The orthonormal Walsh-Hadamard transform of rows of 2^k values: first times 2^(-k/2), then distances falling."""
    rows, count = x.shape
    x, half = x * root(count), count // 2
    while half:
        pairs = x.reshape(rows, -1, 2, half)
        x = torch.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], dim=2).reshape(rows, count)
        half //= 2
    return x


def _signs(position: Tensor, keys: Tensor, count: int, turn: int) -> Tensor:
    """-1 or 1 for the coordinates of blocks that begin at these positions, float32 `[blocks, count]`.

    Eight hashes in each round serve 256 coordinates: coordinate j takes bit (j / 8) % 32 of hash j % 8.
    """
    j = torch.arange(count, device=position.device)
    run = (position[:, None] >> 5) + (j >> 8 << 3)
    hashes = mix((run << 4) + 8 * turn + (j & 7), keys[:, None])
    return (1 - 2 * ((hashes >> ((j >> 3) & 31)) & 1)).to(torch.float32)


def _blocks_by_length(table: Tensor) -> list[tuple[int, Tensor]]:
    return [(int(n), torch.nonzero(table[:, LENGTH] == n).flatten()) for n in table[:, LENGTH].unique()]


def rotate(values: Tensor, table: Tensor, keys: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    """Bring each block to unit mean square and rotate it: random signs, then the transform, `rounds` times.

    A block's values are multiplied by 2^-e, with 2^e <= max |x| < 2^(e+1) (e at least -126), then by 1 / r, with
    r = sqrt(sum of their squares / coordinates), the sum by lanes; all in float32. After one round, coordinates of a
    block with few values other than zero take few magnitudes; after two, they are nearly normal for every block.

    Args:
        values: float32 `[values]`, a message's flat values.
        table: block table, int64 `[blocks, 4]`; positions are multiples of 32.
        keys: int64 `[blocks]`, the stream key of each block's segment.
        rounds: 1 or 2.
    Returns:
        The coordinates of all blocks in order, float32; see `coordinates`: a shorter block is filled up
        with zeros.
        The root of each block's mean square, r 2^e, float32 `[blocks]`. 0 for a block of zeros, NaN for one with a
        non-finite value or a magnitude of 2^127 and more: coordinates are 0 there.
    """
    counts = coordinates(table)
    first = torch.cumsum(counts, 0) - counts
    rotated = torch.zeros(int(counts.sum()), dtype=torch.float32, device=values.device)
    size = torch.zeros(len(table), dtype=torch.float32, device=values.device)
    for length, which in _blocks_by_length(table):
        count = int(counts[which[0]])
        x = values[table[which, START][:, None] + torch.arange(length, device=values.device)]
        x, size[which] = _normalized(torch.nn.functional.pad(x, (0, count - length)))
        for turn in range(rounds):
            x = _transform(x * _signs(table[which, POSITION], keys[which], count, turn))
        dead = (size[which] == 0) | size[which].isnan()
        x = torch.where(dead[:, None], 0.0, x)
        rotated[first[which][:, None] + torch.arange(count, device=values.device)] = x
    return rotated, size


def _normalized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Rows of unit mean square (anything where there is none), and the root of the mean square that they had."""
    bits = (x.contiguous().view(torch.int32) & 0x7FFFFFFF).amax(1) >> 23
    exponent = (bits - 127).clamp(-126, 126)
    y = x * ((127 - exponent) << 23).view(torch.float32)[:, None]
    mean = lane_sum(y * y) / float(x.shape[1])
    size = mean.to(torch.float64).sqrt().to(torch.float32)  # torch's float32 root is not always the nearest
    found = size * ((127 + exponent) << 23).view(torch.float32)
    return y * (1.0 / size)[:, None], torch.where(bits >= 254, float("nan"), found)


def rotate_back(
    rotated: Tensor, scales: Tensor, table: Tensor, keys: Tensor, rounds: int, total: Tensor, add: bool
) -> None:
    """The inverse of rotate's rotation, times each block's scale; write or add it to the values' places in `total`.

    Args:
        rotated: float32, the coordinates of all blocks in order.
        scales: float32 `[blocks]`; with 0 a block is exactly 0, with NaN it is NaN.
        table, keys, rounds: as for rotate.
        total: float32 or float64 `[values]`.
        add: add to total instead of overwriting.
    """
    counts = coordinates(table)
    first = torch.cumsum(counts, 0) - counts
    for length, which in _blocks_by_length(table):
        count = int(counts[which[0]])
        x = rotated[first[which][:, None] + torch.arange(count, device=total.device)]
        for turn in reversed(range(rounds)):
            x = _transform(x) * _signs(table[which, POSITION], keys[which], count, turn)
        x = (x * scales[which][:, None])[:, :length].to(total.dtype)
        x = torch.where(scales[which][:, None] == 0, 0.0, x)
        place = table[which, START][:, None] + torch.arange(length, device=total.device)
        total[place] = total[place] + x if add else x
