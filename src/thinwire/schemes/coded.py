"""Methods that code a message's values on one grid by the entropy coder: what travels, and how long it may be."""

from __future__ import annotations

import json
import struct
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import MalformedFrameError, MessageError, SchemeError
from thinwire.kernels.entropy.book import CLASSES, MAPS, SHAPES, Tables, book
from thinwire.kernels.entropy.lengths import map_bits
from thinwire.kernels.entropy.reference import ROOM, RUN
from thinwire.schemes.base import Plan, Scheme
from thinwire.schemes.grid import OCTAVE, WEIGHT_OCTAVE, Energies, chunk_runs, segment_steps
from thinwire.schemes.group import Group
from thinwire.schemes.rate import find_step
from thinwire.types import Key, Message

__all__ = ["CodedScheme", "GridPlan", "check_decoded", "check_number", "tables_of"]

_HEAD = struct.Struct("<iBBH")
_STATES = 8 * 24  # bits that a chunk takes beyond its codes, on average
_INDEX = 4  # bytes of a chunk's length
_FEWEST, _MOST = 0.25, 12.0  # bits
_STARTED = 48  # bytes that a message may take beyond its bits, and a segment
_BEGUN = 4
_WRAPPED = 136  # bytes that a frame takes for itself, without options and names, and for a segment
_LISTED = 10


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


@dataclass(frozen=True, kw_only=True)
class CodedScheme(Scheme):
    """Runs of 256 values by scale class, one grid for all segments of a group; see the subclasses for the options."""

    bits: float | None = 2.0
    weighting: str | Mapping[str, float] | tuple[tuple[str, float], ...] = "tensor"

    elastic: ClassVar[bool] = True
    number: ClassVar[str] = "bits"
    side_bytes: ClassVar[int] = 0  # that the method adds to its scales

    def __post_init__(self) -> None:
        if self.bits is not None:
            object.__setattr__(self, "bits", check_number(self.method, "bits", self.bits, _FEWEST, _MOST))
        object.__setattr__(self, "weighting", _check_weighting(self.method, self.weighting))

    def options(self) -> dict[str, Any]:
        weighting = dict(self.weighting) if isinstance(self.weighting, tuple) else self.weighting
        return {**super().options(), "weighting": weighting}

    @property
    def label(self) -> str:
        weighted = f"-{self.weighting}" if self.weighting == "global" else ""
        return f"{self.method}{weighted}-{self.bits:g}" if self.bits is not None else f"{self.method}{weighted}"

    @property
    def _rate(self) -> float:
        return _MOST + 4 if self.bits is None else self.bits

    def part_bytes(self, group: Group) -> Mapping[str, int]:
        """Both are 0 without values.

        Otherwise the codes may take what `bits` leaves after the scales and what a frame takes for itself (names not
        counted), where that is at most an eighth of it; in smaller messages 7/8 of it, 48 bytes and 4 a segment.
        """
        if not group.values:
            return {"scales": 0, "codes": 0}
        segments = len(group.places)
        scales = _HEAD.size + self.side_bytes + (0 if self.weighting == "global" else 2 * segments)
        started = _STARTED + _BEGUN * segments
        wrapped = started + scales + _WRAPPED + len(json.dumps(self.options())) + _LISTED * segments
        bytes_ = int(self._rate * group.values) // 8
        return {"scales": scales, "codes": bytes_ + started - min(wrapped, bytes_ // 8)}

    @abstractmethod
    def _shape(self, energies: Energies) -> int:
        """Which of the book's laws suits the values."""

    @abstractmethod
    def _curve(self, shape: int) -> np.ndarray:
        """Bits a value that the book expects for each class, float64 `[CLASSES]`."""

    @abstractmethod
    def _expected_bits(self, message: Message, group: Group, plan: GridPlan, classes: Tensor) -> float:
        """What the values' codes take, and what one should allow for chance."""

    @abstractmethod
    def _code(
        self, message: Message, group: Group, plan: GridPlan, classes: Tensor, map_: int, key: Key, room: int
    ) -> tuple[Tensor, Tensor, bytes]:
        """The chunks' words and lengths, as kernels/entropy's encode_codes returns them, and `side_bytes` bytes."""

    def plan(self, message: Message, group: Group) -> GridPlan:
        energies, segments = Energies.of(message, group), len(group.places)
        weights, shape = self._weights(message, group, energies), self._shape(energies)
        if not energies.loud.any():
            return GridPlan(step=0, weights=np.zeros(segments, np.int16), shape=shape, energies=energies)

        def measure(step: int) -> float:
            plan = GridPlan(step=step, weights=weights, shape=shape, energies=energies)
            classes = energies.classes(step, weights)
            sides = map_bits(classes.numpy(), chunk_runs(len(classes))).min() + _sides(len(classes))
            return self._expected_bits(message, group, plan, classes) + float(sides)

        budget = 8.0 * self.part_bytes(group)["codes"]
        step = self._given_step(energies, weights)
        if step is None:
            step = find_step(energies, weights, self._curve(shape), budget, measure)
        return GridPlan(step=step, weights=weights, shape=shape, energies=energies)

    def _given_step(self, energies: Energies, weights: np.ndarray) -> int | None:
        return None

    def _weights(self, message: Message, group: Group, energies: Energies) -> np.ndarray:
        """int16 `[segments]`, in 1/128 octaves."""
        if self.weighting == "global":
            return np.zeros(len(group.places), np.int16)
        if self.weighting == "tensor":
            return np.rint(energies.segment_levels(len(group.places)) * WEIGHT_OCTAVE).astype(np.int16)
        assert isinstance(self.weighting, tuple)
        known, names = dict(self.weighting), [message.layout[place.segment].name for place in group.places]
        if missing := [name for name in names if name not in known]:
            raise MessageError(f"{self.method}: its weighting has no weight for tensor {missing[0]!r}")
        return np.rint(np.log2([known[name] for name in names]) * WEIGHT_OCTAVE).astype(np.int16)

    def encode(self, message: Message, group: Group, plan: Plan | None, key: Key) -> list[Tensor]:
        assert isinstance(plan, GridPlan)
        if not group.values:
            return [torch.empty(0, dtype=torch.uint8)] * 2
        most, step, coarser = self.part_bytes(group)["codes"], plan.step, 0
        while True:
            plan = GridPlan(step=step, weights=plan.weights, shape=plan.shape, energies=plan.energies)
            classes = plan.energies.classes(step, plan.weights)
            map_ = int(map_bits(classes.numpy(), chunk_runs(len(classes))).argmin())
            room = min(2 * RUN * chunk_runs(len(classes)), 2 * group.values + len(classes)) + 2 * ROOM
            words, lengths, side = self._code(message, group, plan, classes.to(message.device), map_, key, room)
            excess = _joined_bytes(lengths) - most
            if excess <= 0:
                break
            coarser = 2 * coarser or 1 + min(int(1.5 * 8 * OCTAVE * excess / group.values), OCTAVE // 8)
            step += coarser  # until a code is hardly more than its class: see _FEWEST
        head = _HEAD.pack(step, plan.shape, map_, 0)
        sent = b"" if self.weighting == "global" else plan.weights.astype("<i2").tobytes()
        scales = torch.frombuffer(bytearray(head + side + sent), dtype=torch.uint8).to(message.device)
        return [scales, _joined(words, lengths)]

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
        weights = np.frombuffer(octets, "<i2", offset=_HEAD.size + self.side_bytes)
        weights = weights if len(weights) else np.zeros(len(group.places), np.int16)
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
    """Bytes of chunks and their lengths; more than can be if one does not exist."""
    index = _INDEX * len(lengths) if len(lengths) > 1 else 0
    return index + 2 * int(lengths.sum()) if int(lengths.min()) >= 0 else 1 << 60


def _joined(words: Tensor, lengths: Tensor) -> Tensor:
    """The chunks back to back, after their lengths if there are several: uint8."""
    room = words.shape[1]
    body = torch.cat([row[room - size :] for row, size in zip(words, lengths.tolist())]).view(torch.uint8)
    return torch.cat([lengths.to(torch.int32).view(torch.uint8), body]) if len(lengths) > 1 else body


def check_number(method: str, option: str, value: object, least: float, most: float) -> float:
    """The value as a float, or SchemeError unless it is a number within [least, most]."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        raise SchemeError(f"{method}: {option} must be a number in {least:g}..{most:g}, got {value!r}")
    return float(value)


def _check_weighting(method: str, weighting: object) -> str | tuple[tuple[str, float], ...]:
    if isinstance(weighting, str) and weighting in ("tensor", "global"):
        return weighting
    pairs = dict(weighting) if isinstance(weighting, (Mapping, tuple)) else {}
    if not pairs or not all(isinstance(name, str) for name in pairs):
        raise SchemeError(
            f"{method}: weighting must be 'tensor', 'global' or a mapping from names to weights, got {weighting!r}"
        )
    checked = {
        name: check_number(method, f"the weight of {name!r}", pairs[name], 2.0**-100, 2.0**100) for name in pairs
    }
    return tuple(sorted(checked.items()))
