"""Integers coded by interleaved rANS, under tables that ship with the package. `reference` is the specification."""

import torch
from torch import Tensor

from thinwire.kernels.dispatch import operator
from thinwire.kernels.entropy import cpu, reference
from thinwire.kernels.entropy.book import Book, Tables, book, make_tables

__all__ = ["Book", "Tables", "book", "decode_codes", "encode_codes", "make_tables"]


def _encode_codes(
    codes: Tensor,
    phases: Tensor,
    counts: Tensor,
    classes: Tensor,
    tables: list[Tensor],
    log_phases: int,
    chunk_runs: int,
    room: int,
) -> tuple[Tensor, Tensor]:
    chunks = -(-counts.shape[0] // chunk_runs)
    return codes.new_empty((chunks, room), dtype=torch.int16), counts.new_empty(chunks)


def _decode_codes(
    words: Tensor,
    starts: Tensor,
    phases: Tensor,
    counts: Tensor,
    tables: list[Tensor],
    log_phases: int,
    chunk_runs: int,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        phases.new_empty(phases.shape, dtype=torch.int32),
        counts.new_empty(counts.shape, dtype=torch.uint8),
        starts.new_empty(starts.shape[0] - 1, dtype=torch.bool),
    )


encode_codes = operator(reference.encode_codes, cpu.encode_codes, _encode_codes)
decode_codes = operator(reference.decode_codes, cpu.decode_codes, _decode_codes)
