"""Methods that code a message's values on one grid by the entropy coder: what travels, and how long it may be."""

from __future__ import annotations

import math
import struct
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import MalformedFrameError
from thinwire.kernels.entropy.book import CLASSES, MAPS, SHAPES, Tables, book
from thinwire.kernels.entropy.lengths import map_bits
from thinwire.kernels.entropy.reference import ROOM, RUN
from thinwire.schemes.base import Plan
from thinwire.schemes.budget import BudgetScheme
from thinwire.schemes.grid import OCTAVE, Energies, chunk_runs, segment_steps
from thinwire.schemes.group import Group
from thinwire.schemes.rate import choose_runs, estimate_bits, find_step, law_bits
from thinwire.types import Key, Message

__all__ = ["CodedScheme", "GridPlan", "check_decoded", "tables_of"]

_HEAD = struct.Struct("<iBBH")
_STATES = 8 * 24  # bits that a chunk takes beyond its codes, on average
_INDEX = 4  # bytes of a chunk's length
_MOST = 16.0  # bits, of a given step
_SAFETY = 1.5  # deviations between what codes are expected to take and what they may
_SHORT, _SHORT_OF_FEW = 0.006, 0.1  # of what codes may take may be left, in messages of so many values and in others
_LARGE = 1 << 17
_REFINEMENTS = 16  # tries at finer steps until no more is left; it takes so many where all values have one size
_CLOSE = OCTAVE // 16  # steps, of which one is too fine: what lies between is a change of class
_NEVER = 1 << 60


@dataclass(frozen=True, kw_only=True)
class GridPlan(Plan):
    """One step for the message, times a weight for each segment. Scope: message.

    Args:
        step: in 1/4096 octaves.
        weights: in 1/128 octaves, int16 `[segments]`.
        shape: which of the book's laws.
        energies: what the runs were planned from.
    """

    step: int
    weights: np.ndarray
    shape: int
    energies: Energies

    @property
    def run_steps(self) -> np.ndarray:
        """float64 `[runs]`."""
        return segment_steps(self.step, self.weights)[self.energies.owner]


class Received(NamedTuple):
    """What a group's parts say.

    Args:
        steps: each run's, float64 `[runs]`.
        shape, map_: which of the book's rows.
        side: the method's own bytes.
        words, starts: as kernels/entropy's decode_codes takes them.
    """

    steps: Tensor
    shape: int
    map_: int
    side: bytes
    words: Tensor
    starts: Tensor


class _Try(NamedTuple):
    """A group encoded at one step.

    Args:
        size: bytes of the joined chunks, `_NEVER` if one does not exist.
    """

    step: int
    classes: Tensor
    map_: int
    words: Tensor
    lengths: Tensor
    side: bytes
    size: int


@dataclass(frozen=True, kw_only=True)
class CodedScheme(BudgetScheme):
    """Runs of 256 values by scale class, one grid for all segments of a group; see the subclasses for the options."""

    side_bytes: ClassVar[int] = 0  # that the method adds to its scales

    @property
    def _rate(self) -> float:
        return _MOST if self.bits is None else self.bits

    def part_bytes(self, group: Group) -> Mapping[str, int]:
        """Both are 0 without values; see `code_bytes`."""
        if not group.values:
            return {"scales": 0, "codes": 0}
        scales = _HEAD.size + self.side_bytes + self.weight_bytes(group)
        return {"scales": scales, "codes": self.code_bytes(group, self._rate, scales)}

    @abstractmethod
    def _shape(self, energies: Energies) -> int:
        """Which of the book's laws suits the values."""

    @abstractmethod
    def _curve(self, shape: int) -> np.ndarray:
        """Bits a value that the book expects for each class, float64 `[CLASSES]`."""

    @abstractmethod
    def _run_bits(self, values: Tensor, table: Tensor, inverse: Tensor, classes: Tensor, shape: int) -> np.ndarray:
        """What the codes of some runs take on average over the random numbers: bits, float64 `[runs]`.

        Args:
            values: a message's, float32.
            table, inverse, classes: the runs' block table, 1 / step (float64), and class (uint8).
        """

    def _chance(self, bits: float, values: int) -> float:
        """The deviation of the codes' length over the random numbers, in bits."""
        return 0.0

    @abstractmethod
    def _code(
        self, message: Message, group: Group, plan: GridPlan, classes: Tensor, map_: int, key: Key, room: int
    ) -> tuple[Tensor, Tensor, bytes]:
        """The chunks' words and lengths, as kernels/entropy's encode_codes returns them, and `side_bytes` bytes."""

    def plan(self, message: Message, group: Group) -> GridPlan:
        energies, segments = Energies.of(message, group), len(group.places)
        weights, shape = self.weights(message, group, energies.segment_levels(segments)), self._shape(energies)
        if not energies.loud.any():
            return GridPlan(step=0, weights=np.zeros(segments, np.int16), shape=shape, energies=energies)

        chosen = choose_runs(len(energies.counts))
        table, owner = group.blocks(RUN, message.device)[0][chosen], energies.owner[chosen]

        def measure(step: int) -> float:
            classes = energies.classes(step, weights)
            beside = energies.beside(step, weights, classes.numpy()) * energies.counts
            law = law_bits(self._curve(shape), classes.numpy(), energies.counts)
            inverse = torch.from_numpy(1 / segment_steps(step, weights)[owner]).to(message.device)
            found = self._run_bits(message.flat, table, inverse, classes[chosen].to(message.device), shape)
            bits, doubt = estimate_bits(law, beside, chosen, found)
            sides = float(map_bits(classes.numpy(), chunk_runs(len(classes))).min() + _sides(len(classes)))
            return bits + sides + _SAFETY * math.hypot(doubt, self._chance(bits, group.values))

        budget = 8.0 * self.part_bytes(group)["codes"]
        step = self._given_step(energies, weights)
        if step is None or measure(step) > budget:
            step = find_step(energies, weights, self._curve(shape), budget, measure)
        return GridPlan(step=step, weights=weights, shape=shape, energies=energies)

    def _given_step(self, energies: Energies, weights: np.ndarray) -> int | None:
        return None

    def encode(self, message: Message, group: Group, plan: Plan | None, key: Key) -> list[Tensor]:
        assert isinstance(plan, GridPlan)
        if not group.values:
            return [torch.empty(0, dtype=torch.uint8)] * 2
        most, least = self.part_bytes(group)["codes"], plan.energies.least_step(plan.weights)
        more = _REFINEMENTS if self.bits is not None else 0
        enough = (1 - (_SHORT if group.values >= _LARGE else _SHORT_OF_FEW)) * most
        step, best, too_fine, coarser, kept = plan.step, None, None, 1, None
        while True:
            found = self._try(message, group, plan, step, kept, key)
            excess = found.size - most
            change = 8 * excess / group.values / (1 - 4**-self._rate) * OCTAVE  # about what a normal law takes for it
            if excess <= 0:
                best = found
            else:
                too_fine = step
            if best is None:
                change = min(1.25 * change, OCTAVE // 8 if found.size == _NEVER else math.inf)
                step += max(coarser, math.ceil(change))
                coarser *= 2  # until a code is hardly more than its class: see code_bytes
                continue
            if too_fine is not None and kept is None and best.step - too_fine <= _CLOSE:
                kept, too_fine = best.classes, best.step - OCTAVE // 4
            finest = least if too_fine is None else max(least, too_fine + 1)
            if not more or best.size >= enough or best.step <= finest:
                break
            step = max(step + math.floor(change), finest) if too_fine is None else (finest + best.step) // 2
            more -= 1
        head = _HEAD.pack(best.step, plan.shape, best.map_, 0)
        octets = bytearray(head + best.side + self.weights_to_send(plan.weights))
        scales = torch.frombuffer(octets, dtype=torch.uint8).to(message.device)
        return [scales, _joined(best.words, best.lengths)]

    def _try(self, message: Message, group: Group, plan: GridPlan, step: int, classes: Tensor | None, key: Key) -> _Try:
        """Encode at a step.

        Args:
            classes: the runs', uint8 `[runs]`, if they are not to be those of the step: between two steps where all
                runs change their class, lengths then have no jump.
        """
        plan = GridPlan(step=step, weights=plan.weights, shape=plan.shape, energies=plan.energies)
        classes = plan.energies.classes(step, plan.weights) if classes is None else classes
        map_ = int(map_bits(classes.numpy(), chunk_runs(len(classes))).argmin())
        room = min(2 * RUN * chunk_runs(len(classes)), 2 * group.values + len(classes)) + 2 * ROOM
        words, lengths, side = self._code(message, group, plan, classes.to(message.device), map_, key, room)
        return _Try(step, classes, map_, words, lengths, side, _joined_bytes(lengths))

    def _read(self, parts: list[Tensor], group: Group, device: torch.device) -> Received:
        """Read both parts.

        Raises:
            MalformedFrameError: parts that no encoder makes.
        """
        octets, runs = parts[0].cpu().numpy().tobytes(), group.count_blocks(RUN)
        chunks = -(-runs // chunk_runs(runs))
        index = _INDEX * chunks if chunks > 1 else 0
        size, wanted = parts[1].numel(), self.part_bytes(group)["scales"]
        if len(octets) != wanted or size < index or size % 2:
            raise MalformedFrameError(f"frame: {self.method} parts of {len(octets)} and {size} bytes cannot be")
        step, shape, map_, reserved = _HEAD.unpack(octets[: _HEAD.size])
        words = parts[1][index:].view(torch.int16)
        lengths = parts[1][:index].view(torch.int32).to(torch.int64) & 0xFFFFFFFF
        if chunks == 1:
            lengths = torch.tensor([len(words)], device=device)
        good = int(lengths.sum()) == len(words) and shape < len(SHAPES) and map_ < len(MAPS) and reserved == 0
        if not good or abs(step) > 1 << 20:
            raise MalformedFrameError(f"frame: {self.method} scales or chunk lengths that no encoder writes")
        weights = self.weights_received(octets[_HEAD.size + self.side_bytes :], group)
        owner = group.blocks(RUN, device)[1]
        steps = torch.from_numpy(segment_steps(step, weights)).to(device)[owner]
        side = octets[_HEAD.size : _HEAD.size + self.side_bytes]
        starts = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
        return Received(steps, shape, map_, side, words, starts)


def check_decoded(method: str, good: Tensor) -> None:
    """Raise MalformedFrameError unless all chunks were what an encoder writes."""
    if not bool(good.all()):
        chunk = int((~good).nonzero()[0])
        raise MalformedFrameError(f"frame: chunk {chunk} of {method} codes is not what an encoder writes")


def tables_of(scales: Tables, shape: int, map_: int, device: torch.device) -> list[Tensor]:
    """What the entropy coder takes, on a device."""
    rows, maps = slice(shape * CLASSES, (shape + 1) * CLASSES), book().maps
    found = [scales.bounds[rows], scales.boundary[rows], scales.limits[rows]]
    return [t.to(device) for t in (*found, maps.bounds[map_], maps.boundary[map_], maps.limits[map_])]


def _sides(runs: int) -> int:
    """Bits that chunks take beyond their codes and classes."""
    chunks = -(-runs // chunk_runs(runs))
    return chunks * (_STATES + (8 * _INDEX if chunks > 1 else 0))


def _joined_bytes(lengths: Tensor) -> int:
    """Bytes of chunks and their lengths; _NEVER if one does not exist."""
    index = _INDEX * len(lengths) if len(lengths) > 1 else 0
    return index + 2 * int(lengths.sum()) if int(lengths.min()) >= 0 else _NEVER


def _joined(words: Tensor, lengths: Tensor) -> Tensor:
    """The chunks back to back, after their lengths if there are several: uint8."""
    room = words.shape[1]
    body = torch.cat([row[room - size :] for row, size in zip(words, lengths.tolist())]).view(torch.uint8)
    return torch.cat([lengths.to(torch.int32).view(torch.uint8), body]) if len(lengths) > 1 else body
