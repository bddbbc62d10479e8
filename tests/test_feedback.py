"""Residuals: the recursion itself, and everything that must not change it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import thinwire
from thinwire.feedback import Residuals, wants_feedback
from thinwire.schemes import Scheme
from thinwire.types import Key, Message, Segment
from thinwire.wire import accumulate, encode

SIGN = thinwire.SignSGD(block_size=64)


def message(*tensors: Tensor, scheme: Scheme = SIGN, first: int = 0) -> Message:
    layout = tuple(
        Segment(shape=tuple(t.shape), dtype=t.dtype, scheme=scheme, stream=first + index)
        for index, t in enumerate(tensors)
    )
    return Message(layout, [t.reshape(-1) for t in tensors])


def send(residuals: Residuals, given: Message, step: int = 0) -> Tensor:
    """What the receivers get for `given` in one exchange."""
    meant = residuals.compensate(given)
    assert meant.layout == given.layout
    decoded = torch.zeros(given.numel)
    accumulate(encode(meant, Key(step=step)), given.layout, decoded)
    residuals.keep(meant, decoded)
    return decoded


def noise(seed: int, count: int = 200) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def test_what_was_sent_and_what_is_owed_add_up_to_what_was_given() -> None:
    residuals = Residuals(True)
    given = torch.zeros(200)
    sent = torch.zeros(200)
    for step in range(50):
        given += noise(step)
        sent += send(residuals, message(noise(step)), step)
        residuals.commit()
    torch.testing.assert_close(sent + residuals.tensors()[0], given, atol=1e-4, rtol=0)
    assert residuals.tensors()[0].abs().max() > 0


def test_residuals_in_bfloat16_do_not_drift() -> None:
    """Gradients far smaller than what is owed would vanish if they were rounded to nearest."""
    residuals = Residuals(True, torch.bfloat16)
    given, sent = torch.zeros(200), torch.zeros(200)
    small = 0.002 * noise(1)
    for step in range(400):
        residuals.begin(step)
        values = small.clone()
        values[0] = 60.0  # so that everything else is mostly owed
        given += values
        sent += send(residuals, message(values, scheme=thinwire.SignSGD(block_size=200)), step)
        residuals.commit()
    owed = residuals.tensors()[0]
    assert owed.dtype == torch.bfloat16
    lost = (given - sent - owed.float())[1:]
    assert abs(float(lost.mean())) < 5 * float(lost.std()) / 199**0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes_are_fed_in_float32(dtype: torch.dtype) -> None:
    residuals = Residuals(True)
    first = noise(0).to(dtype)
    sent = send(residuals, message(first))
    residuals.commit()
    assert torch.equal(residuals.tensors()[0], first.float() - sent)
    meant = residuals.compensate(message(noise(1).to(dtype)))
    assert meant.values[0].dtype == dtype
    assert torch.equal(meant.flat, noise(1).to(dtype).float() + residuals.tensors()[0])


def test_residuals_follow_segments_into_other_messages() -> None:
    """DDP regroups parameters after the first step: pytorch#51427."""
    together, apart = Residuals(True), Residuals(True)
    a, b = noise(0), noise(1, 77)
    send(together, message(a, b))
    send(apart, message(b, first=1))
    send(apart, message(a))
    for stream in (0, 1):
        assert torch.equal(together.tensors()[stream], apart.tensors()[stream])


def test_the_given_values_are_not_written_to() -> None:
    residuals = Residuals(True)
    for step in range(3):
        given = message(noise(step))
        before = given.values[0].clone()
        send(residuals, given, step)
        assert torch.equal(given.values[0], before)
        residuals.commit()


def test_an_all_zero_gradient_sends_zeros_and_keeps_its_residual() -> None:
    """pytorch#55738: a zero bucket turns PowerSGD's state into NaN."""
    residuals = Residuals(True)
    assert torch.equal(send(residuals, message(torch.zeros(200))), torch.zeros(200))
    residuals.commit()
    send(residuals, message(noise(0)))
    residuals.commit()
    owed = residuals.tensors()[0].clone()
    assert torch.equal(send(residuals, message(torch.zeros(200))), torch.zeros(200))
    residuals.commit()
    assert torch.equal(residuals.tensors()[0], owed)


def test_a_gradient_that_cancels_its_residual_empties_it() -> None:
    residuals = Residuals(True)
    send(residuals, message(noise(0)))
    residuals.commit()
    send(residuals, message(-residuals.tensors()[0]))
    residuals.commit()
    assert torch.equal(residuals.tensors()[0], torch.zeros(200))


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_non_finite_values_never_enter_a_residual(bad: float) -> None:
    """pytorch#49374: one Inf on one rank poisons PowerSGD's residual for good."""
    residuals = Residuals(True)
    send(residuals, message(noise(0)))
    residuals.commit()
    owed = residuals.tensors()[0].clone()
    poisoned = noise(1)
    poisoned[70] = bad
    sent = send(residuals, message(poisoned))
    residuals.commit()
    assert sent[64:128].isnan().all()
    kept = residuals.tensors()[0]
    assert torch.equal(kept[64:128], owed[64:128])
    assert torch.equal(kept[:64], (poisoned + owed - sent)[:64])
    assert send(residuals, message(noise(2))).isfinite().all()


def test_a_first_message_with_nan_leaves_a_finite_residual() -> None:
    residuals = Residuals(True)
    poisoned = noise(1)
    poisoned[:] = math.nan
    send(residuals, message(poisoned))
    assert torch.equal(residuals.tensors()[0], torch.zeros(200))


def test_a_skipped_step_puts_all_residuals_back() -> None:
    residuals = Residuals(True)
    send(residuals, message(noise(0)))
    residuals.commit()
    before = residuals.tensors()
    send(residuals, message(noise(1), noise(2)))
    send(residuals, message(noise(3), first=1))
    residuals.put_back()
    after = residuals.tensors()
    assert list(after) == list(before)
    assert torch.equal(after[0], before[0])


def test_another_loss_scale_rescales_residuals() -> None:
    plain, scaled = Residuals(True), Residuals(True)
    for step, scale in enumerate((1.0, 1024.0, 512.0)):
        plain.begin(step)
        scaled.begin(step, scale)
        sent = send(plain, message(noise(step)), step)
        assert torch.equal(send(scaled, message(noise(step) * scale), step), sent * scale)
        plain.commit()
        scaled.commit()
    assert torch.equal(scaled.tensors()[0], plain.tensors()[0] * 512)


def test_which_schemes_keep_a_residual() -> None:
    def fed(scheme: Scheme, mode: object) -> bool:
        return wants_feedback(Segment(shape=(9,), dtype=torch.float32, scheme=scheme), mode)  # type: ignore[arg-type]

    assert [fed(scheme, True) for scheme in (SIGN, thinwire.ORQ(), thinwire.NoCompression())] == [True, True, False]
    assert [fed(scheme, "auto") for scheme in (SIGN, thinwire.ORQ(), thinwire.NoCompression())] == [True, False, False]
    assert not fed(SIGN, False)


def test_a_parameter_that_changes_to_an_exact_scheme_sends_what_it_owes() -> None:
    residuals = Residuals("auto")
    first = send(residuals, message(noise(0)))
    residuals.commit()
    last = send(residuals, message(noise(1), scheme=thinwire.NoCompression()))
    residuals.commit()
    torch.testing.assert_close(first + last, noise(0) + noise(1))
    assert torch.equal(residuals.tensors()[0], torch.zeros(200))


def test_empty_segments_are_harmless() -> None:
    residuals = Residuals(True)
    for step in range(2):
        send(residuals, message(torch.empty(0), noise(step), torch.empty(0, 5)), step)
        residuals.commit()
    assert [tensor.numel() for tensor in residuals.tensors().values()] == [0, 200, 0]


def distance(scheme: Scheme, feedback: bool, workers: int = 2, steps: int = 400) -> float:
    """How far from the optimum of a least-squares problem SGD ends, relative to its start, whose gradients are averaged
    as frames. Workers have different rows, so their gradients do not vanish at the optimum."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(workers, 64, 20, generator=generator)
    targets = torch.randn(workers, 64, generator=generator)
    best = torch.linalg.lstsq(rows.flatten(0, 1), targets.flatten()[:, None]).solution.flatten()
    residuals = [Residuals(feedback) for _ in range(workers)]
    weights = torch.zeros(20)
    for step in range(steps):
        errors = (rows @ weights - targets)[:, None]
        gradients = (errors @ rows).squeeze(1) / 64
        mean = sum(send(owed, message(g, scheme=scheme), step) for owed, g in zip(residuals, gradients)) / workers
        weights -= 0.3 * (1 - step / steps) * mean
    return float((weights - best).norm() / best.norm())


@pytest.mark.parametrize("scheme", [SIGN, thinwire.BinGradB(block_size=64)], ids=lambda scheme: scheme.label)
def test_biased_methods_converge_with_feedback_where_they_stall_without(scheme: Scheme) -> None:
    assert distance(scheme, False) > 0.4
    assert distance(scheme, True) < 0.01
