"""Subtractive dither on a grid, entropy coded. `reference` is the specification."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import operator
from thinwire.kernels.dither import cpu, reference
from thinwire.kernels.dither.reference import NO_ENERGY

__all__ = ["NO_ENERGY", "dither_costs", "dither_decode", "dither_encode", "run_energies", "settle_classes"]


def _run_energies(values: Tensor, table: Tensor) -> Tensor:
    return values.new_empty((table.shape[0], 2), dtype=torch.float64)


def _settle_classes(positions: Tensor, chunk_runs: int) -> Tensor:
    return positions.new_empty(positions.shape, dtype=torch.uint8)


def _dither_costs(
    values: Tensor, table: Tensor, inverse: Tensor, classes: Tensor, lengths: Tensor, cells: Tensor
) -> Tensor:
    return table.new_empty(table.shape[0])


def _dither_encode(
    values: Tensor,
    table: Tensor,
    keys: Tensor,
    inverse: Tensor,
    classes: Tensor,
    tables: list[Tensor],
    chunk_runs: int,
    room: int,
    shift: int = 0,
) -> tuple[Tensor, Tensor]:
    chunks = -(-table.shape[0] // chunk_runs)
    return table.new_empty((chunks, room), dtype=torch.int16), table.new_empty(chunks)


def _dither_decode(
    words: Tensor,
    starts: Tensor,
    table: Tensor,
    keys: Tensor,
    steps: Tensor,
    tables: list[Tensor],
    chunk_runs: int,
    total: Tensor,
    add: bool,
    shift: int = 0,
) -> Tensor:
    return starts.new_empty(starts.shape[0] - 1, dtype=torch.bool)


run_energies = operator(reference.run_energies, cpu.run_energies, _run_energies)
settle_classes = operator(reference.settle_classes, cpu.settle_classes, _settle_classes)
dither_costs = operator(reference.dither_costs, cpu.dither_costs, _dither_costs)
dither_encode = operator(reference.dither_encode, cpu.dither_encode, _dither_encode)
dither_decode = operator(reference.dither_decode, cpu.dither_decode, _dither_decode, mutates=["total"])
