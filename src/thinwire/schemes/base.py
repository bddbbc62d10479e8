"""What a scheme is: a frozen description of a method, and pure functions plan, encode and decode."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from thinwire.errors import SchemeError
from thinwire.schemes.group import Group
from thinwire.types import Key, Message, Traits

__all__ = ["Plan", "Scheme", "check_integer"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What was decided before a code is written; each kind of method has its own."""


@dataclass(frozen=True, kw_only=True)
class Scheme(ABC):
    """A method by name. Equal schemes encode alike; segments of one scheme and dtype are encoded as one group."""

    method: ClassVar[str]
    number: ClassVar[str] = "levels"  # the option that a number at the end of the short name sets
    elastic: ClassVar[bool] = False  # parts may be shorter than `part_bytes` says; otherwise they are exactly that

    @property
    @abstractmethod
    def traits(self) -> Traits: ...

    @property
    def label(self) -> str:
        """The short name that `from_spec` reads, such as "orq-9"."""
        return self.method

    def options(self) -> dict[str, Any]:
        """All options by name, as JSON has them; those of `on_wire` are what the frame's header carries."""
        return dataclasses.asdict(self)

    def on_wire(self) -> Scheme:
        """The scheme that a frame's header names: it decodes as this one does, and may lack what only encoders need."""
        return self

    @abstractmethod
    def part_bytes(self, group: Group) -> Mapping[str, int]:
        """The parts of a group's frame in order, and the most bytes that each can take, from the layout alone."""

    @abstractmethod
    def plan(self, message: Message, group: Group) -> Plan | None:
        """Decide what must be known before a code is written (None: nothing)."""

    @abstractmethod
    def encode(self, message: Message, group: Group, plan: Plan | None, key: Key) -> list[Tensor]:
        """Encode the group's values as one contiguous tensor a part, in the order of `part_bytes`."""

    @abstractmethod
    def decode(self, parts: list[Tensor], group: Group, key: Key, total: Tensor, add: bool) -> None:
        """Write (or add) the decoded values to their places in `total`, float32 or float64 `[message values]`.

        Args:
            parts: uint8, 1-D, contiguous, as many bytes as the header says (checked against `part_bytes`: at most that
                many if `elastic`, exactly that many otherwise).
            key: the encoder's, for methods whose receiver draws the same random numbers.
        """

    @abstractmethod
    def squared_error(self, message: Message, group: Group) -> float:
        """Expected sum of (x - Q(x))^2 over the group, in closed form; NaN if a value is not finite."""


def check_integer(method: str, option: str, value: object, least: int, most: int | None = None) -> None:
    """Raise SchemeError unless value is an int within [least, most]."""
    wanted = f"an integer of at least {least}" if most is None else f"an integer in {least}..{most}"
    good = isinstance(value, int) and not isinstance(value, bool) and value >= least
    if not good or (most is not None and isinstance(value, int) and value > most):
        raise SchemeError(f"{method}: {option} must be {wanted}, got {value!r}")
