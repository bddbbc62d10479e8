"""Counter-based random numbers: 16 bits for a position, a function of a 64-bit stream key and the position alone.

Positions come in runs of 256. A run uses 128 counters; a counter's 32-bit hash serves two positions 128 apart (low half
first), so that both halves of a run are plain vector loops. `mix` is three multiply-xorshift rounds; the key enters
beside the counter and again between the rounds, so that two streams are not permutations of one another.
"""

from thinwire.kernels.random.keys import stream_keys
from thinwire.kernels.random.reference import random_bits

__all__ = ["random_bits", "stream_keys"]
