"""Frames without a checksum: the same means, refused by whoever expects one."""

from __future__ import annotations

import pytest
import torch

import thinwire
from thinwire.collectives import all_reduce, call, reduce_scatter
from thinwire.errors import AlteredFrameError
from thinwire.types import Key
from thinwire.wire import accumulate, compose, encode
from workers import Workers, new_group

ALGORITHMS = ["all_gather", "reduce_scatter", "hierarchical"]


def message_and_frame() -> tuple[thinwire.types.Message, torch.Tensor]:
    message, _ = compose([torch.linspace(-1, 1, 300)], thinwire.ORQ())
    return message, encode(message, Key(step=4), checked=False)


def test_an_unchecked_frame_is_read_only_by_who_expects_it() -> None:
    message, frame = message_and_frame()
    total = torch.zeros(300)
    accumulate(frame, message.layout, total, checked=False)
    assert torch.equal(total, thinwire.decode(encode(message, Key(step=4)))[0])
    for read in (thinwire.decode, thinwire.inspect, lambda f: accumulate(f, message.layout, total)):
        with pytest.raises(AlteredFrameError, match="no checksum, but one was expected"):
            read(frame)
    with pytest.raises(AlteredFrameError, match="a checksum, but none was expected"):
        accumulate(encode(message, Key()), message.layout, total, checked=False)


def test_a_checked_frame_whose_flags_were_altered_does_not_pass_for_an_unchecked_one() -> None:
    message, frame = message_and_frame()
    checked = encode(message, Key(step=4))
    assert checked.numel() == frame.numel()
    checked[60] = 1
    with pytest.raises(AlteredFrameError, match="and has one"):
        accumulate(checked, message.layout, torch.zeros(300), checked=False)


def test_an_unexpected_unchecked_frame_is_named_as_that() -> None:
    _, frame = message_and_frame()
    other = compose([torch.zeros(301)], thinwire.ORQ())[0].layout
    with pytest.raises(thinwire.errors.UnexpectedFrameError, match="segment 0 has shape"):
        accumulate(frame, other, torch.zeros(301), checked=False)


def same_job(rank: int, n: int, algorithm: str) -> bytes:
    x = torch.randn(9000, generator=torch.Generator().manual_seed(rank))
    nodes = 2 if algorithm == "hierarchical" else None
    checked, unchecked = (
        all_reduce(x, thinwire.ORQ(), key=Key(step=2), algorithm=algorithm, ranks_per_node=nodes, checksum=checksum)
        for checksum in (True, False)
    )
    assert torch.equal(checked, unchecked)
    halves = [reduce_scatter(x, thinwire.ORQ(), key=Key(step=2), checksum=checksum) for checksum in (True, False)]
    assert torch.equal(*halves)
    return unchecked.numpy().tobytes()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_mean_is_the_same_without_a_checksum(four: Workers, algorithm: str) -> None:
    results = four.run(same_job, algorithm)
    assert set(results) == {results[0]}


def disagreeing_job(rank: int, n: int, algorithm: str) -> str:
    with pytest.raises(thinwire.ThinwireError) as caught:
        all_reduce(torch.ones(9000), thinwire.ORQ(), group=new_group(), algorithm=algorithm, checksum=rank != 2)
    return str(caught.value)


@pytest.mark.parametrize("algorithm", ["all_gather", "reduce_scatter"])
def test_ranks_that_disagree_about_checksums_get_an_error(four: Workers, algorithm: str) -> None:
    assert all("checksum" in said for said in four.run(disagreeing_job, algorithm))


def altered_job(rank: int, n: int) -> float:
    """One code of rank 1 changes its bits in transit: what a checksum is for."""

    def flipped(*args: object, **options: bool) -> torch.Tensor:
        frame = encode(*args, **options)  # type: ignore[arg-type]
        frame[-20] ^= 4
        return frame

    x = torch.randn(9000, generator=torch.Generator().manual_seed(rank))
    options = {"key": Key(step=2), "algorithm": "all_gather", "checksum": False}
    good = all_reduce(x, thinwire.ORQ(), **options)
    with pytest.MonkeyPatch.context() as patch:
        if rank == 1:
            patch.setattr(call, "encode", flipped)
        bad = all_reduce(x, thinwire.ORQ(), **options)
    return float((good - bad).abs().sum())


def test_without_a_checksum_altered_bytes_pass_alike_on_all_ranks(four: Workers) -> None:
    results = four.run(altered_job)
    assert set(results) == {results[0]}
    assert results[0] > 0
