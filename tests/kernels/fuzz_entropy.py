"""Hostile words for the entropy decoder: whatever they are, both backends end, alike.

    python -m tests.kernels.fuzz_entropy [--seconds 60] [--seed 0]

With NUMBA_BOUNDSCHECK=1 (and a NUMBA_CACHE_DIR of its own) the kernels also check every access to memory.
"""

from __future__ import annotations

import argparse
import time
from typing import NamedTuple

import numpy as np
import torch
from tests.kernels.coding import book_tables, small_tables
from tests.kernels.data import both

from thinwire.kernels.entropy import decode_codes, encode_codes
from thinwire.kernels.entropy.reference import ROOM


class Words(NamedTuple):
    """What the decoder takes."""

    words: torch.Tensor
    starts: torch.Tensor
    phases: torch.Tensor
    counts: torch.Tensor
    tables: list[torch.Tensor]
    log_phases: int
    chunk_runs: int


def _message(rng: np.random.Generator) -> Words:
    """A true one of two chunks."""
    phased = rng.random() < 0.8
    small = ([1, 2, 3, 2000], [5, 2000], [7, 2000], [1, 2000])
    tables = book_tables(rng.integers(4), rng.integers(4)) if phased else small_tables(*small)
    counts = torch.from_numpy(rng.integers(1, 257, 4))
    classes = torch.from_numpy(rng.integers(0, 60 if phased else 4, 4, dtype=np.uint8))
    n = int(counts.sum())
    phases = torch.from_numpy(rng.integers(0, 32 if phased else 1, n, dtype=np.uint8))
    codes = torch.from_numpy(np.rint(rng.standard_normal(n) * 3).astype(np.int32))
    args = (codes, phases, counts, classes, tables, 5 * phased, 2, 3 * ROOM)
    words, lengths = encode_codes(*args)
    words = torch.cat([row[3 * ROOM - size :] for row, size in zip(words, lengths.tolist())])
    return Words(words, torch.tensor([0, *lengths.cumsum(0)]), phases, counts, tables, 5 * phased, 2)


def attack(seed: int) -> int:
    """Change a message in some way and decode it on both backends: how many of its chunks passed.

    Raises:
        AssertionError: the backends disagree.
    """
    rng = np.random.default_rng(seed)
    message = _message(rng)
    words, starts = message.words.clone(), message.starts.clone()
    kind = seed % 6
    if kind == 0:
        words[rng.integers(len(words))] ^= 1 << int(rng.integers(15))
    elif kind == 1:
        words = torch.from_numpy(rng.integers(-(1 << 15), 1 << 15, len(words)).astype(np.int16))
    elif kind == 2:
        words[:] = int(rng.choice([0, -1, 1, 4095, 1 << 14]))
    elif kind == 3:
        starts = torch.from_numpy(np.sort(rng.integers(0, len(words) + 1, 3)))
    elif kind == 4:
        at = int(rng.integers(len(words)))
        words = torch.cat([words[at:], words[:at]])
    else:
        message = message._replace(tables=book_tables(rng.integers(4), rng.integers(4)), log_phases=5)
    results = both(decode_codes, *message._replace(words=words, starts=starts))
    good = [result[2] for result in results]
    assert torch.equal(*good), f"seed {seed}: {good}"
    return int(good[0].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    seed, passed, until = args.seed, 0, time.monotonic() + args.seconds
    while time.monotonic() < until:
        passed += attack(seed)
        seed += 1
    print(f"{seed - args.seed} attacks on 2 chunks each; {passed} chunks were untouched or passed all the same")


if __name__ == "__main__":
    main()
