"""Ownership of values: every value once, by segment and block alone, at multiples of the block."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

import thinwire
from thinwire.collectives.shards import cut
from thinwire.types import Layout, Message, Segment

SCHEMES = [
    thinwire.ORQ(block_size=16),
    thinwire.ORQ(block_size=2048),
    thinwire.SignSGD(block_size=None),
    thinwire.NoCompression(),
]


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    """Up to six segments of distinct streams in any order, of awkward sizes."""
    streams = draw(st.permutations(range(8)))[: draw(st.integers(0, 6))]
    return tuple(
        Segment(
            shape=(draw(st.sampled_from([0, 1, 2, 7, 15, 16, 17, 33, 1023, 1025, 2053, 4096, 8191])),),
            dtype=torch.float32,
            scheme=draw(st.sampled_from(SCHEMES)),
            name=f"p{stream}",
            stream=stream,
        )
        for stream in streams
    )


@given(layouts(), st.integers(1, 9))
def test_every_value_belongs_to_exactly_one_rank(layout: Layout, ranks: int) -> None:
    shards = cut(layout, ranks)
    assert len(shards) == ranks
    values = torch.arange(sum(segment.numel for segment in layout), dtype=torch.float32)
    message = Message(layout, list(values.split([segment.numel for segment in layout])))
    back = torch.full_like(values, -1)
    for shard in shards:
        part = shard.of(message)
        assert torch.equal(torch.cat([*part.values, values[:0]]), part.flat)
        assert [value.numel() for value in part.values] == [segment.numel for segment in shard.layout]
        assert shard.numel == part.numel
        shard.scatter(part.flat, back)
    assert torch.equal(back, values)


@given(layouts(), st.integers(1, 9), st.randoms())
def test_owners_do_not_depend_on_the_message_around_a_segment(layout: Layout, ranks: int, random: object) -> None:
    """A bucket that DDP rebuilds in another order, or in several buckets, keeps its owners."""

    def owners(*messages: Layout) -> set[tuple[int, str, int, int, int]]:
        return {
            (rank, segment.name, segment.stream, piece.start, piece.stop)
            for message in messages
            for rank, shard in enumerate(cut(message, ranks))
            for piece, segment in zip(shard.pieces, shard.layout)
        }

    half = len(layout) // 2
    assert owners(layout) == owners(layout[::-1]) == owners(layout[half:], layout[:half])


@given(layouts(), st.integers(1, 9))
def test_pieces_are_whole_blocks_of_almost_equal_number_and_draw_their_own_numbers(layout: Layout, ranks: int) -> None:
    streams = [segment.stream for shard in cut(layout, ranks) for segment in shard.layout]
    assert len(set(streams)) == len(streams)
    assert all(stream >= 1 << 32 for stream in streams)
    pieces = [piece for shard in cut(layout, ranks) for piece in shard.pieces]
    for index, segment in enumerate(layout):
        own = [piece for piece in pieces if piece.segment == index]
        block = getattr(segment.scheme, "block_size", 1024)
        if block is None:
            assert max(p.count for p in own) - min(p.count for p in own) < ranks if own else segment.numel == 0
            continue
        assert all(piece.start % block == 0 for piece in own)
        counts = [-(-piece.count // block) for piece in own]
        assert not counts or max(counts) - min(counts) <= 1


def test_shards_of_a_large_tensor_are_even_and_those_of_many_small_ones_spread() -> None:
    large = Segment(shape=(1 << 20,), dtype=torch.float32, scheme=thinwire.ORQ())
    assert {shard.numel for shard in cut((large,), 8)} == {1 << 17}
    small = tuple(
        Segment(shape=(16,), dtype=torch.float32, scheme=thinwire.NoCompression(), stream=stream)
        for stream in range(64)
    )
    assert {shard.numel for shard in cut(small, 8)} == {128}


def test_the_second_scheme_replaces_what_loses_something() -> None:
    segments = [
        Segment(shape=(4096,), dtype=torch.float32, scheme=scheme, stream=stream)
        for stream, scheme in enumerate((thinwire.ORQ(), thinwire.NoCompression()))
    ]
    shard = cut(tuple(segments), 1)[0]
    assert [s.scheme for s in shard.under(thinwire.QSGD())] == [thinwire.QSGD(), thinwire.NoCompression()]
    assert shard.under(None) == shard.layout
