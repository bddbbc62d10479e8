"""The step that meets a budget: predicted from run energies under the book's law, then corrected by what values cost.

All of it is a function of the values alone, never of the random numbers: the step says nothing about the dither.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from thinwire.kernels.entropy.book import CLASSES, QUIETEST
from thinwire.schemes.grid import OCTAVE, WEIGHT_OCTAVE, Energies

__all__ = ["find_step"]

_FINE = 32  # of an octave: what prediction counts runs by
_COARSEST = 24  # octaves above the loudest run: every code is 0
_TRIES = 6
_SHORT = 0.0006  # of the budget may be left


def _prediction(energies: Energies, weights: np.ndarray, curve: np.ndarray) -> Callable[[float], float]:
    """Bits that all values take at a step, in 1/4096 octaves, under the law of the book's curve."""
    level = (energies.level - weights[energies.owner] / WEIGHT_OCTAVE)[energies.loud]
    fine = np.rint(level * _FINE).astype(np.int64)
    places, index = np.unique(fine, return_inverse=True)
    values = np.bincount(index, energies.counts[energies.loud])

    def predict(step: float) -> float:
        position = 4 * (places / _FINE - step / OCTAVE - QUIETEST)
        bits = np.interp(position, np.arange(CLASSES), curve) + np.maximum(position - (CLASSES - 1), 0) / 4
        return float(bits @ values)

    return predict


def _meet(predict: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """The step at which the prediction is what is wanted, within [low, high]."""
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if predict(middle) > wanted else (low, middle)
    return high


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
        A step at which `measure` is at most the budget, and seldom less than 0.999 of it, unless the loudest run asks
        for more.
    """
    least = energies.least_step(weights)
    most = least + (_COARSEST + 16) * OCTAVE
    predict = _prediction(energies, weights, curve)
    step = round(_meet(predict, budget, least, most))
    best = most
    for _ in range(_TRIES):
        bits = measure(step)
        if bits <= budget:
            best = min(best, step)
            if bits >= (1 - _SHORT) * budget or step == least:
                return best
        missed = bits - predict(step)
        following = round(_meet(predict, (1 - _SHORT / 3) * budget - missed, least, most))
        step = following if following != step else step + (1 if bits > budget else -1)
    return best
