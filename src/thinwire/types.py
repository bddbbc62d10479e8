"""The words every floor shares: traits, segment, message, key."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from thinwire.errors import MessageError

if TYPE_CHECKING:
    from thinwire.schemes import Scheme

__all__ = ["DTYPES", "Key", "Layout", "Message", "Segment", "Traits"]

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a method promises. Tests and collectives ask for traits, never for names."""

    unbiased: bool  # E[Q(x)] = x for every finite x
    nearly_unbiased: bool = False  # E[Q(x)] - x is small beside the error; the method's docstring says how small
    scale_equivariant: bool = True  # Q(2^k x) = 2^k Q(x) for the same random numbers
    exact: bool = False  # Q(x) = x to the bit: nothing is left for error feedback
    joint: bool = False  # what becomes of a segment depends on the others of its message

    @property
    def averages_out(self) -> bool:
        """Whether errors of many ranks and steps average out."""
        return self.unbiased or self.nearly_unbiased


@dataclass(frozen=True, kw_only=True)
class Key:
    """Which random numbers an encoder draws. Positions count within a segment; its `stream` joins the key there.

    Every part is an unsigned integer: `seed` and `step` of 64 bits, `rank` of 32, `stratum` and `shift` of 16.

    `shift` 0 means random numbers of the rank's own. Otherwise all ranks share their uniforms, and this one adds
    shift / 2^16 to each, modulo 1 (rotations stay each rank's own): see `stratified`.
    """

    seed: int = 0
    step: int = 0
    rank: int = 0
    stratum: int = 0
    shift: int = 0

    def __post_init__(self) -> None:
        for name, bits in (("seed", 64), ("step", 64), ("rank", 32), ("stratum", 16), ("shift", 16)):
            value = getattr(self, name)
            if not isinstance(value, int) or not 0 <= value < 1 << bits:
                raise MessageError(f"key: {name} must be an integer in [0, 2^{bits}), got {value!r}")

    def replace(self, **parts: int) -> Key:
        return replace(self, **parts)

    def stratified(self, index: int, ranks: int) -> Key:
        """The key of one of up to 2^15 ranks whose uniforms are spread evenly, each for itself still uniform.

        Of ranks with equal values about as many round up as should, and their errors nearly cancel (rotation sampling:
        Cranley and Patterson 1976; ranks' errors that are correlated on purpose: Suresh et al. 2022, arXiv 2203.04925).
        """
        return replace(self, shift=(2 * index + 1 << 15) // ranks)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One tensor's place in a message: everything but its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    scheme: Scheme
    name: str = ""
    stream: int = 0  # which random numbers, beside the message's key; a parameter's own index, not its position

    @property
    def numel(self) -> int:
        return math.prod(self.shape)


Layout = tuple[Segment, ...]


class Message:
    """An ordered list of segments with their values.

    Args:
        layout: one Segment a tensor.
        values: one 1-D tensor a segment, of the segment's dtype, all on one device. Never written to.
        flat: the same values back to back in float32, where the caller has them already (a DDP bucket).
    """

    def __init__(self, layout: Layout, values: list[Tensor], flat: Tensor | None = None) -> None:
        self.layout = layout
        self.values = values
        self._flat = flat

    @property
    def numel(self) -> int:
        return sum(segment.numel for segment in self.layout)

    @property
    def device(self) -> torch.device:
        return self.values[0].device if self.values else torch.device("cpu")

    @property
    def known_flat(self) -> Tensor | None:
        """What `flat` is, if it has been made already."""
        return self._flat

    @property
    def flat(self) -> Tensor:
        """All values back to back, float32 `[numel]`."""
        if self._flat is None:
            parts = [v.to(torch.float32) for v in self.values]
            self._flat = parts[0] if len(parts) == 1 else torch.cat(parts) if parts else torch.empty(0)
        return self._flat
