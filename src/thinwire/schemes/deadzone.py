"""Rounding on one grid for a message with a wide zero, entropy coded: the least error at a rate, for error feedback."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thinwire.kernels.entropy import decode_codes, encode_codes
from thinwire.kernels.entropy.book import LOG_PHASES, book
from thinwire.kernels.entropy.lengths import code_lengths
from thinwire.kernels.entropy.reference import NOT_FINITE, RUN, SCALED, ZEROS
from thinwire.kernels.table import CODE, LENGTH, START
from thinwire.schemes.coded import CodedScheme, GridPlan, check_decoded, tables_of
from thinwire.schemes.grid import Energies, chunk_runs
from thinwire.schemes.group import Group
from thinwire.types import Key, Message, Traits

__all__ = ["DeadZone"]

_PHASE = (1 << LOG_PHASES) // 2 - 1  # at which the book's cells are those of rounding to the nearest
_PRICE = 0.13  # squared steps that a bit is worth
_REACH = 64  # larger codes cost as this one does
_CENTROIDS = 3  # of codes 1, 2, and all larger ones
_FINENESS = 128  # of a step, for their distance from the code
_FARTHEST = 2.0**30


@functools.cache
def _lengths(shape: int) -> Tensor:
    """Bits of the codes 0 .. _REACH under each row, float64 `[CLASSES, _REACH + 1]`."""
    return torch.from_numpy(code_lengths(shape, _PHASE, _REACH))


@functools.cache
def _thresholds(shape: int) -> Tensor:
    """By how much a value must be above k + 1/2 to become k + 1 and not k, in steps: at most 1/2."""
    lengths = _lengths(shape)
    return (_PRICE / 2 * lengths.diff(dim=1)).clamp(0.0, 0.5)


@dataclass(frozen=True, kw_only=True)
class DeadZone(CodedScheme):
    """Codes by what error and bits together cost, decoded to centroids: biased, for error feedback.

    A code is the nearest one or the next smaller: the one with the least squared error + 0.13 step^2 x its bits. So
    small values become 0 more often, which is the dead zone. Codes 1, 2 and all larger ones decode to the mean of the
    values that became them. Runs, steps, weights and the rate are those of Dithered. No random numbers.

    Args:
        bits: per value on the wire, 0.25 to 12; higher => more bits, more accurate.
        weighting: as Dithered's.
    Raises:
        SchemeError: an option out of its range.
        MessageError (encode): a tensor that the mapping does not name.
    Error: that of decoding; below the values' own energy.
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
        return book().expected[shape]

    def _codes(self, message: Message, group: Group, plan: GridPlan, classes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Each value's magnitude in steps, its code, and the bits of the code, in the group's order."""
        place, run = _places(group, message.device)
        number = classes.to(message.device).to(torch.int64) - SCALED
        low_bits = (-torch.div(len(_lengths(0)) - 1 - number, 4, rounding_mode="floor")).clamp(min=0)
        row, fine = (number - 4 * low_bits).clamp(min=0)[run], (low_bits == 0)[run]
        inverse = torch.from_numpy(1 / plan.run_steps).to(message.device)
        scaled = message.flat[place].to(torch.float64) * inverse[run]
        scaled = torch.where((number >= 0)[run], scaled, 0.0).clamp(-_FARTHEST, _FARTHEST)
        size = scaled.abs()
        nearest = torch.floor(size + 0.5)
        above = _thresholds(plan.shape).to(size.device)[row, (nearest.to(torch.int64) - 1).clamp(0, _REACH - 1)]
        smaller = fine & (nearest > 0) & (size < nearest - 0.5 + above)
        code = nearest - smaller.to(torch.float64)
        shifted = torch.floor(code * 2.0 ** -low_bits[run].to(torch.float64)).to(torch.int64).clamp(max=_REACH)
        bits = _lengths(plan.shape).to(size.device)[row, shifted] + low_bits[run]
        bits = torch.where((number >= 0)[run], bits, 0.0)
        return size, torch.where(scaled < 0, -code, code).to(torch.int32), bits

    def _expected_bits(self, message: Message, group: Group, plan: GridPlan, classes: Tensor) -> float:
        return float(self._codes(message, group, plan, classes)[2].sum())

    def _code(
        self, message: Message, group: Group, plan: GridPlan, classes: Tensor, map_: int, key: Key, room: int
    ) -> tuple[Tensor, Tensor, bytes]:
        size, codes, _ = self._codes(message, group, plan, classes)
        table, _ = group.blocks(RUN, message.device)
        phases = torch.full(codes.shape, _PHASE, dtype=torch.uint8, device=message.device)
        tables = tables_of(book().scales, plan.shape, map_, message.device)
        words, lengths = encode_codes(
            codes, phases, table[:, LENGTH], classes, tables, LOG_PHASES, chunk_runs(len(table)), room
        )
        magnitude = codes.abs()
        distances = [
            _mean_distance(size, magnitude, magnitude == k if k < _CENTROIDS else magnitude >= k)
            for k in range(1, _CENTROIDS + 1)
        ]
        return words, lengths, np.array([*distances, 0], np.int8).tobytes()

    def decode(self, parts: list[Tensor], group: Group, key: Key, total: Tensor, add: bool) -> None:
        if not group.values:
            return
        read = self._read(parts, group, total.device)
        table, _ = group.blocks(RUN, total.device)
        place, run = _places(group, total.device)
        phases = torch.full((group.values,), _PHASE, dtype=torch.uint8, device=total.device)
        tables = tables_of(book().scales, read.shape, read.map_, total.device)
        codes, classes, good = decode_codes(
            read.words, read.starts, phases, table[:, LENGTH], tables, LOG_PHASES, chunk_runs(len(table))
        )
        check_decoded(self.method, good)
        distance = torch.from_numpy(np.frombuffer(read.side, np.int8, _CENTROIDS) / _FINENESS).to(total.device)
        distance = torch.cat([distance.new_zeros(1), distance])[codes.abs().clamp(max=_CENTROIDS).to(torch.int64)]
        decoded = ((codes.to(torch.float64) + torch.sign(codes) * distance) * read.steps[run]).to(total.dtype)
        decoded = torch.where(classes[run] == ZEROS, 0.0, decoded)
        decoded = torch.where(classes[run] == NOT_FINITE, float("nan"), decoded).to(total.dtype)
        total[place] = total[place] + decoded if add else decoded

    def squared_error(self, message: Message, group: Group) -> float:
        """What decoding shows: nothing is random."""
        total = torch.zeros(message.numel, device=message.device)
        self.decode(self.encode(message, group, self.plan(message, group), Key()), group, Key(), total, False)
        place, _ = _places(group, message.device)
        error = total[place].to(torch.float64) - message.flat[place].to(torch.float64)
        return float((error * error).sum())


def _places(group: Group, device: torch.device) -> tuple[Tensor, Tensor]:
    """For each value in the group's order: its place in the message's flat values, and its run."""
    table, _ = group.blocks(RUN, device)
    run = torch.repeat_interleave(torch.arange(len(table), device=device), table[:, LENGTH])
    return torch.arange(len(run), device=device) + (table[:, START] - table[:, CODE])[run], run


def _mean_distance(size: Tensor, magnitude: Tensor, chosen: Tensor) -> int:
    """How far values lie above their codes on average, in 1/128 step."""
    if not bool(chosen.any()):
        return 0
    mean = float((size[chosen] - magnitude[chosen]).mean())
    return min(max(round(mean * _FINENESS), -_FINENESS), _FINENESS - 1)
