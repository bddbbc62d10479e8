"""Arithmetic: one folder per operation, each with its specification in torch and its Numba kernels."""

from thinwire.kernels.checksum import checksum
from thinwire.kernels.compiling import announce_compilation
from thinwire.kernels.dispatch import BACKENDS, backend
from thinwire.kernels.hadamard import coordinates, rotate, rotate_back
from thinwire.kernels.narrow import round_to_bfloat16
from thinwire.kernels.pack import digit_layout, pack, packed_bytes, unpack
from thinwire.kernels.pool import set_threads, threads
from thinwire.kernels.random import random_bits, stream_keys
from thinwire.kernels.rotation import dequantize_rotated, quantize_rotated
from thinwire.kernels.round import dequantize, quantize
from thinwire.kernels.solve import (
    solve_clipped_pair,
    solve_full_range,
    solve_largest_magnitude,
    solve_mean_magnitude,
    solve_orq,
    solve_quantiles,
    solve_root_energy,
    solve_two_means,
    solve_within_deviations,
)
from thinwire.kernels.table import block_table

__all__ = [
    "BACKENDS",
    "backend",
    "block_table",
    "checksum",
    "coordinates",
    "dequantize",
    "dequantize_rotated",
    "digit_layout",
    "pack",
    "packed_bytes",
    "quantize",
    "quantize_rotated",
    "random_bits",
    "rotate",
    "rotate_back",
    "round_to_bfloat16",
    "set_threads",
    "solve_clipped_pair",
    "solve_full_range",
    "solve_largest_magnitude",
    "solve_mean_magnitude",
    "solve_orq",
    "solve_quantiles",
    "solve_root_energy",
    "solve_two_means",
    "solve_within_deviations",
    "stream_keys",
    "threads",
    "unpack",
]

announce_compilation()
