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
from torch.nn import functional

from thinwire.lab import data
from thinwire.lab.config import RunConfig
from thinwire.lab.data import DATASETS
from thinwire.lab.dataset import batches
from thinwire.lab.models import build
from thinwire.schemes import Scheme, from_spec
from thinwire.types import Key
from thinwire.wire import accumulate, compose, encode

RANKS = (2, 8, 32)
SEEDS = 3
METHODS = "terngrad-noclip,orq-3,qsgd-5,minmax-4,linear-9,orq-9,optimal-9,dithered-2,rotated-2"


def gradients(folder: Path) -> list[Tensor]:
    """One flat gradient a rank, float32, of the parameters that a run compresses."""
    kept = torch.load(folder / "checkpoint.pt", weights_only=True)
    config = RunConfig(**kept["config"])
    kind = DATASETS[config.data]
    model, examples = build(config.model, seed=config.seed, **kind.shape), data.load(config.data, config.data_root)
    model.load_state_dict(kept["model"])
    own = max(1, config.batch_size // config.workers)
    found = []
    for rank in range(RANKS[-1]):
        inputs, labels = next(
            batches(examples, kind, batch_size=own * RANKS[-1], rank=rank, world_size=RANKS[-1], seed=1, epoch=0)
        )
        model.zero_grad()
        functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten()).backward()
        large = [p.grad.flatten() for p in model.parameters() if p.grad is not None and p.numel() >= config.min_values]
        found.append(torch.cat(large))
    return found


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
    found = {folder.name: gradients(folder) for folder in args.runs}
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
