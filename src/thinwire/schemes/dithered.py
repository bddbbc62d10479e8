"""Subtractive dither on one grid for a message, entropy coded."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import SchemeError
from thinwire.kernels.dither import dither_costs, dither_decode, dither_encode
from thinwire.kernels.entropy.book import LENGTH_UNIT, book
from thinwire.kernels.entropy.lengths import mean_lengths
from thinwire.kernels.entropy.reference import RUN
from thinwire.schemes.budget import check_number
from thinwire.schemes.coded import CodedScheme, GridPlan, check_decoded, tables_of
from thinwire.schemes.grid import OCTAVE, Energies, chunk_runs
from thinwire.schemes.group import Group
from thinwire.types import Key, Message, Traits

__all__ = ["Dithered"]


@dataclass(frozen=True, kw_only=True)
class Dithered(CodedScheme):
    """A grid shifted by random numbers that the receiver subtracts, and an entropy coder that knows each run's scale.

    Segments of a message that share this scheme share one step, times a weight for each segment. The error is uniform
    over one step, whatever the values are: unbiased, step^2 / 12 a value. All-zero runs of 256 values decode to exact
    zeros; a run with a non-finite value decodes to NaN.

    Args:
        bits: per value on the wire, 0.25 to 12; higher => more bits, more accurate. None: 2, unless a step is given.
        weighting: "tensor" (a segment's weight is its own root mean square, so that each keeps the same relative error:
            for Adam and its like), "global" (all weigh 1: the least total squared error, for averaging as SGD does),
            or a mapping from names to weights, a larger weight => a coarser step.
        step: instead of `bits`, the step itself, in units of the weights; lower => more bits, more accurate. A step
            for which values need more than 16 bits is made coarser.
    Raises:
        SchemeError: both bits and a step, or an option out of its range.
        MessageError (encode): a tensor that the mapping does not name.
    Error: number of values x step^2 / 12, in runs that are not all zero.
    Bits per value: at most `bits`, everything but names counted, where half of them pays for headers (at 2 bits and one
        tensor: from 1,216 values on). From 2^17 values on, at half a bit and more, within 1%. Exceptions: values that
        need less whatever the step (all zeros; runs louder than 2^16 steps make it coarser instead).
    References: subtractive dither: Schuchman 1964, Gray and Stockham 1993; rANS: Duda 2013 (arXiv 1311.2540).
    """

    bits: float | None = None
    step: float | None = None

    method: ClassVar[str] = "dithered"
    stepped: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.step is None and self.bits is None:
            object.__setattr__(self, "bits", 2.0)
        super().__post_init__()
        if self.step is not None:
            if self.bits is not None:
                raise SchemeError(f"dithered: give either bits or a step, got bits={self.bits!r}, step={self.step!r}")
            object.__setattr__(self, "step", check_number(self.method, "step", self.step, 2.0**-100, 2.0**100))

    @property
    def traits(self) -> Traits:
        equivariant = self.step is None or self.weighting == "tensor"
        return Traits(unbiased=True, scale_equivariant=equivariant, joint=self.step is None)

    def _given_step(self, energies: Energies, weights: np.ndarray) -> int | None:
        if self.step is None:
            return None
        return max(round(math.log2(self.step) * OCTAVE), energies.least_step(weights))

    def _shape(self, energies: Energies) -> int:
        return energies.shape()

    def _curve(self, shape: int) -> np.ndarray:
        return book().expected[shape]

    def _run_bits(self, values: Tensor, table: Tensor, inverse: Tensor, classes: Tensor, shape: int) -> np.ndarray:
        lengths, cells = (t.to(values.device) for t in mean_lengths(shape))
        return dither_costs(values, table, inverse, classes, lengths, cells).cpu().numpy() / LENGTH_UNIT

    def _chance(self, bits: float, values: int) -> float:
        return 0.75 * min(1.0, 2 ** (1.2 - bits / values)) * math.sqrt(values)  # measured on normal values

    def _code(
        self, message: Message, group: Group, plan: GridPlan, classes: Tensor, map_: int, key: Key, room: int
    ) -> tuple[Tensor, Tensor, bytes]:
        table, _ = group.blocks(RUN, message.device)
        keys, inverse = group.keys(key, RUN, message.device), torch.from_numpy(1 / plan.run_steps).to(message.device)
        tables = tables_of(book().scales, plan.shape, map_, message.device)
        words, lengths = dither_encode(
            message.flat, table, keys, inverse, classes, tables, chunk_runs(len(table)), room, key.shift
        )
        return words, lengths, b""

    def decode(self, parts: list[Tensor], group: Group, key: Key, total: Tensor, add: bool) -> None:
        if not group.values:
            return
        read = self._read(parts, group, total.device)
        table, _ = group.blocks(RUN, total.device)
        keys, tables = group.keys(key, RUN, total.device), tables_of(book().scales, read.shape, read.map_, total.device)
        good = dither_decode(
            read.words, read.starts, table, keys, read.steps, tables, chunk_runs(len(table)), total, add, key.shift
        )
        check_decoded(self.method, good)

    def squared_error(self, message: Message, group: Group) -> float:
        plan = self.plan(message, group)
        energies = plan.energies
        found = float((plan.run_steps**2 / 12 * energies.counts * energies.loud).sum())
        return found if energies.finite.all() else float("nan")
