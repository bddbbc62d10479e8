"""The step that meets a budget: predicted from run energies under the book's law, then corrected by what values cost.

All of it is a function of the values alone, never of the random numbers, so that the step says nothing about the dither
(only where codes then turn out too long, or much too short, does encoding change it). In large messages only some runs'
values are looked at; the law, which knows every run's energy, stands for the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from thinwire.kernels.entropy.book import CLASSES, QUIETEST
from thinwire.kernels.entropy.reference import SCALED
from thinwire.schemes.budget import WEIGHT_OCTAVE
from thinwire.schemes.grid import OCTAVE, Energies

__all__ = ["choose_runs", "estimate_bits", "find_step", "law_bits"]

_FINE = 32  # of an octave: what prediction counts runs by
_COARSEST = 24  # octaves above the loudest run: every code is 0
_TRIES = 6
_FEWEST = 1024  # runs that are looked at, if there are as many
_SHARE = 16  # of the runs of larger messages, one in up to 16
_SHORT = 0.0006  # of the budget may be left
_NEAR = 0.01  # of the budget: what the law says of so small a change of the step needs no other look


def choose_runs(runs: int) -> np.ndarray:
    """Which runs' values are looked at: one of each k neighbours, scattered so that no period of the data is met."""
    stride = min(max(runs // _FEWEST, 1), _SHARE)
    first = np.arange(0, runs, stride)
    scattered = first * 0x9E3779B1 % (1 << 32) >> 16
    return np.minimum(first + scattered % stride, runs - 1)


def law_bits(curve: np.ndarray, classes: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Bits that runs of these uint8 classes and counts take under the law of the book's curve, float64 `[runs]`."""
    number = np.arange(256) - SCALED
    bits = curve[np.clip(number, 0, CLASSES - 1)] + np.maximum(number - (CLASSES - 1), 0) / 4
    return np.where(number >= 0, bits, 0.0)[classes] * counts


def estimate_bits(law: np.ndarray, beside: np.ndarray, chosen: np.ndarray, bits: np.ndarray) -> tuple[float, float]:
    """Estimate what all runs take.

    Args:
        law: bits of each run by its class alone, float64 `[runs]`.
        beside: values of each run times how far the run lies above its class, float64 `[runs]`: what the law misses
            grows with it.
        chosen: which runs were looked at.
        bits: what these take, float64 `[chosen]`.
    Returns:
        The sum over all runs, and the deviation of this estimate: 0 where all were looked at.
    """
    missed, above, runs, looked_at = bits - law[chosen], beside[chosen], len(law), len(chosen)
    spread = float(above.var())
    slope = float(((above - above.mean()) * missed).mean()) / spread if spread else 0.0
    rest = missed - slope * above
    total = float(law.sum() + slope * beside.sum() + runs * rest.mean())
    return total, runs * math.sqrt(float(rest.var()) * (1 - looked_at / runs) / looked_at)


def _predicted(energies: Energies, weights: np.ndarray, curve: np.ndarray, least: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps from `least` on, 32 an octave, and what all values take at each under the law of the book's curve."""
    level = (energies.level - weights[energies.owner] / WEIGHT_OCTAVE)[energies.loud]
    fine = np.rint(level * _FINE).astype(np.int64)
    quietest, values = fine.min(), np.bincount(fine - fine.min(), energies.counts[energies.loud])
    count = (_COARSEST + 16) * _FINE + 1
    above = np.arange(1 - count, len(values))  # a run's level less the step, up to a constant
    position = 4 * ((above + quietest) / _FINE - least / OCTAVE - QUIETEST)
    bits = np.interp(position, np.arange(CLASSES), curve) + np.maximum(position - (CLASSES - 1), 0) / 4
    return least + OCTAVE // _FINE * np.arange(count), np.correlate(bits, values, "valid")[::-1]


def find_step(
    energies: Energies, weights: np.ndarray, curve: np.ndarray, budget: float, measure: Callable[[int], float]
) -> int:
    """Choose the least step, about, that fits a budget.

    Args:
        energies: at least one run is loud.
        weights: int16 `[segments]`.
        curve: bits a value that the book expects for each class, float64 `[CLASSES]`.
        budget: bits.
        measure: bits at a step in 1/4096 octaves, all of them counted, expected over the dither.
    Returns:
        A step at which `measure` is seldom more than the budget or less than 0.999 of it, unless the loudest run asks
        for a coarser one.
    """
    steps, law = _predicted(energies, weights, curve, energies.least_step(weights))
    low, high = int(steps[0]), int(steps[-1])

    def meet(model: np.ndarray, wanted: float) -> int:
        falling = np.minimum.accumulate(model)
        return min(max(round(float(np.interp(-wanted, -falling, steps))), low), high)

    found, last = meet(law, budget), None
    for _ in range(_TRIES):
        bits = measure(found)
        low, high = (found + 1, high) if bits > budget else (low, found)
        if low >= high or (1 - _SHORT) * budget <= bits <= budget:
            break
        missed = bits - float(np.interp(found, steps, law))
        slope = (missed - last[1]) / (found - last[0]) if last else 0.0
        last = (found, missed)
        found = meet(law + missed + slope * (steps - found), (1 - _SHORT / 3) * budget)
        if found == last[0] or abs(bits - budget) <= _NEAR * budget:
            break
    return found
