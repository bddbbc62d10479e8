"""Compute the Lloyd-Max quantizers of N(0, 1) and print tables.py: python -m thinwire.kernels.gaussian.make_tables

The tables travel in no frame, so every side must hold the same numbers: they are kept, not computed at run time.
"""

from __future__ import annotations

import math
import textwrap
from statistics import NormalDist

import numpy as np

__all__ = ["LEVEL_COUNTS", "main", "solve"]

LEVEL_COUNTS = (2, 3, 4, 5, 6, 8, 9, 12, 16, 24, 32, 48, 64, 96, 128, 256)


def _density(x: np.ndarray) -> np.ndarray:
    return np.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _upper_tail(x: np.ndarray) -> np.ndarray:
    return np.array([math.erfc(v / math.sqrt(2)) / 2 for v in x])


def solve(levels: int) -> tuple[np.ndarray, float]:
    """Solve Lloyd's conditions by Newton's method: each level the mean of its cell, cells between midpoints.

    Returns:
        The levels, ascending, float64 `[levels]`, symmetric about 0; and the mean squared error.
    References: Max 1960; started from the levels of Panter and Dite 1951.
    """
    normal = NormalDist()
    half = [math.sqrt(3) * normal.inv_cdf((i + 0.5) / levels) for i in range(levels)][levels // 2 + levels % 2 :]
    c = np.array(half)  # the positive levels; an odd count has one at 0
    least = 0.0 if levels % 2 == 0 else None
    for _ in range(100):
        lower = np.concatenate([[c[0] / 2 if least is None else 0.0], (c[1:] + c[:-1]) / 2])
        upper = np.append(lower[1:], np.inf)
        mass = _upper_tail(lower) - _upper_tail(upper)
        mean = (_density(lower) - _density(upper)) / mass
        by_lower = _density(lower) * (mean - lower) / mass
        by_upper = np.append(_density(upper[:-1]) * (upper[:-1] - mean[:-1]) / mass[:-1], 0.0)
        jacobian = np.eye(len(c)) - np.diag(by_lower / 2 * (np.arange(len(c)) > 0)) - np.diag(by_upper / 2)
        jacobian -= np.diag(by_lower[1:] / 2, -1) + np.diag(by_upper[:-1] / 2, 1)
        if least is None:
            jacobian[0, 0] -= by_lower[0] / 2
        step = np.linalg.solve(jacobian, mean - c)
        c = c + step
        if np.abs(step).max() < 1e-14:
            break
    both = np.concatenate([-c[::-1], [0.0] * (levels % 2), c])
    return both, 1 - 2 * float((mass * mean**2).sum())


def main() -> None:
    solved = {levels: solve(levels) for levels in LEVEL_COUNTS}
    print('"""Lloyd-Max quantizers of N(0, 1): written by make_tables.py, not by hand."""\n')
    print('__all__ = ["MEAN_SQUARED_ERROR", "POSITIVE_LEVELS"]\n\n# fmt: off')
    print("MEAN_SQUARED_ERROR = {")
    for levels, (_, error) in solved.items():
        print(f"    {levels}: {error:.10g},")
    print("}\n\nPOSITIVE_LEVELS = {  # float32, as decimals; the others are their negatives, and 0 if the count is odd")
    for levels, (points, _) in solved.items():
        row = " ".join(f"{np.float32(point):.9g}," for point in points[(levels + 1) // 2 :])
        print(f"    {levels}: (")
        print(textwrap.indent(textwrap.fill(row, 110), " " * 8))
        print("    ),")
    print("}")


if __name__ == "__main__":
    main()
