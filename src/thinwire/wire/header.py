"""The bytes before a frame's parts, written and read. FORMAT.md is the law; tests hold the two together."""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from thinwire.errors import (
    AlteredFrameError,
    ForeignFrameError,
    MalformedFrameError,
    SchemeError,
    TruncatedFrameError,
    UnsupportedVersionError,
)
from thinwire.schemes import Scheme, from_options, partition
from thinwire.types import DTYPES, Key, Layout, Segment

__all__ = [
    "ALIGNMENT",
    "FIELDS",
    "FIXED",
    "MAGIC",
    "VERSION",
    "Header",
    "Shape",
    "align",
    "fits",
    "read_header",
    "read_key",
    "read_lengths",
    "write_header",
]

MAGIC = b"THNW"
VERSION = 1
ALIGNMENT = 16
FIELDS = (
    ("magic", "4s", "the bytes THNW"),
    ("version", "H", "1"),
    ("shape", "H", "what was encoded: 0 one tensor, 1 a list of tensors, 2 a mapping from names to tensors"),
    ("header_bytes", "I", "fixed part and tables, without the padding that follows"),
    ("groups", "I", "entries of the group table"),
    ("segments", "I", "entries of the segment table"),
    ("rank", "I", "key: the encoding rank"),
    ("frame_bytes", "Q", "the whole frame, a multiple of 16"),
    ("checksum", "Q", "of the whole frame, with this field zero; 0 where flags say that there is none"),
    ("seed", "Q", "key: seed"),
    ("step", "Q", "key: step"),
    ("stratum", "H", "key: stratum"),
    ("shift", "H", "key: shift"),
    ("flags", "I", "0; 1 between ranks that agreed to do without a checksum"),
)
"""The fixed part: name, struct code, meaning; little-endian, in this order, without gaps."""

FIXED = struct.Struct("<" + "".join(code for _, code, _ in FIELDS))
CHECKSUM_AT = struct.calcsize("<" + "".join(code for _, code, _ in FIELDS[:8]))
FLAGS_AT = FIXED.size - 4
UNCHECKED = 1
_DENSEST = 4096  # values a byte; the most that an encoder writes is 36 bytes for 512 runs of 256 zeros
_NAMES = tuple(name for name, _, _ in FIELDS)


class Shape:
    """What the encoder was given, so that decoding gives the same back."""

    TENSOR, LIST, MAPPING = range(3)


def read_key(fixed: Mapping[str, int]) -> Key:
    return Key(**{part.name: fixed[part.name] for part in dataclasses.fields(Key)})


def align(count: int) -> int:
    """Round a byte count up to a multiple of 16."""
    return -(-count // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, kw_only=True)
class Header:
    """What a frame says of itself.

    Args:
        layout: the segments; names are empty unless a mapping was encoded.
        shape: a Shape.
        key: the random numbers that were drawn.
        parts: bytes of each part, by group.
        header_bytes, frame_bytes: as in FIELDS.
    """

    layout: Layout
    shape: int
    key: Key
    parts: tuple[tuple[int, ...], ...]
    header_bytes: int
    frame_bytes: int


def _varint(value: int) -> bytes:
    """Unsigned LEB128: seven bits a byte, low first, the top bit set on all but the last."""
    out = bytearray()
    while value > 127:
        out.append(128 | value & 127)
        value >>= 7
    out.append(value)
    return bytes(out)


def _text(value: str) -> bytes:
    octets = value.encode()
    return _varint(len(octets)) + octets


def tables(layout: Layout, shape: int, parts: tuple[tuple[int, ...], ...]) -> bytes:
    """The group table, then the segment table."""
    member, groups = partition(layout)
    out = bytearray()
    for group, lengths in zip(groups, parts):
        options = json.dumps(group.scheme.on_wire().options(), sort_keys=True, separators=(",", ":"))
        out += _varint(DTYPES.index(group.dtype)) + _text(group.scheme.method) + _text(options)
        out += _varint(len(lengths)) + b"".join(_varint(n) for n in lengths)
    for segment, which in zip(layout, member):
        out += _varint(which) + _varint(segment.stream)
        out += _varint(len(segment.shape)) + b"".join(_varint(n) for n in segment.shape)
        if shape == Shape.MAPPING:
            out += _text(segment.name)
    return bytes(out)


def write_header(layout: Layout, shape: int, key: Key, parts: tuple[tuple[int, ...], ...]) -> tuple[bytes, int]:
    """The header with a zero checksum, padded to 16 bytes, and the bytes of the whole frame."""
    table = tables(layout, shape, parts)
    header_bytes = FIXED.size + len(table)
    frame_bytes = align(header_bytes) + sum(align(n) for lengths in parts for n in lengths)
    fixed = {
        "magic": MAGIC,
        "version": VERSION,
        "shape": shape,
        "header_bytes": header_bytes,
        "groups": len(parts),
        "segments": len(layout),
        "rank": key.rank,
        "frame_bytes": frame_bytes,
        "checksum": 0,
        "seed": key.seed,
        "step": key.step,
        "stratum": key.stratum,
        "shift": key.shift,
        "flags": 0,
    }
    head = FIXED.pack(*(fixed[name] for name in _NAMES)) + table
    return head.ljust(align(header_bytes), b"\0"), frame_bytes


class _Reader:
    """Reads a header's tables; anything that does not add up is a MalformedFrameError."""

    def __init__(self, octets: bytes) -> None:
        self.octets, self.at = octets, 0

    def varint(self) -> int:
        value = shift = 0
        while True:
            if self.at >= len(self.octets) or shift > 63:
                raise MalformedFrameError("frame: a number in the header's tables runs past their end")
            octet = self.octets[self.at]
            self.at += 1
            value |= (octet & 127) << shift
            if octet < 128:
                return value
            shift += 7

    def text(self) -> str:
        count = self.varint()
        octets = self.octets[self.at : self.at + count]
        self.at += count
        try:
            if len(octets) == count:
                return octets.decode()
        except UnicodeDecodeError:
            pass
        raise MalformedFrameError("frame: a text in the header's tables is cut short or not UTF-8")


def check_fixed(octets: bytes, available: int) -> dict[str, int]:
    """Read the fixed part of a frame of `available` bytes and check what can be checked without the rest."""
    if len(octets) >= 4 and octets[:4] != MAGIC:
        raise ForeignFrameError(f"frame: it begins with {octets[:4]!r}, not {MAGIC!r}: these bytes are not a frame")
    if available < FIXED.size:
        raise TruncatedFrameError(f"frame: {available} bytes are less than the {FIXED.size} of a header")
    fixed = dict(zip(_NAMES, FIXED.unpack(octets[: FIXED.size])))
    if fixed["version"] != VERSION:
        raise UnsupportedVersionError(
            f"frame: format version {fixed['version']}, but this release reads version {VERSION}: "
            "use the same thinwire release on every side"
        )
    if fixed["frame_bytes"] > available:
        raise TruncatedFrameError(f"frame: {available} of its {fixed['frame_bytes']} bytes are there")
    if fixed["frame_bytes"] < available:
        raise AlteredFrameError(f"frame: {available} bytes, but its header says {fixed['frame_bytes']}")
    return fixed


def _read_group(reader: _Reader) -> tuple[int, str, str, tuple[int, ...]]:
    """A group's dtype number, method, options and part lengths."""
    code, method, options = reader.varint(), reader.text(), reader.text()
    return code, method, options, tuple(reader.varint() for _ in range(min(reader.varint(), 256)))


def read_lengths(octets: bytes, groups: int) -> tuple[tuple[int, ...], ...]:
    """The bytes of each part, by group, from the header's bytes after its fixed part.

    Raises:
        MalformedFrameError: there is no such table.
    """
    reader = _Reader(octets)
    return tuple(_read_group(reader)[3] for _ in range(min(groups, len(octets))))


def _read_scheme(reader: _Reader) -> tuple[Scheme, torch.dtype, tuple[int, ...]]:
    code, method, options, lengths = _read_group(reader)
    try:
        if code < len(DTYPES):
            return from_options(method, json.loads(options)), DTYPES[code], lengths
    except (SchemeError, TypeError, ValueError, RecursionError) as error:
        raise MalformedFrameError(f"frame: its scheme {method}{options[:200]} cannot be used: {error}") from error
    raise MalformedFrameError(f"frame: dtype number {code} does not exist")


def _read_segment(reader: _Reader, groups: list[tuple[Scheme, torch.dtype, tuple[int, ...]]], named: bool) -> Segment:
    which, stream = reader.varint(), reader.varint()
    shape = tuple(reader.varint() for _ in range(min(reader.varint(), 256)))
    if which >= len(groups) or stream >= 1 << 64 or math.prod(max(n, 1) for n in shape) >= 1 << 48:
        raise MalformedFrameError(f"frame: a segment of group {which} and shape {shape} cannot be")
    name = reader.text() if named else ""
    return Segment(shape=shape, dtype=groups[which][1], scheme=groups[which][0], name=name, stream=stream)


def read_header(octets: bytes, available: int) -> Header:
    """Parse a header whose checksum and flags have been checked.

    Args:
        octets: the frame's first header_bytes bytes or more.
        available: bytes of the whole frame at hand.
    Raises:
        FrameError: one subclass a cause.
    """
    fixed = check_fixed(octets, available)
    if not FIXED.size <= fixed["header_bytes"] <= min(available, len(octets)) or fixed["shape"] > Shape.MAPPING:
        raise MalformedFrameError(f"frame: header_bytes {fixed['header_bytes']} or shape {fixed['shape']} cannot be")
    reader = _Reader(octets[FIXED.size : fixed["header_bytes"]])
    groups = [_read_scheme(reader) for _ in range(min(fixed["groups"], len(reader.octets)))]
    named = fixed["shape"] == Shape.MAPPING
    segments = range(min(fixed["segments"], len(reader.octets)))
    layout = tuple(_read_segment(reader, groups, named) for _ in segments)
    if (fixed["shape"] == Shape.TENSOR and len(layout) != 1) or (named and len({s.name for s in layout}) < len(layout)):
        raise MalformedFrameError(f"frame: {len(layout)} segments cannot be of shape {fixed['shape']}, or share a name")
    if (values := sum(segment.numel for segment in layout)) > _DENSEST * available:
        raise MalformedFrameError(f"frame: {available} bytes cannot hold the {values} values that its header lists")
    parts = tuple(lengths for _, _, lengths in groups)
    key = read_key(fixed)
    written, frame_bytes = write_header(layout, fixed["shape"], key, parts) if fits(layout, parts) else (b"", 0)
    plain = bytearray(octets[: align(fixed["header_bytes"])])
    plain[CHECKSUM_AT : CHECKSUM_AT + 8] = bytes(8)
    plain[FLAGS_AT : FLAGS_AT + 4] = bytes(4)  # checked with the checksum
    if written != bytes(plain) or frame_bytes != available:
        raise MalformedFrameError("frame: its header is not what an encoder writes for the segments that it lists")
    return Header(
        layout=layout,
        shape=fixed["shape"],
        key=key,
        parts=parts,
        header_bytes=fixed["header_bytes"],
        frame_bytes=frame_bytes,
    )


def fits(layout: Layout, parts: tuple[tuple[int, ...], ...]) -> bool:
    """Whether the layout forms as many groups as are listed, and each has the parts that its scheme makes.

    An elastic scheme's may be shorter; no other's.
    """
    groups = partition(layout)[1]
    most = [tuple(group.scheme.part_bytes(group).values()) for group in groups]
    return [len(lengths) for lengths in parts] == [len(lengths) for lengths in most] and all(
        lengths == limits or (group.scheme.elastic and all(n <= m for n, m in zip(lengths, limits)))
        for group, lengths, limits in zip(groups, parts, most)
    )
