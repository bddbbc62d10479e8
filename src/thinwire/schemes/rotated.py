"""Rotated: short rotated blocks, each with as many levels as its energy is worth; no entropy coder."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import MalformedFrameError
from thinwire.kernels import dequantize_rotated, pack, packed_bytes, quantize_rotated, unpack
from thinwire.kernels.dither import run_energies
from thinwire.kernels.gaussian import MEAN_SQUARED_ERROR
from thinwire.schemes.base import Plan
from thinwire.schemes.budget import WEIGHT_OCTAVE, BudgetScheme, half_log2, segment_levels
from thinwire.schemes.grid import OCTAVE, powers
from thinwire.schemes.group import Group
from thinwire.schemes.rotation import Cut, cut
from thinwire.types import Key, Message, Traits

__all__ = ["Rotated"]

_BLOCK = 256
_ROUNDS = 2  # of the transform: after one, a block with a single large value is far from normal
_HEAD = struct.Struct("<i")
_SIZE_OCTAVE = 256  # block sizes travel as 256 log2(size) + 32768
_ZERO, _NOT_FINITE, _NO_LOG = 0, 65535, 32768

_LEVELS = np.array(sorted(MEAN_SQUARED_ERROR))
_GAINS = np.array([1 / (1 - MEAN_SQUARED_ERROR[s]) for s in _LEVELS])  # by which E[z Q(z)] falls short of 1
_FULL = -83
_MORE = np.array([107, 253, 365, 435, 506, 616, 647, 747, 877, 990, 1122, 1238, 1372, 1489, 1664])
"""Log sizes relative to the message's, in 1/256 octaves: from _FULL on all signs of a block are sent, from _MORE[i] on
_LEVELS[i + 1] levels. One more bit is spent where it takes most error away: err(s) = gain - 1, and sending fraction p
of the signs leaves gain / p - 1, so with price 1 a bit _FULL = -128 log2(gain(2)) and, for neighbours s < t,
_MORE = -128 log2((err(s) - err(t)) / (bits(t) - bits(s)))."""


@dataclass(frozen=True, kw_only=True)
class _RotatedPlan(Plan):
    """Each block's log size and the price that they share. Scope: message.

    Args:
        sizes: as they travel, int64 `[blocks]`.
        exact: the root of each block's mean square over its coordinates, float64 `[blocks]`.
        weights: in 1/128 octaves, int16 `[segments]`.
        price: in 1/256 octaves of size.
    """

    sizes: np.ndarray
    exact: np.ndarray
    weights: np.ndarray
    price: int


class _Sent:
    """What is sent of blocks: the first `counts` coordinates of each, rounded to _LEVELS[which] levels.

    Args:
        relative: each block's log size less the price and its weight, int64 `[blocks]`.
        alive: whether it has any energy and is finite.
        coordinates: each block's, int64 `[blocks]`.
    """

    def __init__(self, relative: np.ndarray, alive: np.ndarray, coordinates: np.ndarray) -> None:
        self.which = np.searchsorted(_MORE, relative, side="right")
        short = np.clip(relative - _FULL, -8 * _SIZE_OCTAVE, 0)
        fraction = np.floor(256 * powers(short * (OCTAVE // _SIZE_OCTAVE))).astype(np.int64)
        self.counts = np.where(alive, (coordinates * fraction + 255) >> 8, 0)

    def totals(self, times: np.ndarray | None = None) -> list[tuple[int, int]]:
        """How many codes there are of each level count, ascending, as (codes, levels)."""
        counts = self.counts if times is None else self.counts * times
        return list(zip(np.bincount(self.which, counts, len(_LEVELS)).astype(int).tolist(), _LEVELS.tolist()))

    def rows(self, blocks: Cut) -> Tensor:
        """For quantize_rotated: codes by level count, in the order of blocks."""
        order = np.argsort(self.which.astype(np.uint8), kind="stable")  # by radix
        counts, place = self.counts[order], np.empty_like(self.counts)
        place[order] = np.cumsum(counts) - counts
        first = torch.cumsum(blocks.counts, 0) - blocks.counts
        rest = [torch.from_numpy(column).to(first.device) for column in (self.counts, place, _LEVELS[self.which])]
        return torch.stack([first, *rest], dim=1)


def _bytes_of(totals: list[tuple[int, int]]) -> int:
    return sum(packed_bytes(codes, levels) for codes, levels in totals)


@dataclass(frozen=True, kw_only=True)
class Rotated(BudgetScheme):
    """Blocks of 256 values, rotated twice, each rounded to as many normal levels as its energy is worth.

    Segments of a message that share this scheme share one price of a bit, times a weight for each segment (reverse
    water-filling): where a block is worth less than a bit a value, only so many of its rotated signs are sent, scaled
    up. All-zero blocks decode to exact zeros; a block with a non-finite value decodes to NaN.

    Args:
        bits: per value on the wire, 0.25 to 12; higher => more bits, more accurate. Beyond 8 none are used.
        weighting: as Dithered's.
    Raises:
        SchemeError: an option out of its range.
        MessageError (encode): a tensor that the mapping does not name.
    Error: a block's energy times D / (1 - D), D the mean squared error of its levels on N(0, 1); where a fraction p of
        its signs is sent, times pi / (2 p) - 1. Bias: its squared norm is below 0.3% of the values' (2.5%
        in a rest of few values); that much only where one value is most of a block.
    Bits per value: at most `bits`, everything but names counted, where half of them pays for headers and block sizes
        (1/16 of a bit); at 2 bits and one tensor: from 1,216 values on.
    References: rotation and scale as EDEN's (Vargaftik et al. 2022, arXiv 2108.08842); reverse water-filling: Cover and
        Thomas 2006, section 10.3.3.
    """

    method: ClassVar[str] = "rotated"

    @property
    def traits(self) -> Traits:
        return Traits(unbiased=False, nearly_unbiased=True, joint=True)

    def _side_bytes(self, group: Group) -> int:
        blocks = cut(group, _BLOCK, torch.device("cpu"))
        return _HEAD.size + self.weight_bytes(group) + 2 * len(blocks.table)

    def part_bytes(self, group: Group) -> Mapping[str, int]:
        """Both are 0 without values; see `code_bytes`."""
        if not group.values:
            return {"scales": 0, "codes": 0}
        assert self.bits is not None
        scales = self._side_bytes(group)
        return {"scales": scales, "codes": self.code_bytes(group, self.bits, scales)}

    def plan(self, message: Message, group: Group) -> Plan | None:
        blocks = cut(group, _BLOCK, message.device)
        energies = run_energies(message.flat, blocks.table)[:, 0].cpu().numpy()
        coordinates = blocks.counts.cpu().numpy()
        finite, exact = ~np.isnan(energies), np.sqrt(energies / coordinates)
        squares = np.where(finite, energies, 0.0)
        loud = squares > 0
        logs = np.rint(_SIZE_OCTAVE * half_log2(np.where(loud, squares / coordinates, 1.0))).astype(np.int64) + _NO_LOG
        sizes = np.where(finite, np.where(loud, np.maximum(logs, _ZERO), _ZERO), _NOT_FINITE)
        owner = blocks.owner.cpu().numpy()
        values = blocks.table[:, 1].cpu().numpy() * finite
        levels = segment_levels(owner, squares, values, len(group.places))
        weights = self.weights(message, group, levels)
        price = _price(sizes, weights[owner], coordinates, self.part_bytes(group)["codes"])
        return _RotatedPlan(sizes=sizes, exact=exact, weights=weights, price=price)

    def encode(self, message: Message, group: Group, plan: Plan | None, key: Key) -> list[Tensor]:
        assert isinstance(plan, _RotatedPlan)
        if not group.values:
            return [torch.empty(0, dtype=torch.uint8, device=message.device)] * 2
        blocks = cut(group, _BLOCK, message.device)
        sent = _sent(plan.sizes, plan.weights, plan.price, blocks)
        keys = group.place_keys(key, message.device)[blocks.owner]
        codes, _, _ = quantize_rotated(message.flat, blocks.table, keys, _ROUNDS, sent.rows(blocks))
        split = codes.split([count for count, _ in sent.totals()])
        packed = [pack(own, levels) for own, levels in zip(split, _LEVELS.tolist()) if own.numel()]
        head = _HEAD.pack(plan.price) + self.weights_to_send(plan.weights) + plan.sizes.astype("<u2").tobytes()
        scales = torch.frombuffer(bytearray(head), dtype=torch.uint8).to(message.device)
        return [scales, torch.cat([torch.empty(0, dtype=torch.uint8, device=message.device), *packed])]

    def decode(self, parts: list[Tensor], group: Group, key: Key, total: Tensor, add: bool) -> None:
        if not group.values:
            return
        blocks, octets = cut(group, _BLOCK, total.device), parts[0].cpu().numpy().tobytes()
        weighed = _HEAD.size + self.weight_bytes(group)
        if len(octets) != self._side_bytes(group):
            raise MalformedFrameError(f"frame: {len(octets)} bytes of rotated scales cannot be")
        (price,) = _HEAD.unpack(octets[: _HEAD.size])
        weights = self.weights_received(octets[_HEAD.size : weighed], group)
        sizes = np.frombuffer(octets, "<u2", offset=weighed).astype(np.int64)
        sent = _sent(sizes, weights, price, blocks)
        if _bytes_of(sent.totals()) != parts[1].numel():
            raise MalformedFrameError(f"frame: {parts[1].numel()} bytes of rotated codes do not fit the block sizes")
        codes, start = [], 0
        for count, levels in sent.totals():
            stop = start + packed_bytes(count, levels)
            codes.append(unpack(parts[1][start:stop], levels, count))
            start = stop
        scales = torch.from_numpy(_scales(sizes, sent, blocks)).to(total.device)
        keys = group.place_keys(key, total.device)[blocks.owner]
        dequantize_rotated(torch.cat(codes), sent.rows(blocks), scales, blocks.table, keys, _ROUNDS, total, add)

    def squared_error(self, message: Message, group: Group) -> float:
        if not group.values:
            return 0.0
        blocks, plan = cut(group, _BLOCK, message.device), self.plan(message, group)
        assert isinstance(plan, _RotatedPlan)
        if np.isnan(plan.exact).any():
            return float("nan")
        sent, coordinates = _sent(plan.sizes, plan.weights, plan.price, blocks), blocks.counts.cpu().numpy()
        found, exact = sent.counts > 0, np.where(plan.exact > 0, plan.exact, 1.0)
        longer = np.where(found, _decoded(plan.sizes) / exact, 0.0)  # what is decoded, along the block
        across = np.where(found, _GAINS[sent.which] * coordinates / np.maximum(sent.counts, 1) - 1, 0.0)
        kept = blocks.table[:, 1].cpu().numpy() / coordinates  # an error across is spread over padding, too
        errors = plan.exact**2 * coordinates * ((longer - 1) ** 2 + longer**2 * across * kept)
        return float(errors.sum())


def _sent(sizes: np.ndarray, weights: np.ndarray, price: int, blocks: Cut) -> _Sent:
    owned = (2 * weights.astype(np.int64))[blocks.owner.cpu().numpy()]
    return _Sent(sizes - owned - price, _alive(sizes), blocks.counts.cpu().numpy())


def _alive(sizes: np.ndarray) -> np.ndarray:
    return (sizes != _ZERO) & (sizes != _NOT_FINITE)


def _decoded(sizes: np.ndarray) -> np.ndarray:
    """float64 `[blocks]`, from what travels."""
    return np.where(_alive(sizes), powers((sizes - _NO_LOG) * (OCTAVE // _SIZE_OCTAVE)), 0.0)


def _scales(sizes: np.ndarray, sent: _Sent, blocks: Cut) -> np.ndarray:
    """What the levels are multiplied by, float32 `[blocks]`."""
    scaled = _GAINS[sent.which] * blocks.counts.cpu().numpy() / np.maximum(sent.counts, 1)
    found = _decoded(sizes) * scaled
    with np.errstate(over="ignore"):
        return np.where(sizes == _NOT_FINITE, np.nan, found).astype(np.float32)


def _price(sizes: np.ndarray, weights: np.ndarray, coordinates: np.ndarray, most: int) -> int:
    """The least price, in 1/256 octaves of size, at which the codes take at most `most` bytes."""
    assert WEIGHT_OCTAVE * 2 == _SIZE_OCTAVE
    alive = _alive(sizes)
    if not alive.any():
        return 0
    relative = (sizes - 2 * weights.astype(np.int64))[alive]
    low, high = int(relative.min()) - int(_MORE[-1]), int(relative.max()) - _FULL + 8 * _SIZE_OCTAVE
    kinds, times = np.unique((2 * _BLOCK * relative + coordinates[alive]).astype(np.int32), return_counts=True)
    relative, coordinates = np.divmod(kinds.astype(np.int64), 2 * _BLOCK)
    while low < high:
        price = (low + high) // 2
        sent = _Sent(relative - price, np.ones(len(times), bool), coordinates)
        low, high = (low, price) if _bytes_of(sent.totals(times)) <= most else (price + 1, high)
    return high
