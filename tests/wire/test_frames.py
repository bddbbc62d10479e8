"""Frames: every shape and dtype comes back, every wrong byte is refused by name."""

import math
import struct

import pytest
import torch
from tests import sealing
from tests.schemes.cases import CASES

import thinwire
from samples import Squeezed
from thinwire.errors import (
    AlteredFrameError,
    ForeignFrameError,
    FrameError,
    MalformedFrameError,
    MessageError,
    SchemeError,
    TruncatedFrameError,
    UnexpectedFrameError,
    UnsupportedVersionError,
)
from thinwire.kernels.checksum import checksum
from thinwire.schemes import METHODS, partition
from thinwire.types import DTYPES, Key, Segment
from thinwire.wire import accumulate, compose, read, trim
from thinwire.wire import encode as encode_message
from thinwire.wire.header import Shape, write_header

SHAPES = [(0,), (0, 5), (), (1,), (2,), (2047,), (2048,), (2049,), (31, 67), (4099,), (3, 1, 5)]


@pytest.mark.parametrize("scheme", CASES, ids=repr)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_shapes_and_dtypes_come_back_within_capacity(scheme, dtype):
    generator = torch.Generator().manual_seed(1)
    for shape in SHAPES:
        x = torch.randn(shape, generator=generator).to(dtype)
        frame = thinwire.encode(x, scheme)
        y = thinwire.decode(frame)
        assert (y.shape, y.dtype) == (x.shape, x.dtype)
        assert frame.numel() % 16 == 0
        assert frame.numel() <= thinwire.capacity(x, scheme)
        assert thinwire.capacity(x.to("meta"), scheme) == thinwire.capacity(x, scheme)
        if x.numel():
            error = float(((y.double() - x.double()) ** 2).sum() / (x.double() ** 2).sum())
            assert error <= 30 * thinwire.expected_error(x, scheme) + 1e-12


@pytest.mark.parametrize("scheme", [thinwire.ORQ(), thinwire.NoCompression()], ids=repr)
def test_memory_order_does_not_matter(scheme):
    base = torch.randn(60, 80)
    for x in (base[:, ::2], base.t(), base[3:5, 7:9], torch.ones(1).expand(5, 4), base[:, :0], base.flip(0)):
        assert torch.equal(
            thinwire.decode(thinwire.encode(x, scheme)), thinwire.decode(thinwire.encode(x.clone(), scheme))
        )


def test_equal_schemes_write_equal_bytes_whatever_was_encoded_before():
    x = torch.randn(100)
    one, two = (thinwire.encode(x, thinwire.TernGrad(clip=clip)) for clip in (2.0, 2))
    assert torch.equal(one, two)


def test_structures_come_back():
    scheme = thinwire.ORQ()
    tensors = {"w": torch.randn(40, 60), "b": torch.randn(60).to(torch.bfloat16), "empty": torch.empty(0, 3)}
    mapping = thinwire.decode(thinwire.encode(tensors, scheme))
    assert [(n, t.shape, t.dtype) for n, t in mapping.items()] == [(n, t.shape, t.dtype) for n, t in tensors.items()]
    listed = thinwire.decode(thinwire.encode(list(tensors.values()), scheme))
    assert isinstance(listed, list)
    assert all(torch.equal(a, b) for a, b in zip(listed, mapping.values()))
    assert thinwire.decode(thinwire.encode([], scheme)) == []
    assert thinwire.decode(thinwire.encode({}, scheme)) == {}


def test_a_mapping_of_schemes():
    x = {"a": torch.randn(3000), "b": torch.randn(10)}
    frame = thinwire.encode(x, {"a": thinwire.ORQ(levels=3), "b": thinwire.NoCompression()})
    assert torch.equal(thinwire.decode(frame)["b"], x["b"])
    assert len(thinwire.decode(frame)["a"].unique()) <= 6
    info = thinwire.inspect(frame)
    assert [s.scheme.label for s in info.segments] == ["orq-3", "none"]
    assert info.parts["none values"] == 40
    assert info.parts["orq-3 levels"] == 2 * 3 * 4
    assert info.parts["orq-3 codes"] == math.ceil(3000 / 5)
    assert sum(info.parts.values()) == info.bytes == frame.numel()


@pytest.mark.parametrize(
    ("scheme", "most"),
    [
        (thinwire.BinGradB(), 1.04),
        (thinwire.BinGradPB(), 1.04),
        (thinwire.SignSGD(), 1.04),
        (thinwire.ORQ(levels=3), 1.66),
        (thinwire.TernGrad(), 1.66),
        (thinwire.ORQ(levels=5), 2.45),
        (thinwire.ORQ(levels=9), 3.36),
        (thinwire.Linear(levels=9), 3.36),
        (thinwire.QSGD(levels=9), 3.36),
    ],
    ids=lambda value: getattr(value, "label", value),
)
def test_measured_bits_of_a_million_values(scheme, most):
    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    frame = thinwire.encode(x, scheme)
    assert thinwire.inspect(frame).bits == 8 * frame.numel() / 1_000_000 <= most


def test_bfloat16_levels_cost_half():
    x = torch.randn(1 << 16)
    wide, narrow = (thinwire.inspect(thinwire.encode(x, thinwire.ORQ(level_dtype=d))) for d in ("float32", "bfloat16"))
    assert wide.parts["orq-9 levels"] == 2 * narrow.parts["orq-9 levels"] == 32 * 9 * 4


def small_frame():
    x = {"w": torch.linspace(-1, 1, 20), "b": torch.ones(2)}
    return thinwire.encode(x, {"w": thinwire.ORQ(levels=3, block_size=8), "b": thinwire.NoCompression()}, seed=3)


def test_every_truncation_is_refused_by_name():
    frame = small_frame()
    for length in range(frame.numel()):
        with pytest.raises(TruncatedFrameError, match="frame"):
            thinwire.decode(frame[:length])
    with pytest.raises(AlteredFrameError):
        thinwire.decode(torch.cat([frame, torch.zeros(16, dtype=torch.uint8)]))


def test_every_changed_byte_is_refused_by_name():
    frame = small_frame()
    for at in range(frame.numel()):
        for flip in (0x01, 0x80, 0xFF):
            altered = frame.clone()
            altered[at] ^= flip
            expected = ForeignFrameError if at < 4 else UnsupportedVersionError if at < 6 else FrameError
            with pytest.raises(expected) as caught:
                thinwire.decode(altered)
            if at >= 6:
                assert type(caught.value) in (AlteredFrameError, TruncatedFrameError)
            with pytest.raises(expected):
                thinwire.inspect(altered)


def test_swapped_words_are_refused():
    frame = thinwire.encode(torch.randn(500), thinwire.ORQ())
    words = frame.view(torch.int32).clone()
    words[[40, 60]] = words[[60, 40]]
    with pytest.raises(AlteredFrameError, match="checksum"):
        thinwire.decode(words.view(torch.uint8))


def resealed(frame, at, octets):
    """A frame with some bytes replaced and a checksum that holds."""
    frame = frame.clone()
    frame[at : at + len(octets)] = torch.tensor(list(octets), dtype=torch.uint8)
    return sealing.sealed(frame)


def test_hostile_headers_with_a_right_checksum_end_in_a_named_error():
    frame = small_frame()
    refused = 0
    for at in range(6, int(thinwire.inspect(frame).parts["header"]) + 16):
        if 32 <= at < 40:
            continue
        for octet in (0, 1, 2, 127, 128, 255):
            try:
                thinwire.decode(resealed(frame, at, bytes([octet])))
            except FrameError:
                refused += 1
    assert refused > 300


def sealed(tables, shape, groups, segments, payload=b""):
    """A frame of any tables with a right checksum."""
    head = struct.pack("<4sHHIIIIQQQQII", b"THNW", 1, shape, 64 + len(tables), groups, segments, 0, 0, 0, 0, 0, 0, 0)
    octets = bytearray((head + tables).ljust(-(-(64 + len(tables)) // 16) * 16, b"\0") + payload)
    octets[24:32] = len(octets).to_bytes(8, "little")
    return resealed(torch.frombuffer(octets, dtype=torch.uint8), 24, octets[24:32])


NONE = b"\x00\x04none\x02{}"  # group: float32, method, options


@pytest.mark.parametrize(
    ("tables", "shape", "groups", "segments", "payload"),
    [
        (NONE + b"\x01\x04" + b"\x00\x00\x01" + b"\x80" * 6 + b"\x20", 1, 1, 1, bytes(16)),
        (b"", 0, 0, 0, b""),
        (NONE + b"\x01\x08" + b"\x00\x00\x01\x01" * 2, 0, 1, 2, bytes(16)),
        (NONE + b"\x01\x08" + b"\x00\x00\x01\x01\x01a" * 2, 2, 1, 2, bytes(16)),
        (b"\x00\x04none\xc0\x9a\x0c" + b"[" * 200_000 + b"\x00", 1, 1, 0, b""),
        (b"\x00\x04none\x02[]\x00", 1, 1, 0, b""),
        (b"\x09\x04none\x02{}\x00", 1, 1, 0, b""),
    ],
    ids=["2^47 values", "no tensor", "two tensors", "one name twice", "nested options", "list options", "dtype 9"],
)
def test_headers_that_contradict_themselves_are_malformed(tables, shape, groups, segments, payload):
    for function in (thinwire.decode, thinwire.inspect):
        with pytest.raises(MalformedFrameError):
            function(sealed(tables, shape, groups, segments, payload))


def test_hostile_payloads_decode_to_something_or_are_refused():
    frame = small_frame()
    generator = torch.Generator().manual_seed(0)
    start = int(thinwire.inspect(frame).parts["header"]) + 16
    for _ in range(200):
        noise = torch.randint(0, 256, (frame.numel() - start,), generator=generator).tolist()
        decoded = thinwire.decode(resealed(frame, start, bytes(noise)))
        assert decoded["w"].shape == (20,)


@pytest.mark.parametrize("scheme", [method() for method in METHODS.values()], ids=repr)
def test_more_values_than_a_frame_can_hold_are_refused_before_memory_is_taken(scheme):
    layout = (Segment(shape=(1 << 40,), dtype=torch.float32, scheme=scheme, name="", stream=0),)
    head, size = write_header(layout, Shape.LIST, Key(), ((8, 64),))
    frame = resealed(torch.zeros(size, dtype=torch.uint8), 0, head)
    for function in (thinwire.decode, thinwire.inspect):
        with pytest.raises(MalformedFrameError, match="1099511627776 values"):
            function(frame)


def test_millions_of_zeros_are_not_too_many_for_a_frame():
    x = torch.zeros(1 << 23)
    for scheme in (thinwire.Dithered(), thinwire.DeadZone(), thinwire.Rotated()):
        assert torch.equal(thinwire.decode(thinwire.encode(x, scheme)), x)


later_methods = pytest.mark.parametrize(
    "scheme", [thinwire.DeadZone(bits=3.0), thinwire.EDEN(bits=3, block_size=256), thinwire.DRIVE()], ids=repr
)


@later_methods
def test_any_changed_byte_under_a_right_checksum_is_refused_or_decodes(scheme):
    frame = thinwire.encode([torch.randn(300), torch.randn(40)], scheme)
    start, refused = int(thinwire.inspect(frame).parts["header"]), 0
    for at in range(frame.numel()):
        for flip in (0x01, 0x80, 0xFF):
            try:
                decoded = thinwire.decode(resealed(frame, at, bytes([int(frame[at]) ^ flip])))
            except FrameError:
                refused += 1
            else:
                assert at < start or [t.numel() for t in decoded] == [300, 40]
    assert refused > 2 * start


@later_methods
def test_any_part_cut_short_is_refused_by_name(scheme, monkeypatch):
    """Under a header that says how short, and a right checksum; frames cut behind the header's back, too."""
    message, _ = compose([torch.randn(300), torch.randn(40)], scheme)
    group = partition(message.layout)[1][0]
    whole = scheme.encode(message, group, scheme.plan(message, group), Key())
    frame = encode_message(message, Key())
    for which, part in enumerate(whole):
        octets = part.reshape(-1).view(torch.uint8)
        for length in range(octets.numel()):
            parts = [octets[:length] if n == which else other for n, other in enumerate(whole)]
            monkeypatch.setattr(type(scheme), "encode", lambda *_, parts=parts: parts)
            with pytest.raises(MalformedFrameError):
                thinwire.decode(encode_message(message, Key(), plans=[None]))
    for length in range(64, frame.numel(), 16):
        with pytest.raises(FrameError):
            thinwire.decode(resealed(frame[:length], 24, length.to_bytes(8, "little")))


@pytest.mark.parametrize(
    "frame",
    [
        torch.zeros(0, dtype=torch.uint8),
        torch.zeros(100, dtype=torch.uint8),
        torch.randint(0, 256, (500,), dtype=torch.uint8),
        torch.zeros(100),
        torch.zeros(4, 16, dtype=torch.uint8),
        small_frame().repeat_interleave(2)[::2],
        small_frame().to("meta"),
        bytes(100),
        None,
    ],
    ids=["empty", "zeros", "noise", "floats", "two-dimensional", "strided", "meta", "bytes", "none"],
)
def test_what_is_not_a_frame_is_refused(frame):
    with pytest.raises(FrameError):
        thinwire.decode(frame)


def test_a_frame_at_an_odd_place_in_memory_decodes():
    x = torch.randn(5000)
    frame = thinwire.encode(x, thinwire.ORQ())
    buffer = torch.zeros(frame.numel() + 7, dtype=torch.uint8)
    buffer[7:] = frame
    assert torch.equal(thinwire.decode(buffer[7:]), thinwire.decode(frame))


def test_accumulate_adds_and_refuses_what_it_does_not_expect():
    message, _ = compose([torch.randn(3000), torch.randn(7)], thinwire.ORQ())
    frame = encode_message(message, Key(seed=1, step=2, rank=3))
    total = torch.ones(3007)
    header = accumulate(frame, message.layout, total)
    decoded = torch.cat([t.reshape(-1) for t in read(frame)[1]])
    assert torch.equal(total, 1 + decoded)
    assert header.key == Key(seed=1, step=2, rank=3)
    others = [
        ([torch.randn(3000), torch.randn(8)], thinwire.ORQ(), "shape"),
        ([torch.randn(3000), torch.randn(7)], thinwire.ORQ(levels=5), "scheme"),
        ([torch.randn(3000), torch.randn(7).double()], thinwire.ORQ(), "dtype"),
        ([torch.randn(3000)], thinwire.ORQ(), "segments"),
    ]
    for tensors, scheme, what in others:
        layout = compose(tensors, scheme)[0].layout
        with pytest.raises(UnexpectedFrameError, match=what):
            accumulate(frame, layout, total)
    with pytest.raises(UnexpectedFrameError, match="step=2"):
        accumulate(frame, message.layout, total, Key(seed=1, step=3, rank=3))
    assert torch.equal(total, 1 + decoded)


def test_a_valid_frame_of_the_wrong_structure_is_refused_by_accumulate():
    frame = thinwire.encode(torch.randn(3000), thinwire.ORQ())
    layout = compose([torch.randn(3000)], thinwire.ORQ())[0].layout
    with pytest.raises(UnexpectedFrameError):
        accumulate(frame, layout, torch.zeros(3000))


@pytest.mark.parametrize("method", [thinwire.Dithered, thinwire.Rotated, thinwire.DeadZone])
def test_frames_hold_the_weights_of_their_tensors_and_not_the_mapping(method):
    x = {"a": torch.randn(3000), "b": torch.randn(2000)}
    short = {"a": 1.0, "b": 8.0}
    frames = [thinwire.encode(x, method(weighting=w)) for w in (short, short | {f"layer{i}": 1.0 for i in range(999)})]
    heads = [thinwire.inspect(frame).parts["header"] for frame in frames]
    assert heads[0] == heads[1] < 300
    decoded = [thinwire.decode(frame) for frame in frames]
    error = {name: float((decoded[0][name] - x[name]).pow(2).mean()) for name in x}
    assert error["b"] / error["a"] > 3
    for name in x:
        assert torch.equal(decoded[0][name], decoded[1][name])
    with pytest.raises(SchemeError, match="frames do not hold the mapping"):
        thinwire.encode(x, thinwire.inspect(frames[0]).segments[0].scheme)


def test_mappings_that_differ_are_told_apart_and_equal_ones_expected():
    scheme, other = (thinwire.Dithered(weighting={"": weight}, step=0.5) for weight in (1.0, 4.0))
    x = [torch.randn(3000), torch.randn(2000)]
    message, _ = compose(x, scheme)
    frame = encode_message(message, Key())
    total = torch.zeros(5000)
    accumulate(frame, message.layout, total)
    assert torch.equal(total, torch.cat(read(frame)[1]))
    with pytest.raises(UnexpectedFrameError, match="scheme"):
        accumulate(frame, compose(x, other)[0].layout, total)
    with pytest.raises(UnexpectedFrameError, match="shape"):
        accumulate(frame, compose([x[0], x[0]], scheme)[0].layout, total)
    named = dict(zip("ab", x))
    weights = {"a": 1.0, "b": 4.0}
    schemes = {name: thinwire.Dithered(weighting={name: weights[name]}, step=0.5) for name in named}
    for name, decoded in thinwire.decode(thinwire.encode(named, schemes)).items():
        worst = float((decoded - named[name]).abs().max())
        assert 0.24 * weights[name] < worst <= 0.2501 * weights[name]


@pytest.mark.parametrize(
    ("x", "scheme", "says"),
    [
        (torch.arange(5), thinwire.ORQ(), "int64"),
        (torch.zeros(5, dtype=torch.complex64), thinwire.ORQ(), "complex64"),
        (torch.zeros(5).to_sparse(), thinwire.ORQ(), "sparse"),
        ([torch.zeros(5), 3.0], thinwire.ORQ(), "float"),
        ("text", thinwire.ORQ(), "str"),
        (torch.zeros(5), "orq", "thinwire.ORQ"),
        (torch.zeros(5), {"a": thinwire.ORQ()}, "mapping"),
        ({"a": torch.zeros(5)}, {}, "'a'"),
        ({"a": torch.zeros(5)}, {"a": thinwire.ORQ(), "b": thinwire.ORQ()}, "b"),
        ({1: torch.zeros(5)}, thinwire.ORQ(), "strings"),
        ({"\ud800": torch.zeros(5)}, thinwire.ORQ(), "strings"),
    ],
)
def test_bad_input_is_refused_by_name(x, scheme, says):
    for function in (thinwire.encode, thinwire.capacity, thinwire.expected_error):
        with pytest.raises(MessageError, match=says):
            function(x, scheme)
    with pytest.raises(MessageError, match="seed"):
        thinwire.encode(torch.zeros(3), thinwire.ORQ(), seed=-1)


def test_malformed_names_the_tensor_it_got():
    with pytest.raises(MalformedFrameError, match="float32"):
        thinwire.decode(torch.zeros(10))


def test_an_elastic_schemes_parts_may_be_shorter_than_planned(monkeypatch):
    monkeypatch.setitem(METHODS, "squeezed", Squeezed)
    x = torch.tensor([1.0, 0.0, 2.0] + 97 * [0.0])
    message, _ = compose([x], Squeezed())
    frame = encode_message(message, Key())
    assert frame.numel() < thinwire.capacity([x], Squeezed())
    assert torch.equal(read(frame)[1][0], x)
    total = torch.zeros(100)
    accumulate(frame, message.layout, total, Key())
    assert torch.equal(total, x)


@pytest.mark.parametrize("scheme", [thinwire.ORQ(), thinwire.NoCompression()])
def test_no_other_schemes_parts_may(monkeypatch, scheme):
    full = type(scheme).encode
    monkeypatch.setattr(type(scheme), "encode", lambda *args: [part[:-8] for part in full(*args)])
    message, _ = compose([torch.randn(3000)], scheme)
    frame = encode_message(message, Key())
    with pytest.raises(MalformedFrameError):
        read(frame)
    with pytest.raises(MalformedFrameError):
        accumulate(frame, message.layout, torch.zeros(3000))


def test_an_elastic_frame_whose_lengths_do_not_add_up_is_refused():
    message, _ = compose([torch.randn(3000)], Squeezed())
    frame = encode_message(message, Key())
    padded = torch.cat([frame, torch.zeros(16, dtype=torch.uint8)])
    padded[24:32] = torch.tensor([padded.numel()]).view(torch.uint8)
    padded[32:40] = 0
    padded[32:40] = checksum(padded).reshape(1).view(torch.uint8)
    with pytest.raises(MalformedFrameError):
        accumulate(padded, message.layout, torch.zeros(3000))


def test_a_frame_in_a_larger_slot_is_found_by_its_own_length():
    message, _ = compose([torch.randn(300)], thinwire.ORQ())
    frame = encode_message(message, Key())
    slot = torch.cat([frame, torch.full((40,), 255, dtype=torch.uint8)])
    assert torch.equal(trim(slot), frame)
    assert torch.equal(trim(slot[:50]), slot[:50])
    assert torch.equal(trim(slot[16:]), slot[16:])  # not a frame: left for others to refuse
