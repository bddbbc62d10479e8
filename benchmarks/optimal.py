"""Globally optimal levels of a whole tensor: time as a ratio to np.sort of the same data, and to the plain programme.

    python -m benchmarks.optimal [--values 1048576] [--out runs/bench.jsonl]

One thread. `closed` says whether the certificate closed at 1e-12. The plain programme (monotone divide and conquer over
all values) runs on sorted data for up to 16 levels. Then, for blocks of 2048: how far ORQ and Optimal with
effort="fast" are above the optimum, in expected error.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from benchmarks.kernels import machine, median_seconds
from thinwire import ORQ, Optimal, expected_error, kernels, optimal_levels
from thinwire.kernels.optimal.reference import solve_reference

LEVELS = (3, 5, 9, 16, 64, 256)


def datasets(values: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    made = {
        "normal": rng.standard_normal(values),
        "log-normal": np.exp(rng.standard_normal(values)),
        "laplace": rng.laplace(size=values),
        "student t(3)": rng.standard_t(3, values),
    }
    return {name: x.astype(np.float32) for name, x in made.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=1 << 20)
    parser.add_argument("--out", type=Path, default=Path("runs/bench.jsonl"))
    args = parser.parse_args()
    kernels.set_threads(1)
    torch.set_num_threads(1)
    facts = machine()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    print(f"{args.values} float32 values; {facts}")
    print(f"{'data':14} {'levels':>6} {'ms':>9} {'of np.sort':>10} {'plain/ours':>10} {'gap':>8} closed")
    with args.out.open("a") as out:
        for name, array in datasets(args.values).items():
            x, ascending = torch.from_numpy(array), np.sort(array)
            sort = median_seconds(lambda array=array: np.sort(array), 5)
            for s in LEVELS:
                took = median_seconds(lambda x=x, s=s: optimal_levels(x, s), 5)
                plain = median_seconds(lambda a=ascending, s=s: solve_reference(a, s), 1) if s <= 16 else float("nan")
                found = optimal_levels(x, s)
                ratio = f"{plain / took:10.1f}" if s <= 16 else f"{'-':>10}"
                print(f"{name:14} {s:6} {took * 1e3:9.2f} {took / sort:10.2f} {ratio} {found.gap:8.1e} {found.closed}")
                row = {"data": name, "levels": s, "seconds": took, "sort_seconds": sort, "gap": found.gap}
                out.write(json.dumps({**facts, "operation": "optimal levels", **row}) + "\n")
    print_excess(min(args.values, 1 << 18))


def print_excess(values: int) -> None:
    """Expected error above that of exact levels by block, in percent."""
    print(f"\n{'data':14} {'levels':>6} {'ORQ, %':>10} {'fast, %':>10}")
    for name, array in datasets(values).items():
        x = torch.from_numpy(array)
        for s in (4, 5, 9, 16, 17):
            best = expected_error(x, Optimal(levels=s))
            fast = 100 * (expected_error(x, Optimal(levels=s, effort="fast")) / best - 1)
            greedy = f"{100 * (expected_error(x, ORQ(levels=s)) / best - 1):10.4f}" if s in (5, 9, 17) else f"{'-':>10}"
            print(f"{name:14} {s:6} {greedy} {fast:10.4f}")


if __name__ == "__main__":
    main()
