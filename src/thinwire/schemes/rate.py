"""The step that meets a budget: predicted from run energies under the book's law, then corrected by what values cost.

All of it is a function of the values alone, never of the random numbers: the step says nothing about the dither.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from thinwire.kernels.entropy.book import CLASSES, QUIETEST
from thinwire.schemes.budget import WEIGHT_OCTAVE
from thinwire.schemes.grid import OCTAVE, Energies

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
        A step at which `measure` is seldom more than the budget or less than 0.999 of it, unless the loudest run asks
        for a coarser one.
    """
    least = energies.least_step(weights)
    low, high = least, least + (_COARSEST + 16) * OCTAVE
    found = high
    predict = _prediction(energies, weights, curve)
    model, last = predict, None
    for _ in range(_TRIES):
        step = round(_meet(model, (1 - _SHORT / 3) * budget if last else budget, low, high))
        bits = measure(step)
        missed = bits - predict(step)
        found = step
        low, high = (step + 1, high) if bits > budget else (low, step)
        if low >= high or (1 - _SHORT) * budget <= bits <= budget:
            break
        slope = (missed - last[1]) / (step - last[0]) if last else 0.0
        model, last = _corrected(predict, step, missed, slope), (step, missed)
    return found


def _corrected(predict: Callable[[float], float], step: int, missed: float, slope: float) -> Callable[[float], float]:
    """The prediction plus what it missed at a step, and how that grows."""
    return lambda at: predict(at) + missed + slope * (at - step)
