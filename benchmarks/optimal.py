"""Globally optimal levels of a whole tensor: time as a ratio to np.sort of the same data, and to the plain programme.

    python -m benchmarks.optimal [--values 1048576] [--gradients runs/resnet runs/gpt] [--out runs/bench.jsonl]

One thread. `closed` says whether the certificate closed at 1e-12. The plain programme (monotone divide and conquer over
all values) runs on sorted data for up to 16 levels. A run's captured gradients, all steps and parameters one after
another, are one more array each, of `--values` values if there are as many. Then, for blocks of 2048: how far ORQ and
Optimal with effort="fast" are above the optimum, in expected error, and what exact and fast levels cost a block once it
is sorted.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.kernels import machine, median_seconds
from thinwire import ORQ, Optimal, expected_error, kernels, optimal_levels
from thinwire.kernels.optimal import solve_optimal_rows
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


def gradients(folder: Path, values: int) -> np.ndarray:
    """The gradients that a run captured, one after another, `values` of them at most."""
    steps = [torch.load(file, weights_only=True) for file in sorted((folder / "gradients").glob("step_*.pt"))]
    if not steps:
        raise SystemExit(f"{folder} has no gradients/step_*.pt")
    return torch.cat([tensor.flatten().float() for step in steps for tensor in step.values()])[:values].numpy()


def paired_seconds(run: Callable[[], object], other: Callable[[], object], repeats: int = 7) -> tuple[float, float]:
    """Median seconds of both, run in turns, so that a machine that is busy at times is busy for both."""
    pairs = [(median_seconds(run, 1), median_seconds(other, 1)) for _ in range(repeats)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--values", type=int, default=1 << 20)
    parser.add_argument("--gradients", type=Path, nargs="*", default=[], help="runs with captured gradients")
    parser.add_argument("--out", type=Path, default=Path("runs/bench.jsonl"))
    args = parser.parse_args()
    kernels.set_threads(1)
    torch.set_num_threads(1)
    facts = machine()
    args.out.parent.mkdir(parents=True, exist_ok=True)
    data = datasets(args.values) | {folder.name: gradients(folder, args.values) for folder in args.gradients}
    print(f"float32; {facts}")
    print(f"{'data':14} {'values':>8} {'levels':>6} {'ms':>9} {'of np.sort':>10} {'plain/ours':>10} {'gap':>8} closed")
    with args.out.open("a") as out:
        for name, array in data.items():
            x, ascending = torch.from_numpy(array), np.sort(array)
            for s in LEVELS:
                took, sort = paired_seconds(lambda x=x, s=s: optimal_levels(x, s), lambda a=array: np.sort(a))
                plain = median_seconds(lambda a=ascending, s=s: solve_reference(a, s), 1) if s <= 16 else float("nan")
                found = optimal_levels(x, s)
                ratio = f"{plain / took:10.1f}" if s <= 16 else f"{'-':>10}"
                print(
                    f"{name:14} {len(array):8} {s:6} {took * 1e3:9.2f} {took / sort:10.2f} {ratio} "
                    f"{found.gap:8.1e} {found.closed}"
                )
                row = {"data": name, "values": len(array), "levels": s, "seconds": took, "sort_seconds": sort}
                row["gap"] = found.gap
                out.write(json.dumps({**facts, "operation": "optimal levels", **row}) + "\n")
    print_blocks({name: x[: 1 << 18] for name, x in data.items()})


def print_blocks(data: dict[str, np.ndarray]) -> None:
    """Blocks of 2048: expected error above that of exact levels, in percent, and microseconds a sorted block."""
    print(
        f"\n{'data':14} {'levels':>6} {'ORQ, %':>10} {'fast, %':>10} {'fast, us':>9} {'exact, us':>9} {'sort, us':>9}"
    )
    for name, array in data.items():
        x = torch.from_numpy(array)
        rows = array[: len(array) // 2048 * 2048].reshape(-1, 2048)
        sort = 1e6 * median_seconds(lambda rows=rows: np.sort(rows, 1), 5) / len(rows)
        for s in (3, 4, 5, 9, 16, 17):
            fast, exact = (1e6 * seconds / len(rows) for seconds in row_seconds(np.sort(rows, 1), s))
            best = expected_error(x, Optimal(levels=s))
            above = 100 * (expected_error(x, Optimal(levels=s, effort="fast")) / best - 1)
            greedy = 100 * (expected_error(x, ORQ(levels=s)) / best - 1) if s in (3, 5, 9, 17) else float("nan")
            print(f"{name:14} {s:6} {greedy:10.4f} {above:10.4f} {fast:9.1f} {exact:9.1f} {sort:9.1f}")


def row_seconds(ascending: np.ndarray, s: int) -> tuple[float, float]:
    """Median seconds of fast and of exact levels of all rows."""
    rows, lengths = torch.from_numpy(ascending), torch.full((len(ascending),), ascending.shape[1])
    return paired_seconds(
        lambda: solve_optimal_rows(rows, lengths, s, False), lambda: solve_optimal_rows(rows, lengths, s, True), 5
    )


if __name__ == "__main__":
    main()
