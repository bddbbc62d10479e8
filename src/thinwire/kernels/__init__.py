"""Arithmetic: one folder per operation, each with its specification in torch and its Numba kernels."""

from thinwire.kernels.checksum import checksum
from thinwire.kernels.dispatch import BACKENDS, backend
from thinwire.kernels.pack import digit_layout, pack, packed_bytes, unpack
from thinwire.kernels.pool import set_threads, threads
from thinwire.kernels.random import random_bits, stream_keys
from thinwire.kernels.round import dequantize, quantize
from thinwire.kernels.rows import gather_rows, sort_rows
from thinwire.kernels.solve import solve_orq
from thinwire.kernels.table import block_table

__all__ = [
    "BACKENDS",
    "backend",
    "block_table",
    "checksum",
    "dequantize",
    "digit_layout",
    "gather_rows",
    "pack",
    "packed_bytes",
    "quantize",
    "random_bits",
    "set_threads",
    "solve_orq",
    "sort_rows",
    "stream_keys",
    "threads",
    "unpack",
]
