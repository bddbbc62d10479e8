"""Methods that spend a message's bits where they are worth most: what the bits are, and what each segment weighs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from thinwire.errors import MessageError, SchemeError
from thinwire.schemes.base import Scheme
from thinwire.schemes.group import Group
from thinwire.types import Message

__all__ = [
    "WEIGHT_OCTAVE",
    "BudgetScheme",
    "check_number",
    "half_log2",
    "segment_levels",
]

WEIGHT_OCTAVE = 128
_MAPPING, _DIGITS = "mapping-", 16
_NAMED = re.compile(f"{_MAPPING}[0-9a-f]{{{_DIGITS}}}")
_FEWEST, _MOST = 0.25, 12.0  # bits
_ALIGNMENT = 16  # of a frame's header and parts, in bytes
_STARTED = 48  # bytes that codes may take in any case, and 4 a segment
_BEGUN = 4
_WRAPPED = 84  # bytes of a frame's header, without options and segments
_LISTED = 12  # and of a segment, without its name


@dataclass(frozen=True, kw_only=True)
class BudgetScheme(Scheme):
    """One budget for all segments of a group, shared out by their values and weights."""

    bits: float | None = 2.0
    weighting: str | Mapping[str, float] | tuple[tuple[str, float], ...] = "tensor"

    elastic: ClassVar[bool] = True
    number: ClassVar[str] = "bits"
    stepped: ClassVar[bool] = False  # a step may stand in for bits, which are then None

    def __post_init__(self) -> None:
        if self.bits is not None or not self.stepped:
            object.__setattr__(self, "bits", check_number(self.method, "bits", self.bits, _FEWEST, _MOST))
        object.__setattr__(self, "weighting", _check_weighting(self.method, self.weighting))

    def options(self) -> dict[str, Any]:
        weighting = dict(self.weighting) if isinstance(self.weighting, tuple) else self.weighting
        return {**super().options(), "weighting": weighting}

    def on_wire(self) -> Scheme:
        """A mapping is named by its digest alone: what its weights are travels beside the codes."""
        if isinstance(self.weighting, str):
            return self
        digest = hashlib.sha256(json.dumps(self.weighting).encode()).hexdigest()
        return dataclasses.replace(self, weighting=_MAPPING + digest[:_DIGITS])

    @property
    def label(self) -> str:
        weighted = f"-{self.weighting}" if self.weighting == "global" else ""
        return f"{self.method}{weighted}-{self.bits:g}" if self.bits is not None else f"{self.method}{weighted}"

    def weight_bytes(self, group: Group) -> int:
        """Bytes that the weights take on the wire."""
        return 0 if self.weighting == "global" else 2 * len(group.places)

    def code_bytes(self, group: Group, bits: float, scales: int) -> int:
        """Most bytes that codes may take: what `bits` leaves after `scales` bytes and the frame's header.

        Names are not counted. In any case half of `bits`, and 48 bytes and 4 a segment.
        """
        bytes_ = int(bits * group.values) // 8
        left = max(bytes_ - _header_bytes(self, group) - _aligned(scales), bytes_ // 2) // _ALIGNMENT * _ALIGNMENT
        return max(left, _STARTED + _BEGUN * len(group.places))

    def weights(self, message: Message, group: Group, levels: np.ndarray) -> np.ndarray:
        """Each segment's weight, int16 `[segments]`, in 1/128 octaves.

        Args:
            levels: log2 of each segment's root mean square, float64 `[segments]`.
        Raises:
            MessageError: a segment that the mapping does not name.
            SchemeError: the scheme was read from a frame, which does not hold the mapping.
        """
        if self.weighting == "global":
            return np.zeros(len(group.places), np.int16)
        if self.weighting == "tensor":
            return np.rint(levels * WEIGHT_OCTAVE).astype(np.int16)
        if isinstance(self.weighting, str):
            raise SchemeError(f"{self.method}: frames do not hold the mapping {self.weighting!r}: encode with your own")
        known, names = dict(self.weighting), [message.layout[place.segment].name for place in group.places]
        if missing := [name for name in names if name not in known]:
            raise MessageError(f"{self.method}: its weighting has no weight for tensor {missing[0]!r}")
        return np.rint(np.log2([known[name] for name in names]) * WEIGHT_OCTAVE).astype(np.int16)

    def weights_to_send(self, weights: np.ndarray) -> bytes:
        return b"" if self.weighting == "global" else weights.astype("<i2").tobytes()

    def weights_received(self, octets: bytes, group: Group) -> np.ndarray:
        """The inverse of weights_to_send."""
        return np.frombuffer(octets, "<i2") if octets else np.zeros(len(group.places), np.int16)


@functools.lru_cache(maxsize=256)
def _header_bytes(scheme: Scheme, group: Group) -> int:
    """Bytes that a frame of one group takes for its header, names not counted."""
    options = json.dumps(scheme.on_wire().options(), separators=(",", ":"))
    return _aligned(_WRAPPED + len(options) + _LISTED * len(group.places))


def _aligned(size: int) -> int:
    """Bytes that a part of this size takes in a frame."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def half_log2(squares: np.ndarray) -> np.ndarray:
    """Half the logarithm of positive numbers: that of a number times 4^k is exactly k more."""
    mantissa, exponent = np.frexp(squares)
    odd = exponent & 1
    return 0.5 * np.log2(mantissa * (1 + odd)) + (exponent - odd) // 2


def segment_levels(owner: np.ndarray, squares: np.ndarray, counts: np.ndarray, segments: int) -> np.ndarray:
    """log2 of each segment's root mean square, 0 where it has no energy.

    Args:
        owner: each block's segment, int64 `[blocks]`.
        squares: each block's sum of squares, float64 `[blocks]`; 0 where it is not finite.
        counts: each block's values, int64 `[blocks]`; 0 where it is not finite.
    """
    found, values = np.bincount(owner, squares, segments), np.bincount(owner, counts, segments)
    return np.where(found > 0, half_log2(np.where(found > 0, found, 1.0) / np.maximum(values, 1)), 0.0)


def check_number(method: str, option: str, value: object, least: float, most: float) -> float:
    """The value as a float, or SchemeError unless it is a number within [least, most]."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not least <= value <= most:
        raise SchemeError(f"{method}: {option} must be a number in {least:g}..{most:g}, got {value!r}")
    return float(value)


def _check_weighting(method: str, weighting: object) -> str | tuple[tuple[str, float], ...]:
    if isinstance(weighting, str) and (weighting in ("tensor", "global") or _NAMED.fullmatch(weighting)):
        return weighting
    try:
        pairs = dict(weighting) if isinstance(weighting, (Mapping, tuple)) else {}
    except (TypeError, ValueError):  # a tuple of something other than pairs
        pairs = {}
    if not pairs or not all(isinstance(name, str) for name in pairs):
        raise SchemeError(
            f"{method}: weighting must be 'tensor', 'global' or a mapping from names to weights, got {weighting!r}"
        )
    checked = {
        name: check_number(method, f"the weight of {name!r}", pairs[name], 2.0**-100, 2.0**100) for name in pairs
    }
    return tuple(sorted(checked.items()))
