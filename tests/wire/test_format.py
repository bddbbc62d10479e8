"""FORMAT.md and the code say the same: the fixed part, the packing table and the worked example."""

import re
import struct
from pathlib import Path

import torch

import thinwire
from thinwire.kernels import digit_layout
from thinwire.wire.header import CHECKSUM_AT, FIELDS, FIXED

TEXT = (Path(__file__).parents[2] / "FORMAT.md").read_text()
TYPES = {"4s": "4s", "H": "u16", "I": "u32", "Q": "u64"}


def test_the_fixed_part_is_documented_field_by_field():
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (\w+) \| (.*) \|$", TEXT, re.M)
    offset, expected = 0, []
    for name, code, meaning in FIELDS:
        expected.append((str(offset), name, TYPES[code], meaning))
        offset += struct.calcsize("<" + code)
    assert rows == expected
    assert offset == FIXED.size == 64
    assert CHECKSUM_AT == 32


def test_the_packing_table_is_right():
    rows = {
        row[0]: [int(n) for n in row[1:].split("|") if n.strip()]
        for row in re.findall(r"^\| ([skb] \|.*)$", TEXT, re.M)
    }
    for s, k, b in zip(rows["s"], rows["k"], rows["b"], strict=True):
        assert (digit_layout(s).count, digit_layout(s).bits) == (k, b)


def worked_example() -> bytes:
    lines = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} ?){16})", TEXT, re.M)
    assert [int(offset, 16) for offset, _ in lines] == list(range(0, 16 * len(lines), 16))
    return bytes.fromhex("".join(octets for _, octets in lines))


def test_the_worked_example_is_what_the_code_writes_and_reads():
    octets = worked_example()
    tensors = {"w": torch.tensor([-1, -0.5, 0.25, 2, 0, 0]), "b": torch.tensor([0.5])}
    schemes = {"w": thinwire.ORQ(levels=3, block_size=4), "b": thinwire.NoCompression()}
    assert thinwire.encode(tensors, schemes, seed=1).numpy().tobytes() == octets
    decoded = thinwire.decode(torch.frombuffer(bytearray(octets), dtype=torch.uint8))
    assert decoded["w"].tolist() == [-1, 0.25, 0.25, 2, 0, 0]
    assert decoded["b"].tolist() == [0.5]


def test_the_worked_example_reads_by_hand():
    """Independent of the library: the layout as FORMAT.md tells it."""
    octets = worked_example()
    header_bytes, groups, segments = struct.unpack_from("<III", octets, 8)
    frame_bytes, checksum = struct.unpack_from("<QQ", octets, 24)
    assert (frame_bytes, groups, segments) == (len(octets), 2, 2)
    words = struct.unpack(f"<{len(octets) // 4}I", octets[:32] + bytes(8) + octets[40:])
    total = sum(w * (0x9E3779B97F4A7C15 + i * 0x1D8E4E27C47D124E) for i, w in enumerate(words)) % 2**64
    assert total == checksum
    levels_at = -(-header_bytes // 16) * 16
    levels = struct.unpack_from("<6f", octets, levels_at)
    first, second = octets[levels_at + 32], octets[levels_at + 33]
    codes = [w // 3**i % 3 for i in range(3) for w in (first, second)]
    values = [levels[3 * (n // 4) + code] for n, code in enumerate(codes)]
    assert values == [-1, 0.25, 0.25, 2, 0, 0]
    assert struct.unpack_from("<f", octets, levels_at + 48) == (0.5,)
