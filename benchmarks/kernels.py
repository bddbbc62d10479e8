"""Speed of every kernel on one thread, as a ratio to np.copyto and np.sort of the same data in the same run.

    python -m benchmarks.kernels [--values 1048576] [--out benchmarks/results.jsonl]

Prints a table and writes JSON lines: machine, commit, medians in seconds. The last column is the gain of two threads.
"quantize s" rounds and packs under given levels; "dequantize s" unpacks, looks up and adds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import thinwire
from thinwire import kernels
from thinwire.kernels.pool import for_ranges

BLOCK = 2048


def median_seconds(run: Callable[[], object], repeats: int = 15) -> float:
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def machine() -> dict[str, str]:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "machine": f"{platform.machine()} {platform.system()} {kernels.threads()} thread",
        "commit": commit.stdout.strip() or "unknown",
        "numpy": np.__version__,
        "torch": torch.__version__,
        "thinwire": thinwire.__version__,
    }


def operations(values: int) -> dict[str, Callable[[], object]]:
    """Name -> what to time, all on the same normal data in blocks of 2048."""
    x = torch.randn(values, generator=torch.Generator().manual_seed(0))
    array, out = x.numpy(), np.empty(values, np.float32)
    grid = array[: values // BLOCK * BLOCK].reshape(-1, BLOCK)
    table, _ = kernels.block_table([(0, values)], BLOCK)
    keys = torch.zeros(len(table), dtype=torch.int64)
    total = torch.zeros(values)
    timed: dict[str, Callable[[], object]] = {
        "np.copyto": lambda: for_ranges(values, 1 << 15, lambda i, j: np.copyto(out[i:j], array[i:j])),
        "np.sort rows": lambda: for_ranges(len(grid), 16, lambda i, j: np.sort(grid[i:j], axis=1)),
        "checksum": lambda: kernels.checksum(x.view(torch.uint8)),
    }
    for name in ("two_means", "clipped_pair", "full_range", "mean_magnitude", "root_energy"):
        solve = getattr(kernels, f"solve_{name}")
        timed[f"solve {name.replace('_', ' ')}"] = lambda solve=solve: solve(x, table)
    for s in (3, 5, 9, 17):
        timed[f"solve orq-{s}"] = lambda s=s: kernels.solve_orq(x, table, s)
    for s in (2, 3, 4, 5, 9, 16, 17, 64, 256):
        levels = kernels.solve_quantiles(x, table, s)
        packed = kernels.quantize(x, levels, table, keys, False)
        timed[f"quantize {s}"] = lambda levels=levels: kernels.quantize(x, levels, table, keys, False)
        timed[f"dequantize {s}"] = lambda p=packed, b=levels: kernels.dequantize(p, b, table, total, True)
    for s in (3, 5, 9, 17):
        frame = thinwire.encode([x], thinwire.ORQ(levels=s))
        layout = thinwire.inspect(frame).segments
        timed[f"encode frame orq-{s}"] = lambda s=s: thinwire.encode([x], thinwire.ORQ(levels=s))
        timed[f"accumulate frame orq-{s}"] = lambda f=frame, w=layout: thinwire.wire.accumulate(f, w, total)
    for method in (thinwire.Dithered, thinwire.DeadZone, thinwire.Rotated, thinwire.EDEN):
        scheme = method(bits=2)
        frame = thinwire.encode([x], scheme)
        layout = thinwire.inspect(frame).segments
        timed[f"encode frame {scheme.label}"] = lambda s=scheme: thinwire.encode([x], s)
        timed[f"accumulate frame {scheme.label}"] = lambda f=frame, w=layout: thinwire.wire.accumulate(f, w, total)
    return timed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=1 << 20)
    parser.add_argument("--out", type=Path, default=Path("runs/bench.jsonl"))
    args = parser.parse_args()
    kernels.set_threads(1)
    torch.set_num_threads(1)
    timed = operations(args.values)
    seconds = {name: median_seconds(run) for name, run in timed.items()}
    two = seconds_on_two_threads(timed)
    copy, sort = seconds["np.copyto"], seconds["np.sort rows"]
    facts = machine()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{args.values} float32 values, blocks of {BLOCK}; {facts}")
    print(f"{'operation':26} {'ms':>8} {'GB/s':>7} {'of copyto':>9} {'of np.sort':>10} {'2 threads':>9}")
    with args.out.open("a") as out:
        for name, took in seconds.items():
            rate = 4 * args.values / took / 1e9
            gain = took / two[name]
            print(f"{name:26} {took * 1e3:8.3f} {rate:7.2f} {copy / took:9.3f} {sort / took:10.3f} {gain:9.2f}")
            out.write(json.dumps({**facts, "operation": name, "values": args.values, "seconds": took}) + "\n")


def seconds_on_two_threads(timed: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The same on two threads; what copying and sorting gain tells what the machine can."""
    kernels.set_threads(2)
    seconds = {name: median_seconds(run) for name, run in timed.items()}
    kernels.set_threads(1)
    return seconds


if __name__ == "__main__":
    main()
