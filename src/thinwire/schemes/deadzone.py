"""Rounding on one grid for a message with a wide zero, entropy coded: the least error at a rate, for error feedback."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels import block_table
from thinwire.kernels.deadzone import CENTROIDS, PHASE, REACH, UNIT, deadzone_costs, deadzone_decode, deadzone_encode
from thinwire.kernels.entropy.book import CLASSES, LENGTH_UNIT, LOG_PHASES, QUIETEST, SHAPES, book
from thinwire.kernels.entropy.lengths import code_lengths
from thinwire.kernels.entropy.reference import RUN, SCALED
from thinwire.schemes.coded import CodedScheme, GridPlan, check_decoded, tables_of
from thinwire.schemes.grid import Energies, chunk_runs
from thinwire.schemes.group import Group
from thinwire.types import Key, Message, Traits

__all__ = ["DeadZone"]

_PRICE = 0.05  # squared steps that a bit is worth: least error from 0.04 to 0.07; less => less owed by error feedback
_FINENESS = 128  # of a step, for the distances of centroids from their codes


def _code_bits(shape: int, low_bits: int = 0) -> np.ndarray:
    """Bits of codes of magnitude 0 .. 64 without their low bits under each row, float64 `[CLASSES, 65]`.

    The mean of both signs: a row's middle lies between two cells, so that a negative code takes what the positive one
    of the opposite phase does; and low bits are those of the code, which for a negative one count upwards.
    """
    phase, last = PHASE >> low_bits, (1 << LOG_PHASES) - 1
    positive, negative = code_lengths(shape, phase, REACH), code_lengths(shape, last - phase, REACH + 1)
    below = negative[:, :-1] / (1 << low_bits) + negative[:, 1:] * (1 - 0.5**low_bits)
    return (positive + below) / 2


@functools.cache
def _lengths(shape: int) -> Tensor:
    """What deadzone_costs takes: the same in 1/1024 bits, int32, then the last four rows at 1, 2 .. 5 low bits."""
    bits = [_code_bits(shape), *(_code_bits(shape, low_bits)[-4:] for low_bits in range(1, LOG_PHASES + 1))]
    return torch.from_numpy(np.rint(np.concatenate(bits) * LENGTH_UNIT).astype(np.int32))


@functools.cache
def _thresholds(shape: int) -> Tensor:
    """By how much a size must be above k + 1/2 to become k + 1 and not k, in steps, float64 `[CLASSES, 64]`.

    At most 1/2; multiples of 2^-16, so that all machines have the same.
    """
    wanted = np.clip(_PRICE / 2 * np.diff(_code_bits(shape), axis=1), 0.0, 0.5)
    return torch.from_numpy(np.rint(wanted * UNIT) / UNIT)


@functools.cache
def _expected(shape: int) -> np.ndarray:
    """Bits a value of runs in the middle of each class, under the law that its row was made from."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(15)
    scales = np.exp(SHAPES[shape] * nodes - SHAPES[shape] ** 2)[:, None]
    normal = torch.special.ndtri((torch.arange(RUN, dtype=torch.float64) + 0.5) / RUN).numpy()
    values = 2.0 ** (np.arange(CLASSES) / 4 + QUIETEST)[:, None, None] * scales * normal
    table, _ = block_table([(0, values.size)], RUN)
    classes = torch.arange(SCALED, SCALED + CLASSES, dtype=torch.uint8).repeat_interleave(len(nodes))
    costs = deadzone_costs(
        torch.from_numpy(values.astype(np.float32).reshape(-1)), table, torch.ones(len(table), dtype=torch.float64),
        classes, _thresholds(shape), _lengths(shape),
    )  # fmt: skip
    return costs.numpy().reshape(CLASSES, -1) @ weights / (weights.sum() * RUN * LENGTH_UNIT)


@dataclass(frozen=True, kw_only=True)
class DeadZone(CodedScheme):
    """Codes by what error and bits together cost, decoded to centroids: biased, for error feedback.

    A code is the nearest one or the next smaller: the one with the least squared error + 0.05 step^2 x its bits, give
    or take 1/64 step by the place of the value. So small values become 0 more often, which is the dead zone. Codes 1, 2
    and all larger ones decode to the mean of the values that became them. Runs, steps, weights and the rate are those
    of Dithered. No random numbers.

    Args:
        bits: per value on the wire, 0.25 to 12; higher => more bits, more accurate.
        weighting: as Dithered's.
    Raises:
        SchemeError: an option out of its range.
        MessageError (encode): a tensor that the mapping does not name.
    Error: that of decoding; at most about the values' own energy, which is the error where all values become 0. Where
        values all have one size, the bits go to a share of them, and error feedback sends the others later. Of fewer
        than 4,096 values at a bit, headers leave too little for that: feedback owes hundreds of times the gradient.
    Bits per value: as Dithered.
    References: entropy-constrained scalar quantization: Chou, Lookabaugh and Gray 1989; dead zones: Sullivan 1996.
    """

    bits: float | None = 1.0

    method: ClassVar[str] = "deadzone"
    side_bytes: ClassVar[int] = 4

    @property
    def traits(self) -> Traits:
        return Traits(unbiased=False, joint=True)

    def _shape(self, energies: Energies) -> int:
        return energies.shape()

    def _curve(self, shape: int) -> np.ndarray:
        return _expected(shape)

    def _run_bits(self, values: Tensor, table: Tensor, inverse: Tensor, classes: Tensor, shape: int) -> np.ndarray:
        thresholds, lengths = _thresholds(shape).to(values.device), _lengths(shape).to(values.device)
        return deadzone_costs(values, table, inverse, classes, thresholds, lengths).cpu().numpy() / LENGTH_UNIT

    def _chance(self, bits: float, values: int) -> float:
        return 0.0005 * bits  # nothing is random: what the coder's states take, and steps that are not looked at

    def _code(
        self, message: Message, group: Group, plan: GridPlan, classes: Tensor, map_: int, key: Key, room: int
    ) -> tuple[Tensor, Tensor, bytes]:
        table, _ = group.blocks(RUN, message.device)
        inverse = torch.from_numpy(1 / plan.run_steps).to(message.device)
        tables = tables_of(book().scales, plan.shape, map_, message.device)
        thresholds = _thresholds(plan.shape).to(message.device)
        words, lengths, sums = deadzone_encode(
            message.flat, table, inverse, classes, thresholds, tables, chunk_runs(len(table)), room
        )
        counts, above = sums.tolist()
        mean = [round(a * _FINENESS / (n * UNIT)) if n else 0 for n, a in zip(counts, above)]
        return words, lengths, np.array([*(min(max(m, -_FINENESS), _FINENESS - 1) for m in mean), 0], np.int8).tobytes()

    def decode(self, parts: list[Tensor], group: Group, key: Key, total: Tensor, add: bool) -> None:
        if not group.values:
            return
        read = self._read(parts, group, total.device)
        table, _ = group.blocks(RUN, total.device)
        tables = tables_of(book().scales, read.shape, read.map_, total.device)
        distances = torch.zeros(1 + CENTROIDS, dtype=torch.float64)
        distances[1:] = torch.frombuffer(bytearray(read.side), dtype=torch.int8)[:CENTROIDS] / _FINENESS
        good = deadzone_decode(
            read.words, read.starts, table, read.steps, distances.to(total.device), tables, chunk_runs(len(table)),
            total, add,
        )  # fmt: skip
        check_decoded(self.method, good)

    def squared_error(self, message: Message, group: Group) -> float:
        """What decoding shows: nothing is random."""
        total = torch.zeros(message.numel, device=message.device)
        self.decode(self.encode(message, group, self.plan(message, group), Key()), group, Key(), total, False)
        error = sum(float(((total[a:b].double() - message.flat[a:b].double()) ** 2).sum()) for a, b in group.runs)
        return error
