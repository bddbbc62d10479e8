"""The specification of subtractive dither: what a grid of one step makes of values, under bits that both sides draw.

A value x of a run whose step is d becomes q = floor(x / d + u), u = (h + 1/2) / 2^16 for the 16 bits h of its position
(kernels/random), and q becomes (q + 1/2 - u) d. Since u is uniform and independent of x, the error is uniform over one
step, centred, whatever x is: no bias, a mean square of d^2 / 12. 16 bits leave a bias of 2^-17 d at most.

All of this is computed in float64, in this order, and rounded once: x (1 / d), + u, floor; q + (1/2 - u), times d.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from thinwire.kernels.entropy import reference as entropy
from thinwire.kernels.entropy.book import LOG_PHASES
from thinwire.kernels.random.reference import random_bits
from thinwire.kernels.rows.reference import LARGEST
from thinwire.kernels.table import CODE, LENGTH, POSITION, START

__all__ = [
    "KEEP",
    "NO_ENERGY",
    "dither_costs",
    "dither_decode",
    "dither_encode",
    "run_energies",
    "settle_classes",
]

FARTHEST = 2.0**30  # codes do not go beyond
SUMS = 32  # that a run's energy is added up from
FINE = 8  # positions of a class
KEEP = 7  # positions from its middle at which a class is kept
NO_ENERGY = -(1 << 20)  # position of a run of zeros; any below marks one that is not finite


def _spread(table: Tensor) -> tuple[Tensor, Tensor]:
    """For each value of the runs in order: its run, and its index in the run."""
    run = torch.repeat_interleave(torch.arange(len(table), device=table.device), table[:, LENGTH])
    return run, torch.arange(len(run), device=table.device) - table[run, CODE]


def run_energies(values: Tensor, table: Tensor) -> Tensor:
    """Sum squares and magnitudes, run by run.

    Args:
        values: float32 `[values]`, a message's flat values.
        table: block table of the runs, int64 `[runs, 4]`, up to 256 values each.
    Returns:
        float64 `[runs, 2]`; NaN where a value is not finite, or 2^127 and more. Sums are formed in float64: 32 over
        every 32nd value in order, then the upper half is added to the lower until one is left.
    """
    run, within = _spread(table)
    rows = torch.zeros(len(table), entropy.RUN, dtype=torch.float32, device=values.device)
    rows[run, within] = values[table[run, START] + within]
    finite = (rows.abs() < LARGEST).all(1)
    wide = rows.to(torch.float64).reshape(len(table), -1, SUMS)
    sums = torch.zeros(len(table), SUMS, 2, dtype=torch.float64, device=values.device)
    for i in range(wide.shape[1]):
        sums = sums + torch.stack([wide[:, i] * wide[:, i], wide[:, i].abs()], dim=2)
    while sums.shape[1] > 1:
        lower, upper = sums.chunk(2, dim=1)
        sums = lower + upper
    return torch.where(finite[:, None], sums[:, 0], float("nan"))


def settle_classes(positions: Tensor, chunk_runs: int) -> Tensor:
    """Give each run a class: near the run's own scale, and the one before's if that will do.

    Args:
        positions: int32 `[runs]`: 8 times the logarithm of the run's root mean square in steps, in quarter octaves
            above 2^-8; NO_ENERGY for a run of zeros, less for one that is not finite.
        chunk_runs: classes are not kept across chunks.
    Returns:
        uint8 `[runs]`.
    """
    classes, kept = [], 0
    for run, position in enumerate(positions.tolist()):
        if position <= NO_ENERGY:
            classes.append(entropy.ZEROS if position == NO_ENERGY else entropy.NOT_FINITE)
            continue
        if run % chunk_runs == 0 or abs(position - FINE * kept) > KEEP:
            kept = min(max((position + FINE // 2) // FINE, 0), entropy.LARGEST_CLASS - entropy.SCALED)
        classes.append(entropy.SCALED + kept)
    return torch.tensor(classes, dtype=torch.uint8, device=positions.device)


def dither_costs(
    values: Tensor, table: Tensor, inverse: Tensor, classes: Tensor, lengths: Tensor, cells: Tensor
) -> Tensor:
    """Sum what the codes of each run's values cost on average over the dither.

    Args:
        values, table: as in run_energies.
        inverse: float64 `[runs]`, 1 / the run's step.
        classes: uint8 `[runs]`; values of classes 0 and 1 cost nothing.
        lengths: int16 `[rows, n]`: the cost of a value in each of n cells about zero, in 1/1024 bits; the outer ones
            stand for what lies beyond, too.
        cells: float64 `[rows]`, cells a step: powers of two.
    Returns:
        1/1024 bits, low bits (1024 each) included, int64 `[runs]`.
    """
    run, within = _spread(table)
    class_ = classes.to(torch.int64)[run]
    number = class_ - entropy.SCALED
    low_bits = torch.clamp(-torch.div(len(lengths) - 1 - number, 4, rounding_mode="floor"), min=0)
    scaled, middle = class_ >= entropy.SCALED, lengths.shape[1] // 2
    row = torch.where(scaled, number - 4 * low_bits, 0)
    y = values[table[run, START] + within].to(torch.float64) * inverse[run]
    cell = torch.floor(y * (cells[row] * 2.0 ** -low_bits.to(torch.float64))).clamp(-middle, middle - 1)
    cost = lengths[row, torch.where(scaled, cell, 0.0).to(torch.int64) + middle].to(torch.int64) + 1024 * low_bits
    return torch.zeros_like(table[:, LENGTH]).index_add(0, run, torch.where(scaled, cost, 0))


def _bits(table: Tensor, keys: Tensor, shift: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each value: its run, its place in the flat values, and its 16 random bits."""
    run, within = _spread(table)
    return run, table[run, START] + within, random_bits(table[run, POSITION] + within, keys[run], shift)


def dither_encode(
    values: Tensor,
    table: Tensor,
    keys: Tensor,
    inverse: Tensor,
    classes: Tensor,
    tables: Sequence[Tensor],
    chunk_runs: int,
    room: int,
    shift: int = 0,
) -> tuple[Tensor, Tensor]:
    """Quantize values and encode their codes.

    Args:
        values, table: as in run_energies; runs begin at multiples of 256 of their segment's positions.
        keys: int64 `[runs]`, the stream key of each run's segment.
        inverse, classes: as in dither_costs; a run of values far above its class makes its chunk fail.
        tables, chunk_runs, room: as in kernels/entropy's encode_codes, with 32 phases.
        shift: of the random bits, see kernels/random.
    Returns:
        As encode_codes.
    """
    run, place, bits = _bits(table, keys, shift)
    u = (bits.to(torch.float64) + 0.5) * 2.0**-16
    y = torch.where((classes >= entropy.SCALED)[run], values[place].to(torch.float64) * inverse[run], 0.0)
    codes = torch.floor(y + u).clamp(-FARTHEST, FARTHEST).to(torch.int32)
    phases = (bits >> (16 - LOG_PHASES)).to(torch.uint8)
    return entropy.encode_codes(codes, phases, table[:, LENGTH], classes, tables, LOG_PHASES, chunk_runs, room)


def dither_decode(
    words: Tensor,
    starts: Tensor,
    table: Tensor,
    keys: Tensor,
    steps: Tensor,
    tables: Sequence[Tensor],
    chunk_runs: int,
    total: Tensor,
    add: bool,
    shift: int = 0,
) -> Tensor:
    """Decode what dither_encode returned and write (or add) each value to its place in `total`, in place.

    Args:
        words, starts, tables, chunk_runs: as in kernels/entropy's decode_codes.
        table, keys, shift: as in dither_encode.
        steps: float64 `[runs]`.
        total: float32 or float64 `[values]`.
        add: add to total instead of overwriting.
    Returns:
        Whether each chunk was what an encoder writes, bool `[chunks]`; values of one that was not are undefined.
    """
    run, place, bits = _bits(table, keys, shift)
    phases = (bits >> (16 - LOG_PHASES)).to(torch.uint8)
    codes, classes, good = entropy.decode_codes(words, starts, phases, table[:, LENGTH], tables, LOG_PHASES, chunk_runs)
    u = (bits.to(torch.float64) + 0.5) * 2.0**-16
    decoded = ((codes.to(torch.float64) + (0.5 - u)) * steps[run]).to(total.dtype)
    class_ = classes[run]
    decoded = torch.where(class_ == entropy.ZEROS, 0.0, decoded)
    decoded = torch.where(class_ == entropy.NOT_FINITE, float("nan"), decoded).to(total.dtype)
    total[place] = total[place] + decoded if add else decoded
    return good
