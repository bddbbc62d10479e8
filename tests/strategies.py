"""Blocks of values that are hard on level solvers, for Hypothesis."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

__all__ = ["KINDS", "block", "blocks"]


def _lognormal(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.exp(5 * rng.standard_normal(n)) * rng.choice([-1.0, 1.0], n)


def _atoms(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(rng.random(n) < 0.5, rng.choice([-1.5, 0.25, 2.0]), rng.standard_normal(n))


def _one_hot(rng: np.random.Generator, n: int) -> np.ndarray:
    return np.where(np.arange(n) == rng.integers(n), rng.standard_normal(), 0.0)


def _subnormal(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.integers(-40, 41, n) * 2.0**-149


KINDS = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "lognormal": _lognormal,
    "cauchy": lambda rng, n: rng.standard_cauchy(n),
    "laplace": lambda rng, n: rng.laplace(size=n),
    "offset": lambda rng, n: 1000.0 + rng.standard_normal(n),
    "ties": lambda rng, n: rng.integers(-3, 4, n) / 4,
    "two values": lambda rng, n: rng.choice([-0.3, 0.7], n),
    "atoms": _atoms,
    "sparse": lambda rng, n: rng.standard_normal(n) * (rng.random(n) < 0.2),
    "one hot": _one_hot,
    "zeros": lambda rng, n: np.zeros(n),
    "constant": lambda rng, n: np.full(n, rng.standard_normal()),
    "positive": lambda rng, n: rng.exponential(size=n),
    "tiny": lambda rng, n: rng.standard_normal(n) * 2.0**-100,
    "huge": lambda rng, n: rng.standard_normal(n) * 2.0**100,
    "subnormal": _subnormal,
}


def block(kind: str, seed: int, n: int) -> np.ndarray:
    """Return n float32 values of a kind."""
    return KINDS[kind](np.random.default_rng(seed), n).astype(np.float32)


def blocks(max_values: int = 60, exclude: tuple[str, ...] = ()) -> st.SearchStrategy[np.ndarray]:
    """Float32 blocks of 1 to max_values values: every kind above, and lists that Hypothesis can shrink."""
    kinds = st.sampled_from([kind for kind in KINDS if kind not in exclude])
    drawn = st.builds(block, kinds, st.integers(0, 2**32 - 1), st.integers(1, max_values))
    plain = st.floats(-1e6, 1e6, width=32, allow_subnormal="subnormal" not in exclude)
    listed = st.lists(plain, min_size=1, max_size=max_values).map(lambda v: np.array(v, dtype=np.float32))
    return drawn | listed
