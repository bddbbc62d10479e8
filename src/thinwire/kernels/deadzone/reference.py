"""The specification of rounding with a dead zone: codes by what error and bits together cost, decoded to centroids.

A value x of a run whose step is d has the size |x| / d, computed in float64 as |x (1 / d)|, at most 2^30. Its code's
magnitude is k = floor(size + 1/2), or k - 1 where k > 0 and size < (k - 1/2) + thresholds[row, k - 1] + h(i)/32 - 1/64
for the value's place i in the message; runs whose class has low bits, where a bit is worth little, always take k.
h(i) = (2654435769 i mod 2^32) / 2^32 spreads the thresholds, so that values of one size do not all become codes at the
same step. Codes of magnitude 1, 2, and all larger ones have a centroid: how far the sizes that became them lie above
them on average.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.kernels.entropy import reference as entropy
from thinwire.kernels.entropy.book import LOG_PHASES
from thinwire.kernels.table import LENGTH, START

__all__ = [
    "CENTROIDS",
    "FARTHEST",
    "MIDDLE",
    "PHASE",
    "REACH",
    "SPREAD",
    "SPREADER",
    "UNIT",
    "deadzone_costs",
    "deadzone_decode",
    "deadzone_encode",
]

PHASE = (1 << LOG_PHASES) // 2 - 1  # at which the book's cells are those of rounding to the nearest
REACH = 64  # larger codes cost as this one does
CENTROIDS = 3  # of codes 1, 2, and all larger ones
FARTHEST = 2.0**30
SPREADER = 0x9E3779B9  # 2^32 over the golden ratio: consecutive places spread evenly
SPREAD = 2.0**-37  # 1/32 step for 2^32
MIDDLE = 2.0**-6  # of 0 .. 1/32 step
UNIT = 1 << 16  # of a step, for distances from codes


def _spread(table: Tensor) -> tuple[Tensor, Tensor]:
    """For each value of the runs in order: its run, and its place in the flat values."""
    run = torch.repeat_interleave(torch.arange(len(table), device=table.device), table[:, LENGTH])
    within = torch.arange(len(run), device=table.device) - (torch.cumsum(table[:, LENGTH], 0) - table[:, LENGTH])[run]
    return run, table[run, START] + within


def _rows(classes: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    number = classes.to(torch.int64) - entropy.SCALED
    low_bits = torch.clamp(-torch.div(rows - 1 - number, 4, rounding_mode="floor"), min=0)
    return torch.clamp(number - 4 * low_bits, min=0), low_bits


def _rounded(
    values: Tensor, table: Tensor, inverse: Tensor, classes: Tensor, thresholds: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """For each value of the runs in order: whether it is negative, its size, and the magnitude of its code."""
    run, place = _spread(table)
    row, low_bits = _rows(classes, len(thresholds))
    scaled = torch.where((classes >= entropy.SCALED)[run], values[place].to(torch.float64) * inverse[run], 0.0)
    size = scaled.abs().clamp(max=FARTHEST)
    nearest = torch.floor(size + 0.5)
    above = thresholds[row[run], (nearest.to(torch.int64) - 1).clamp(0, REACH - 1)]
    above = above + (place * SPREADER & 0xFFFFFFFF).to(torch.float64) * SPREAD - MIDDLE
    smaller = (low_bits == 0)[run] & (nearest > 0) & (size < (nearest - 0.5) + above)
    return scaled < 0, size, nearest.to(torch.int64) - smaller.to(torch.int64)


def deadzone_costs(
    values: Tensor, table: Tensor, inverse: Tensor, classes: Tensor, thresholds: Tensor, lengths: Tensor
) -> Tensor:
    """Sum what the codes of each run's values cost.

    Args:
        values: float32 `[values]`, a message's flat values.
        table: block table of the runs, int64 `[runs, 4]`, up to 256 values each.
        inverse: float64 `[runs]`, 1 / the run's step.
        classes: uint8 `[runs]`; values of classes 0 and 1 cost nothing.
        thresholds: float64 `[rows, 64]`.
        lengths: int32 `[more, 65]`: the cost of the codes 0 .. 64, and of all beyond, in 1/1024 bits; by row, then by
            class for those with low bits; of classes beyond, each four cost as the last four do.
    Returns:
        1/1024 bits, low bits (1024 each) included, int64 `[runs]`.
    """
    run, _ = _spread(table)
    _, low_bits = _rows(classes, len(thresholds))
    _, _, code = _rounded(values, table, inverse, classes, thresholds)
    shifted = (code >> low_bits[run]).clamp(max=REACH)
    cost_row, _ = _rows(classes, len(lengths))
    cost = lengths[cost_row[run], shifted].to(torch.int64) + 1024 * low_bits[run]
    cost = torch.where((classes >= entropy.SCALED)[run], cost, 0)
    return torch.zeros_like(table[:, LENGTH]).index_add(0, run, cost)


def deadzone_encode(
    values: Tensor,
    table: Tensor,
    inverse: Tensor,
    classes: Tensor,
    thresholds: Tensor,
    tables: Sequence[Tensor],
    chunk_runs: int,
    room: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """Quantize values and encode their codes.

    Args:
        values, table, inverse, classes, thresholds: as in deadzone_costs.
        tables, chunk_runs, room: as in kernels/entropy's encode_codes, with 32 phases.
    Returns:
        As encode_codes; then, for codes of magnitude 1, 2, and all larger ones, how many there are, and the sum of how
        far their sizes lie above them, each rounded to 1/65536 step: int64 `[2, 3]`.
    """
    negative, size, magnitude = _rounded(values, table, inverse, classes, thresholds)
    codes = torch.where(negative, -magnitude, magnitude).to(torch.int32)
    phases = torch.full(codes.shape, PHASE, dtype=torch.uint8, device=codes.device)
    coded = entropy.encode_codes(codes, phases, table[:, LENGTH], classes, tables, LOG_PHASES, chunk_runs, room)
    distance = torch.floor((size - magnitude) * UNIT + 0.5).to(torch.int64)
    which = magnitude.clamp(max=CENTROIDS)
    sums = torch.stack([torch.ones_like(distance), distance])
    found = torch.zeros(2, CENTROIDS + 1, dtype=torch.int64, device=codes.device).index_add(1, which, sums)
    return *coded, found[:, 1:].contiguous()


def deadzone_decode(
    words: Tensor,
    starts: Tensor,
    table: Tensor,
    steps: Tensor,
    distances: Tensor,
    tables: Sequence[Tensor],
    chunk_runs: int,
    total: Tensor,
    add: bool,
) -> Tensor:
    """Decode what deadzone_encode returned and write (or add) each value to its place in `total`, in place.

    Args:
        words, starts, tables, chunk_runs: as in kernels/entropy's decode_codes.
        table: as in deadzone_costs.
        steps: float64 `[runs]`.
        distances: float64 `[4]`, added to the codes of magnitude 0 (where it is 0), 1, 2, and larger, away from zero.
        total: float32 or float64 `[values]`.
        add: add to total instead of overwriting.
    Returns:
        Whether each chunk was what an encoder writes, bool `[chunks]`; values of one that was not are undefined.
    """
    run, place = _spread(table)
    phases = torch.full(run.shape, PHASE, dtype=torch.uint8, device=total.device)
    codes, classes, good = entropy.decode_codes(words, starts, phases, table[:, LENGTH], tables, LOG_PHASES, chunk_runs)
    distance = distances[codes.abs().clamp(max=CENTROIDS).to(torch.int64)]
    decoded = ((codes.to(torch.float64) + torch.sign(codes) * distance) * steps[run]).to(total.dtype)
    class_ = classes[run]
    decoded = torch.where(class_ == entropy.ZEROS, 0.0, decoded)
    decoded = torch.where(class_ == entropy.NOT_FINITE, float("nan"), decoded).to(total.dtype)
    total[place] = total[place] + decoded if add else decoded
    return good
