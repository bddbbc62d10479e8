"""Methods by name: what the command line and a frame's header say."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Any

from thinwire.errors import SchemeError
from thinwire.schemes.base import Scheme
from thinwire.schemes.deadzone import DeadZone
from thinwire.schemes.dithered import Dithered
from thinwire.schemes.eden import DRIVE, EDEN
from thinwire.schemes.evenly_spaced import QSGD, MinMax, TernGrad
from thinwire.schemes.linear import Linear
from thinwire.schemes.none import NoCompression
from thinwire.schemes.optimal import LloydMax, Optimal
from thinwire.schemes.orq import ORQ
from thinwire.schemes.rotated import Rotated
from thinwire.schemes.two_level import BinGradB, BinGradPB, SignSGD

__all__ = ["DEFAULT", "METHODS", "NAMES", "from_options", "from_spec"]

METHODS: dict[str, type[Scheme]] = {
    scheme.method: scheme
    for scheme in (
        ORQ,
        Optimal,
        BinGradPB,
        BinGradB,
        LloydMax,
        SignSGD,
        TernGrad,
        QSGD,
        MinMax,
        Linear,
        EDEN,
        DRIVE,
        Rotated,
        Dithered,
        DeadZone,
        NoCompression,
    )
}

_SHORTHANDS: dict[str, tuple[str, dict[str, Any]]] = {
    "fp32": ("none", {}),
    "qsgd-l2": ("qsgd", {"norm": "l2"}),
    "dithered-global": ("dithered", {"weighting": "global"}),
    "rotated-global": ("rotated", {"weighting": "global"}),
    "deadzone-global": ("deadzone", {"weighting": "global"}),
    "optimal-tensor": ("optimal", {"block_size": None}),
    "terngrad-noclip": ("terngrad", {"clip": None}),
}
DEFAULT = Dithered(bits=2.0)
"""Unbiased, of the least error for its bits on every gradient measured: docs/choosing.md."""

NAMES = (*METHODS, *_SHORTHANDS)
"""What `from_spec` reads before a level count."""


def from_options(method: str, options: Mapping[str, Any]) -> Scheme:
    """Build a scheme from its method's name and its options.

    Raises:
        SchemeError: an unknown method or option, or an impossible value; the message says what exists.
    """
    if method not in METHODS:
        raise SchemeError(f"unknown method {method!r}: choose one of {', '.join(METHODS)}")
    known = inspect.signature(METHODS[method]).parameters
    for option in options:
        if option not in known:
            has = f"its options are {', '.join(known)}" if known else "it has no options"
            raise SchemeError(f"{method} has no option {option!r}: {has}")
    build: Callable[..., Scheme] = METHODS[method]
    return build(**options)


def from_spec(text: str, **options: Any) -> Scheme:
    """Read a short name such as "orq-9", "dithered-2", "signsgd", "qsgd-l2-5" or "fp32"; further options by name.

    Raises:
        SchemeError: as from_options.
    """
    name, number = text.strip().lower(), None
    match = re.fullmatch(r"(.+?)-([0-9]{1,6}(?:\.[0-9]{1,6})?)", name)
    if match:
        name, number = match[1], float(match[2]) if "." in match[2] else int(match[2])
    method, implied = _SHORTHANDS.get(name, (name, {}))
    if method not in METHODS:
        raise SchemeError(
            f"unknown method {text!r}: choose one of {', '.join(NAMES)}, "
            "with a level count where it has one, as in orq-9, or bits a value, as in dithered-2"
        )
    given = {} if number is None else {METHODS[method].number: number}
    return from_options(method, {**implied, **given, **options})
