"""Rounding with a dead zone on a grid, entropy coded. `reference` is the specification."""

import torch
from torch import Tensor

from thinwire.kernels.deadzone import cpu, reference
from thinwire.kernels.deadzone.reference import CENTROIDS, PHASE, REACH, UNIT
from thinwire.kernels.dispatch import operator

__all__ = ["CENTROIDS", "PHASE", "REACH", "UNIT", "deadzone_costs", "deadzone_decode", "deadzone_encode"]


def _deadzone_costs(
    values: Tensor, table: Tensor, inverse: Tensor, classes: Tensor, thresholds: Tensor, lengths: Tensor
) -> Tensor:
    return table.new_empty(table.shape[0])


def _deadzone_encode(
    values: Tensor,
    table: Tensor,
    inverse: Tensor,
    classes: Tensor,
    thresholds: Tensor,
    tables: list[Tensor],
    chunk_runs: int,
    room: int,
) -> tuple[Tensor, Tensor, Tensor]:
    chunks = -(-table.shape[0] // chunk_runs)
    words = table.new_empty((chunks, room), dtype=torch.int16)
    return words, table.new_empty(chunks), table.new_empty((2, CENTROIDS))


def _deadzone_decode(
    words: Tensor,
    starts: Tensor,
    table: Tensor,
    steps: Tensor,
    distances: Tensor,
    tables: list[Tensor],
    chunk_runs: int,
    total: Tensor,
    add: bool,
) -> Tensor:
    return starts.new_empty(starts.shape[0] - 1, dtype=torch.bool)


deadzone_costs = operator(reference.deadzone_costs, cpu.deadzone_costs, _deadzone_costs)
deadzone_encode = operator(reference.deadzone_encode, cpu.deadzone_encode, _deadzone_encode)
deadzone_decode = operator(reference.deadzone_decode, cpu.deadzone_decode, _deadzone_decode, mutates=["total"])
