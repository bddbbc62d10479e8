"""How much error feedback owes after each of 32 steps, in shares of a gradient's squared norm.

    python -m benchmarks.feedback RUN [RUN ...] [--methods deadzone-1,drive,...]

RUN is a folder of `thinwire train`: its checkpoint's weights and the examples. The steps see gradients of 32 batches
("changing"), or 32 times that of the first ("same"), which is the hardest: what is owed always points one way.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

import thinwire
from benchmarks.batches import gradients
from thinwire.schemes import Scheme, from_spec

STEPS = 32
METHODS = "deadzone-1,drive,bingrad-b,signsgd"


def energy(tensors: Mapping[str, Tensor]) -> float:
    return sum(float(t.double().square().sum()) for t in tensors.values())


def owed(steps: Sequence[Mapping[str, Tensor]], scheme: Scheme) -> list[float]:
    """The residual's squared norm after each step, over the mean squared norm of the gradients."""
    residual, found = {name: 0 * gradient for name, gradient in steps[0].items()}, []
    for step, gradient in enumerate(steps):
        wanted = {name: gradient[name] + residual[name] for name in gradient}
        sent = thinwire.decode(thinwire.encode(wanted, scheme, seed=step))
        residual = {name: wanted[name] - sent[name] for name in wanted}
        found.append(energy(residual))
    size = statistics.fmean(energy(gradient) for gradient in steps)
    return [each / size for each in found]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--methods", default=METHODS)
    args = parser.parse_args()
    found = {folder.name: gradients(folder, STEPS) for folder in args.runs}
    print("| Method |", " | ".join(f"{name}, one step | changing | most | same" for name in found), "|")
    print("| --- |", " | ".join("--:" for _ in range(4 * len(found))), "|")
    for method in args.methods.split(","):
        cells = []
        for steps in found.values():
            changing, same = (owed(each, from_spec(method)) for each in (steps, steps[:1] * STEPS))
            cells += [same[0], changing[-1], max(changing), same[-1]]
        print(f"| {method} |", " | ".join(f"{cell:.3g}" for cell in cells), "|", flush=True)


if __name__ == "__main__":
    main()
