"""DeadZone: the error that it is for, its rate, and error feedback that stays bounded."""

from __future__ import annotations

import math

import pytest
import torch

import thinwire

DRIVE = 1 - 2 / math.pi  # the relative squared error of one bit a value on normal values, scales not counted


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def scaled(n: int, seed: int = 0) -> torch.Tensor:
    """Rows of 256 values with scales of their own, as in gradients."""
    scales = torch.exp(normal(n // 256, seed + 1)).repeat_interleave(256)
    return normal(n, seed) * scales


def energy(x: torch.Tensor) -> float:
    return float((x.double() ** 2).sum())


@pytest.mark.parametrize(("bits", "most"), [(1.0, 0.39), (2.0, 0.095), (3.0, 0.0235)])
def test_error_and_rate_on_normal_values(bits, most):
    """Above Shannon's limit, and by no more than 1.95 dB."""
    x = normal(1 << 18)
    frame = thinwire.encode(x, thinwire.DeadZone(bits=bits))
    spent = 8 * frame.numel() / len(x)
    assert 0.99 * bits <= spent <= bits
    assert 2 ** (-2 * spent) < energy(thinwire.decode(frame) - x) / energy(x) <= most


def test_error_at_one_bit_where_scales_vary():
    x = scaled(1 << 17)
    assert thinwire.expected_error(x, thinwire.DeadZone()) <= 0.65 * DRIVE


def test_expected_error_is_that_of_decoding():
    x = {"a": normal(5000), "b": 100 * scaled(5120).reshape(20, 256)}
    y = thinwire.decode(thinwire.encode(x, thinwire.DeadZone()))
    error = sum(energy(y[name] - x[name]) for name in x) / sum(energy(t) for t in x.values())
    assert thinwire.expected_error(x, thinwire.DeadZone()) == pytest.approx(error, rel=1e-6)


def residual_energies(gradients) -> list[float]:
    """The residual's energy after each step, as a share of the gradient's."""
    residual, found = torch.zeros(()), []
    for x in gradients:
        residual = residual + x
        residual = residual - thinwire.decode(thinwire.encode(residual, thinwire.DeadZone()))
        found.append(energy(residual) / energy(x))
    return found


def test_the_residual_of_error_feedback_stays_below_half_a_gradient_where_gradients_change():
    assert max(residual_energies(scaled(1 << 15, 10 * step) for step in range(32))) < 0.5


def test_the_residual_stays_bounded_where_the_gradient_never_changes():
    found = residual_energies([scaled(1 << 15)] * 48)
    assert max(found) < 1
    assert found[-1] < 1.05 * found[31]


EQUAL = {"ones": torch.ones, "signs": lambda n: normal(n).sign()}


@pytest.mark.parametrize("data", EQUAL)
@pytest.mark.parametrize(("bits", "most"), [(1.0, 0.9), (2.0, 0.5)])
def test_values_of_one_size_use_the_budget(data, bits, most):
    """No step lies between codes of 0 for all and of 1 for all, which takes over two bits a value."""
    x = EQUAL[data](1 << 17)
    frame = thinwire.encode(x, thinwire.DeadZone(bits=bits))
    assert 0.95 * bits <= 8 * frame.numel() / len(x) <= bits
    assert energy(thinwire.decode(frame) - x) <= most * energy(x)


@pytest.mark.parametrize(("n", "most"), [(4096, 60), (32768, 12)])
@pytest.mark.parametrize("data", EQUAL)
def test_the_residual_stays_bounded_where_all_values_have_one_size(data, n, most):
    """Steps 56 to 80: sending nothing would owe 3,000 to 6,400 gradients' energy by then."""
    assert max(residual_energies([EQUAL[data](n)] * 80)[56:]) < most


@pytest.mark.parametrize("bits", [3.0, 5.0, 8.0, 9.0])
def test_expected_lengths_hold_where_codes_have_low_bits(bits):
    """In messages too short to be made again for 1%, the first step meets the bits if lengths are as expected."""
    x, scheme = normal(1 << 16), thinwire.DeadZone(bits=bits)
    assert 0.99 * bits <= 8 * thinwire.encode(x, scheme).numel() / len(x) <= bits


def test_a_non_finite_value_poisons_its_run_and_no_other():
    x = normal(1000)
    x[300] = math.inf
    assert torch.equal(
        torch.isnan(thinwire.decode(thinwire.encode(x, thinwire.DeadZone()))).nonzero()[:, 0], torch.arange(256, 512)
    )
