"""What checksums cost: encoding and decoding a frame of one tensor with and without, on one thread.

    python -m benchmarks.checksum [--values 1048576] [--methods none,orq-9,signsgd]

Prints medians; "cost" is the part of the time with a checksum that it takes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch

from thinwire import kernels
from thinwire.schemes import from_spec
from thinwire.types import Key
from thinwire.wire import accumulate, compose, encode


def medians(runs: list[Callable[[], object]], repeats: int = 31) -> list[float]:
    """Seconds of each, taken in turn so that all meet the same machine."""
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for taken, run in zip(seconds, runs):
            start = time.perf_counter()
            run()
            taken.append(time.perf_counter() - start)
    return [statistics.median(taken[1:]) for taken in seconds]


def measure(x: torch.Tensor, method: str) -> list[float]:
    """Seconds of encoding with and without, of decoding with and without."""
    message, _ = compose([x], from_spec(method))
    total = torch.zeros(x.numel())
    frames = {checked: encode(message, Key(), checked=checked) for checked in (True, False)}
    return medians(
        [
            lambda: encode(message, Key(), checked=True),
            lambda: encode(message, Key(), checked=False),
            lambda: accumulate(frames[True], message.layout, total, checked=True),
            lambda: accumulate(frames[False], message.layout, total, checked=False),
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=1 << 20)
    parser.add_argument("--methods", default="none,signsgd,orq-3,orq-9")
    args = parser.parse_args()
    torch.set_num_threads(1)
    kernels.set_threads(1)
    x = torch.randn(args.values, generator=torch.Generator().manual_seed(0))
    print(f"{'method':10} {'encode ms':>10} {'without':>8} {'cost':>6} {'decode ms':>10} {'without':>8} {'cost':>6}")
    for method in args.methods.split(","):
        with_e, less_e, with_d, less_d = (1000 * s for s in measure(x, method))
        cells = [with_e, less_e, 1 - less_e / with_e, with_d, less_d, 1 - less_d / with_d]
        print("{:10} {:10.2f} {:8.2f} {:6.1%} {:10.2f} {:8.2f} {:6.1%}".format(method, *cells))


if __name__ == "__main__":
    main()
