"""One grid for a whole message: the step of each segment, and the scale class of each run, found from energies alone.

Steps live on a grid of 1/4096 octaves, so that a message times a power of two gets the same integers plus a constant: a
segment's step is 2^((step + 32 weight) / 4096), with one `step` for the message and a `weight` for each segment.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.dither import NO_ENERGY, run_energies, settle_classes
from thinwire.kernels.entropy.book import QUIETEST
from thinwire.kernels.entropy.reference import SCALED
from thinwire.kernels.table import LENGTH
from thinwire.schemes.budget import WEIGHT_OCTAVE, half_log2, segment_levels
from thinwire.schemes.group import Group
from thinwire.types import Message

__all__ = ["OCTAVE", "Energies", "chunk_runs", "powers", "segment_steps"]

OCTAVE = 4096
_WIDEST = 16  # octaves between the step and the root mean square of the loudest run: the step is not less than that
_BITS = 96
_FLATNESS = np.array([0.790, 0.767, 0.730])  # below each of these a law with a wider spread of scales suits better


@functools.cache
def _mantissas() -> np.ndarray:
    """2^(i / 4096) for i below 4096, rounded from integers, so that all machines have the same."""
    root = 2 << _BITS
    for _ in range(12):
        root = math.isqrt(root << _BITS)
    power, found = 1 << _BITS, []
    for _ in range(OCTAVE):
        found.append(power / (1 << _BITS))
        power = power * root >> _BITS
    return np.array(found)


def powers(codes: np.ndarray) -> np.ndarray:
    """2^(code / 4096), float64, the same on every machine."""
    return np.ldexp(_mantissas()[codes % OCTAVE], (codes // OCTAVE).astype(np.int32))


def segment_steps(step: int, weights: np.ndarray) -> np.ndarray:
    """Each segment's step, float64, from what travels."""
    return powers(step + OCTAVE // WEIGHT_OCTAVE * weights.astype(np.int64))


def chunk_runs(runs: int) -> int:
    """Runs in a chunk: a power of two, 128 to 512, such that there are eight chunks if possible."""
    return min(max(1 << (runs // 8).bit_length() - 1, 128), 512) if runs >= 8 else 128


@dataclass(frozen=True)
class Energies:
    """A group's runs on the host.

    Args:
        counts: values of each run, int64 `[runs]`.
        owner: each run's index in the group's places, int64 `[runs]`.
        finite, loud: whether a run is finite, and has any energy.
        squares, magnitudes: sums, float64 `[runs]`, 0 where not finite.
        level: log2 of the root mean square, float64 `[runs]`, 0 where not loud.
    """

    counts: np.ndarray
    owner: np.ndarray
    finite: np.ndarray
    loud: np.ndarray
    squares: np.ndarray
    magnitudes: np.ndarray
    level: np.ndarray

    @staticmethod
    def of(message: Message, group: Group) -> Energies:
        table, owner = group.blocks(256, message.device)
        sums = run_energies(message.flat, table).cpu().numpy()
        counts, finite = table[:, LENGTH].cpu().numpy(), ~np.isnan(sums[:, 0])
        sums = np.where(finite[:, None], sums, 0.0)
        loud = sums[:, 0] > 0
        level = np.where(loud, half_log2(np.where(loud, sums[:, 0] / counts, 1.0)), 0.0)
        return Energies(counts, owner.cpu().numpy(), finite, loud, sums[:, 0], sums[:, 1], level)

    def segment_levels(self, segments: int) -> np.ndarray:
        """log2 of each segment's root mean square over its finite runs, 0 where it has no energy."""
        return segment_levels(self.owner, self.squares, self.counts * self.finite, segments)

    def flatness(self) -> float:
        """Mean magnitude over root mean square within runs, weighted by values: 0.798 for Gaussian values."""
        weights = self.counts * self.loud
        ratio = self.magnitudes / np.sqrt(np.where(self.loud, self.squares * self.counts, 1.0))
        return float((ratio * weights).sum() / max(weights.sum(), 1))

    def shape(self) -> int:
        """Which of the book's laws suits the values."""
        return int((self.flatness() < _FLATNESS).sum())

    def least_step(self, weights: np.ndarray) -> int:
        """The least step, in 1/4096 octaves, at which the loudest run can be coded."""
        if not self.loud.any():
            return 0
        above = self.level - weights[self.owner] / WEIGHT_OCTAVE
        return math.ceil((float(above[self.loud].max()) - _WIDEST) * OCTAVE)

    def positions(self, step: int, weights: np.ndarray) -> Tensor:
        """What settle_classes takes, int32 `[runs]`."""
        code = step + OCTAVE // WEIGHT_OCTAVE * weights.astype(np.int64)[self.owner]
        fine = np.rint((self.level * OCTAVE - code) * (32 / OCTAVE)) - 32 * QUIETEST
        found = np.where(self.loud, fine, np.where(self.finite, NO_ENERGY, NO_ENERGY - 1))
        return torch.from_numpy(found.astype(np.int32))

    def classes(self, step: int, weights: np.ndarray) -> Tensor:
        """Each run's class under a step, uint8 `[runs]`."""
        return settle_classes(self.positions(step, weights), chunk_runs(len(self.counts)))

    def beside(self, step: int, weights: np.ndarray, classes: np.ndarray) -> np.ndarray:
        """How far each run lies above the middle of its class, in octaves, at most one, float64 `[runs]`."""
        fine = self.positions(step, weights).numpy() - 8 * (classes.astype(np.int64) - SCALED)
        return np.where(self.loud, np.clip(fine / 32, -1.0, 1.0), 0.0)
