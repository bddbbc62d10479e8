"""Frames: the bytes that travel. FORMAT.md is the law."""

from thinwire.wire.frame import accumulate, capacity, elastic, encode, plan, read, trim, verify
from thinwire.wire.header import FIELDS, MAGIC, VERSION, Header, Shape
from thinwire.wire.message import compose, layout_of

__all__ = [
    "FIELDS",
    "MAGIC",
    "VERSION",
    "Header",
    "Shape",
    "accumulate",
    "capacity",
    "compose",
    "elastic",
    "encode",
    "layout_of",
    "plan",
    "read",
    "trim",
    "verify",
]
