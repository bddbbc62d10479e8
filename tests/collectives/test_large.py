"""More than one collective can move, and more than 2^31 values: in several, at 64-bit offsets."""

from __future__ import annotations

import pytest
import torch

import thinwire
from samples import Squeezed
from thinwire import kernels
from thinwire.collectives import Channel, agree, average, plain_mean
from thinwire.collectives.shards import cut
from thinwire.collectives.transport import Link
from thinwire.types import Key, Message, Segment
from thinwire.wire import compose
from workers import Workers

ALGORITHMS = ["all_gather", "reduce_scatter", "hierarchical"]
FAR = (1 << 31) + 7


def message_of(rank: int, elastic: bool) -> Message:
    x = torch.randn(9001, generator=torch.Generator().manual_seed(rank))
    x[(3000 * rank + 100) % 9001 :] = 0  # so that elastic frames differ in length
    return compose([x, torch.ones(5)], Squeezed() if elastic else thinwire.ORQ())[0]


def chunked_job(rank: int, n: int, algorithm: str, elastic: bool, most: int) -> bytes:
    """The same in collectives of at most `most` bytes a rank; each of them is counted."""
    message, moved = message_of(rank, elastic), {Link.most: 0, most: 0}
    means, traffic = [], []
    for limit in (Link.most, most):
        channel = Channel(None, 2 if algorithm == "hierarchical" and n > 1 else 1)
        carry = channel.link._carry

        def counted(collective: object, *tensors: torch.Tensor, limit: int = limit, carry: object = carry) -> None:
            moved[limit] += 1
            assert all(t.numel() * t.element_size() <= max(limit, n) for t in tensors)
            carry(collective, *tensors)  # type: ignore[operator]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Link, "most", limit)
            patch.setattr(channel.link, "_carry", counted)
            means.append(average(channel, message, Key(step=3), algorithm).wait())
            agree(channel, {"words": "the same " * 100})
            plain, _ = channel.submit(lambda: plain_mean(channel, message.flat)).wait()  # noqa: B023
        traffic.append(channel.traffic.bytes_sent)
        channel.close()
    assert torch.equal(*means)
    torch.testing.assert_close(plain, torch.stack([message_of(r, elastic).flat for r in range(n)]).mean(0))
    assert traffic[0] == traffic[1] or (elastic and traffic[0] < traffic[1])  # padded to the last one
    assert n == 1 or moved[most] > 2 * moved[Link.most]
    return means[1].numpy().tobytes()


@pytest.mark.parametrize("elastic", [False, True], ids=["of one length", "elastic"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_exceeds_one_collective_goes_in_several(team: Workers, algorithm: str, elastic: bool) -> None:
    results = team.run(chunked_job, algorithm, elastic, 4000)
    assert set(results) == {results[0]}


def test_capacity_and_shards_of_more_than_2_to_the_31_values() -> None:
    values = (1 << 33) + 5
    x = torch.empty(values, device="meta")
    frame_bytes = thinwire.capacity(x, thinwire.ORQ(levels=9))
    assert 8 * frame_bytes / values == pytest.approx(3.34, abs=0.01)
    segment = Segment(shape=(values,), dtype=torch.float32, scheme=thinwire.ORQ())
    pieces = [piece for shard in cut((segment,), 8) for piece in shard.pieces]
    assert sum(piece.count for piece in pieces) == values
    assert pieces[-1].stop == values


def test_kernels_read_and_write_beyond_2_to_the_31_values() -> None:
    """One block at the far end of memory that is never touched otherwise."""
    try:
        far = torch.empty(FAR + 2048)
    except RuntimeError:
        pytest.skip("8 GiB of address space are not to be had")
    near = torch.randn(2048, generator=torch.Generator().manual_seed(0))
    far[FAR:] = near
    here, there = (torch.tensor([[start, 2048, 0, FAR]]) for start in (0, FAR))
    key = torch.tensor([5])
    levels = kernels.solve_orq(far, there, 9)
    assert torch.equal(levels, kernels.solve_orq(near, here, 9))
    codes = kernels.quantize(far, levels, there, key, False)
    assert torch.equal(codes, kernels.quantize(near, levels, here, key, False))
    out = torch.zeros(2048)
    kernels.dequantize(codes, levels, here, out, False)
    kernels.dequantize(codes, levels, there, far, False)
    assert torch.equal(far[FAR:], out)
