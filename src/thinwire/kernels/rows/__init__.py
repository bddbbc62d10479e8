"""Blocks as rows: padded for the specifications, sorted chunk by chunk for the kernels."""

from thinwire.kernels.rows.cpu import for_blocks, solve_sorted
from thinwire.kernels.rows.reference import LARGEST, gather_rows, pieces, solve_padded

__all__ = ["LARGEST", "for_blocks", "gather_rows", "pieces", "solve_padded", "solve_sorted"]
