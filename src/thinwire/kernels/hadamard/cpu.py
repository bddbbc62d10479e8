"""The randomized Hadamard transform on the CPU: a block is normalized and rotated while it is in the first cache."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

from thinwire.kernels.hadamard.reference import LANES, SHORTEST, coordinates, root
from thinwire.kernels.hadamard.vectors import add_products, cross2, cross4, finish32, finish64, flip_run
from thinwire.kernels.machine import load, store
from thinwire.kernels.pool import for_ranges
from thinwire.kernels.random.cpu import mix, split
from thinwire.kernels.table import LENGTH, POSITION, START

__all__ = [
    "POWERS", "blocks_worth_a_thread", "fold", "rotate", "rotate_back", "rotate_blocks", "rotate_blocks_back", "shapes",
]  # fmt: skip

_RUN = 256
_MAGNITUDE = np.uint32(0x7FFFFFFF)
_SMALLEST = 1 << 15  # values worth a thread


@njit(nogil=True, cache=True, error_model="numpy")
def fold(lanes):
    """The sum of 32 lanes, in halves; they are overwritten."""
    half = LANES // 2
    while half:
        for i in range(half):
            lanes[i] += lanes[i + half]
        half //= 2
    return lanes[0]


@njit(nogil=True, cache=True, error_model="numpy")
def _transform(x, count, factor):
    """The transform of x[:count], count a power of two from 32 on, after a product with factor."""
    _scale(x, count, factor)
    half = count // 2
    while half >= 128:
        for group in range(0, count, 2 * half):
            for j in range(0, half // 2, 8):
                cross4(x, group + j, half // 2)
        half //= 4
    if half == 64:
        for group in range(0, count, 128):
            for j in range(0, 64, 8):
                cross2(x, group + j, 64)
        half = 32
    if half == 32:
        for j in range(0, count, 64):
            finish64(x, j)
    else:
        finish32(x, 0)


@njit(nogil=True, cache=True, error_model="numpy")
def _hashes(counter, low, high, hashes):
    """Apart from _flip, or LLVM would multiply 64 bits."""
    for j in range(8):
        hashes[j] = mix(np.uint32(counter + np.uint32(j)), low, high)


@njit(nogil=True, cache=True, error_model="numpy")
def _flip(words, count, position, key, turn, hashes):
    """Turn the signs of `count` float32, as words; of up to 255 beyond them, too."""
    for run in range(0, count, _RUN):
        base, low, high = split((((position + run) >> 5) << 4) + 8 * turn, key)
        _hashes(base, low, high, hashes)
        flip_run(words, run, hashes)


@njit(nogil=True, cache=True, error_model="numpy")
def _square_sum(x, count, lanes):
    """The sum of squares by lanes; x is zero from count on to a multiple of 32."""
    lanes[:] = 0
    for step in range(0, count, LANES):
        add_products(x, step, x, step, lanes)
    return fold(lanes)


@njit(nogil=True, cache=True, error_model="numpy")
def _gather(words, start, length, count, x):
    """Copy a block, as words, and fill it up with zeros. Returns the exponent field of its largest magnitude."""
    largest = np.uint32(0)
    for j in range(length):
        word = load(words, start + j)
        store(x, j, word)
        largest = max(largest, np.uint32(word & _MAGNITUDE))
    for j in range(length, (count + LANES - 1) // LANES * LANES):
        store(x, j, np.uint32(0))
    return np.int64(largest >> np.uint32(23))


@njit(nogil=True, cache=True, error_model="numpy")
def _scale(x, count, factor):
    for j in range(count):
        store(x, j, load(x, j) * factor)


@njit(nogil=True, cache=True, error_model="numpy")
def _copy(source, start, count, x, to):
    for j in range(count):
        store(x, to + j, load(source, start + j))


@njit(nogil=True, cache=True, error_model="numpy")
def rotate_blocks(words, table, keys, rounds, powers, counts, roots, first, base, rotated, sizes, begin, end):
    """`powers[k]` is 2^(k - 127); `rotated` begins with coordinate `base`."""
    room = counts[begin:end].max() + _RUN
    x, lanes, hashes = np.empty(room, np.float32), np.empty(LANES, np.float32), np.empty(8, np.uint32)
    bits = x.view(np.uint32)
    for b in range(begin, end):
        count, factor = counts[b], roots[b]
        field = _gather(words, table[b, START], table[b, LENGTH], count, bits)
        exponent = min(max(field, 1), 253)
        _scale(x, count, powers[254 - exponent])
        size = np.sqrt(_square_sum(x, count, lanes) / np.float32(count))
        sizes[b] = np.float32(np.nan) if field >= 254 else np.float32(size * powers[exponent])
        if sizes[b] == 0 or field >= 254:
            x[:count] = 0
        else:
            _scale(x, count, np.float32(1) / size)
            for turn in range(rounds):
                _flip(bits, count, table[b, POSITION], keys[b], turn, hashes)
                _transform(x, count, factor)
        _copy(x, 0, count, rotated, first[b] - base)


@njit(nogil=True, cache=True, error_model="numpy")
def _put(x, scale, start, length, total, add):
    if add:
        for j in range(length):
            store(total, start + j, load(total, start + j) + np.float32(load(x, j) * scale))
    else:
        for j in range(length):
            store(total, start + j, np.float32(load(x, j) * scale))


@njit(nogil=True, cache=True, error_model="numpy")
def rotate_blocks_back(rotated, base, scales, table, keys, rounds, counts, roots, first, total, add, begin, end):
    """`rotated` begins with coordinate `base`."""
    room = counts[begin:end].max() + _RUN
    x, hashes = np.empty(room, np.float32), np.empty(8, np.uint32)
    bits = x.view(np.uint32)
    for b in range(begin, end):
        count, factor = counts[b], roots[b]
        if scales[b] == 0:
            x[:count] = 0
        else:
            _copy(rotated, first[b] - base, count, x, 0)
            for turn in range(rounds - 1, -1, -1):
                _transform(x, count, factor)
                _flip(bits, count, table[b, POSITION], keys[b], turn, hashes)
        _put(x, np.float32(0) if scales[b] == 0 else scales[b], table[b, START], table[b, LENGTH], total, add)


_ROOTS = np.array([root(1 << exponent) for exponent in range(63)], np.float32)
POWERS = np.ldexp(np.float32(1), np.arange(-127, 128)).astype(np.float32)


def shapes(table: Tensor) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """By block: its coordinates, their root, and the first of them."""
    counts = coordinates(table).numpy()
    return counts, _ROOTS[np.log2(counts).astype(np.int64)], np.cumsum(counts) - counts


def rotate(values: Tensor, table: Tensor, keys: Tensor, rounds: int) -> tuple[Tensor, Tensor]:
    words, cuts, streams = values.contiguous().numpy().view(np.uint32), table.numpy(), keys.numpy()
    counts, roots, first = shapes(table)
    rotated, sizes = np.empty(int(counts.sum()), np.float32), np.empty(len(cuts), np.float32)
    run = lambda a, b: rotate_blocks(  # noqa: E731
        words, cuts, streams, rounds, POWERS, counts, roots, first, 0, rotated, sizes, a, b
    )
    for_ranges(len(cuts), blocks_worth_a_thread(counts), run)
    return torch.from_numpy(rotated), torch.from_numpy(sizes)


def blocks_worth_a_thread(counts: np.ndarray) -> int:
    return max(1, _SMALLEST * len(counts) // max(int(counts.sum()), SHORTEST))


def rotate_back(
    rotated: Tensor, scales: Tensor, table: Tensor, keys: Tensor, rounds: int, total: Tensor, add: bool
) -> None:
    source, factors, cuts, streams = rotated.numpy(), scales.numpy(), table.numpy(), keys.numpy()
    counts, roots, first = shapes(table)
    out = total.numpy()
    run = lambda a, b: rotate_blocks_back(  # noqa: E731
        source, 0, factors, cuts, streams, rounds, counts, roots, first, out, add, a, b
    )
    for_ranges(len(cuts), blocks_worth_a_thread(counts), run)
