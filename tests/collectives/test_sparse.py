"""Plain averages of sparse tensors against dense ones, and the bytes that were sent."""

from __future__ import annotations

import pytest
import torch

from thinwire.collectives import Channel, plain_mean
from workers import Workers

CASES = {"rows": (1, (5,)), "values": (2, ()), "matrices": (1, (3, 2))}


def drawn(rank: int, count: int, dims: int, row: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """`count` entries at places that repeat within a rank and between ranks."""
    generator = torch.Generator().manual_seed(rank)
    indices = torch.randint(0, 9, (dims, count), generator=generator)
    values = torch.randn(count, *row, generator=generator).to(dtype)
    return torch.sparse_coo_tensor(indices, values, (9,) * dims + row, is_coalesced=False)


def mean_job(rank: int, n: int, dims: int, row: tuple[int, ...], dtype: torch.dtype, counts: list[int]) -> bytes:
    channel = Channel()
    mine = drawn(rank, counts[rank], dims, row, dtype)
    kept = mine.clone()
    mean, fp32_bytes = channel.submit(lambda: plain_mean(channel, mine)).wait()
    assert mean.is_sparse
    assert (mean.shape, mean.dtype) == (mine.shape, dtype)
    assert torch.equal(mine.to_dense(), kept.to_dense())
    every = [drawn(r, counts[r], dims, row, dtype) for r in range(n)]
    true = torch.stack([each.to_dense().to(torch.complex128) for each in every]).mean(0)
    close = 0.05 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(mean.to_dense().to(torch.complex128), true, rtol=close, atol=close)
    most = max(each.coalesce()._nnz() for each in every)
    entry = 8 * dims + torch.Size(row).numel() * dtype.itemsize
    assert channel.traffic.bytes_sent == channel.traffic.bytes_received == (n - 1) * (8 + most * entry)
    single = 2 if dtype.is_complex else 1  # float32 numbers a value
    assert fp32_bytes == (n - 1) * (8 + most * (8 * dims + 4 * single * torch.Size(row).numel()))
    channel.close()
    return mean.to_dense().view(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.complex64], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_the_mean_of_sparse_tensors_and_its_bytes(team: Workers, case: str, dtype: torch.dtype) -> None:
    dims, row = CASES[case]
    assert len(set(team.run(mean_job, dims, row, dtype, [7, 0, 30, 1]))) == 1


def test_no_rank_has_any_entry(team: Workers) -> None:
    team.run(mean_job, 1, (5,), torch.float32, [0, 0, 0, 0])
