"""Hostile rows that every kernel must take: sizes at block borders, ties, zeros, constants, wild ranges."""

import numpy as np
import torch

from thinwire.kernels import backend, block_table

BLOCK_SIZES = (2, 3, 64, 100, 2048)


def hostile_values(count: int, seed: int) -> torch.Tensor:
    """`count` float32 values: one of a dozen unpleasant distributions, chosen by seed."""
    rng = np.random.default_rng(seed)
    normal = rng.standard_normal(count)
    draws = [
        normal,
        np.zeros(count),
        np.full(count, 3.25),
        rng.integers(-2, 3, count),
        np.exp(5 * normal) * rng.choice([-1, 1], count),
        np.tan(np.pi * (rng.random(count) - 0.5)),
        normal * 1e-42,
        normal * 1e35,
        1000 + normal,
        np.where(rng.random(count) < 0.9, 0.0, normal),
        np.where(np.arange(count) == count // 2, 1e6, normal),
        -np.abs(normal) * 0.0,
    ]
    return torch.from_numpy(draws[seed % len(draws)].astype(np.float32))


def cut(counts: list[int], block_size: int) -> torch.Tensor:
    """The block table of back-to-back segments."""
    starts = np.concatenate([[0], np.cumsum(counts)])
    return block_table(list(zip(starts.tolist(), counts)), block_size)[0]


def both(function, *args):
    """What a function returns on the reference backend and on the CPU backend."""
    results = []
    for name in ("reference", "cpu"):
        with backend(name):
            results.append(function(*args))
    return results
