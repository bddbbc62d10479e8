"""How much less error the mean of n ranks has with correlate=True: n batches' gradients of one network, n = 2, 8, 32.

    python -m benchmarks.correlate RUN [RUN ...] [--methods orq-3,orq-9,...]

RUN is a folder of `thinwire train`: its checkpoint's weights and the examples; each rank has a batch of its own.
Prints |mean of frames - mean of gradients|^2 without correlation over that with it, means over seeds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.batches import gradients
from thinwire.schemes import Scheme, from_spec
from thinwire.types import Key
from thinwire.wire import accumulate, compose, encode

RANKS = (2, 8, 32)
SEEDS = 3
METHODS = "terngrad-noclip,orq-3,qsgd-5,minmax-4,linear-9,orq-9,optimal-9,dithered-2,rotated-2"


def squared_error(xs: Sequence[Tensor], scheme: Scheme, seed: int, correlate: bool) -> float:
    """Of the mean of the ranks' frames."""
    total, true = torch.zeros(len(xs[0]), dtype=torch.float64), torch.stack(list(xs)).double().mean(0)
    for rank, x in enumerate(xs):
        key, message = Key(seed=seed, rank=rank), compose([x], scheme)[0]
        frame = encode(message, key.stratified(rank, len(xs)) if correlate else key)
        accumulate(frame, message.layout, total)
    return float((total / len(xs) - true).square().sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--methods", default=METHODS)
    args = parser.parse_args()
    found = {}
    for folder in args.runs:
        ranks = gradients(folder, RANKS[-1])
        found[folder.name] = [torch.cat([gradient.flatten() for gradient in rank.values()]) for rank in ranks]
    found["equal"] = [next(iter(found.values()))[0]] * RANKS[-1]
    print("| Method |", " | ".join(f"{name}, n = {n}" for name in found for n in RANKS), "|")
    print("| --- |", " | ".join("--:" for _ in range(len(found) * len(RANKS))), "|")
    for method in args.methods.split(","):
        cells = []
        for xs in found.values():
            for n in RANKS:
                without, with_ = (
                    statistics.fmean(squared_error(xs[:n], from_spec(method), seed, correlate) for seed in range(SEEDS))
                    for correlate in (False, True)
                )
                cells.append(f"{without / with_:.2f}")
        print(f"| {method} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
