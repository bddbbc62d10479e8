"""Stochastic rounding to bfloat16: backends agree to the bit, neighbours only, unbiased, never past the largest."""

from __future__ import annotations

import pytest
import torch

from thinwire import kernels

LARGEST = torch.finfo(torch.bfloat16).max


def narrow(values: torch.Tensor, key: int = 3) -> torch.Tensor:
    return kernels.round_to_bfloat16(values, key)


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 255, 256, 257, 1000, 100_003])
@pytest.mark.parametrize("key", [0, -1, 0x1234_5678_9ABC_DEF])
def test_backends_agree(count: int, key: int) -> None:
    bits = torch.randint(-(1 << 31), 1 << 31, (count,), generator=torch.Generator().manual_seed(count))
    values = bits.to(torch.int32).view(torch.float32)
    values = torch.where(values.isfinite(), values, 1.0)  # every other pattern, subnormal ones included
    with kernels.backend("reference"):
        expected = narrow(values, key)
    assert torch.equal(narrow(values, key).view(torch.int16), expected.view(torch.int16))


def test_a_value_becomes_one_of_its_neighbours_and_on_average_itself() -> None:
    low, high = torch.tensor([1.0, 1.0078125]).unbind()
    for part in (0.0, 0.125, 0.5, 0.9):
        value = torch.lerp(low, high, part)
        for sign in (1, -1):
            rounded = narrow((sign * value).expand(1 << 16).contiguous()).float() * sign
            assert set(rounded.tolist()) <= {low.item(), high.item()}
            share = float((rounded == high).float().mean())
            assert abs(share - part) < 5 * (part * (1 - part) / (1 << 16)) ** 0.5 + 1e-6


def test_what_bfloat16_holds_stays_and_nothing_becomes_infinite() -> None:
    exact = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16).float()
    exact = exact[exact.isfinite()]
    assert torch.equal(narrow(exact).float(), exact)
    huge = torch.full((4096,), torch.finfo(torch.float32).max)
    assert narrow(huge).float().unique().tolist() == [LARGEST]
    assert narrow(-huge).float().unique().tolist() == [-LARGEST]
