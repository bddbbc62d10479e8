"""Dithered: the rate that it promises, the error that theory gives, and what becomes of hostile parts."""

from __future__ import annotations

import math

import pytest
import torch
from tests.kernels.coding import ideal_bits
from tests.kernels.data import hostile_values
from tests.sealing import sealed

import thinwire
from thinwire.errors import FrameError, MalformedFrameError, MessageError
from thinwire.kernels.entropy.book import book
from thinwire.kernels.entropy.lengths import map_bits
from thinwire.kernels.random import random_bits
from thinwire.schemes import partition
from thinwire.schemes.coded import tables_of
from thinwire.schemes.grid import chunk_runs
from thinwire.types import DTYPES, Key
from thinwire.wire import compose
from thinwire.wire import encode as encode_message


def normal(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def energy(x: torch.Tensor) -> float:
    return float((x.double() ** 2).sum())


def unlike(seed: int) -> dict[str, torch.Tensor]:
    """Segments of very different scales and laws, 150,000 values."""
    x, g = normal(150_000, seed), torch.Generator().manual_seed(seed)
    heavy = x * torch.exp(torch.randn(len(x), generator=g))
    scaled = x * torch.exp(2 * torch.randn(600, generator=g)).repeat_interleave(250)
    return {"a": 1e-4 * x[:40_000], "b": heavy[40_000:100_000].reshape(300, 200), "c": 30 * scaled[100_000:]}


@pytest.mark.parametrize(
    ("bits", "most"), [(1.0, 0.58), (2.0, 0.100), (3.0, 0.0235), (4.0, 0.0058)], ids=lambda value: f"{value:g}"
)
def test_error_on_a_million_normal_values(bits, most):
    """Below what EDEN reaches, and above what any unbiased method can."""
    x = normal(1 << 20)
    frame = thinwire.encode(x, thinwire.Dithered(bits=bits), seed=1)
    found = energy(thinwire.decode(frame) - x) / energy(x)
    spent = 8 * frame.numel() / len(x)
    assert 0.99 * bits <= spent <= bits
    assert 1 / (2 ** (2 * spent) - 1) < found <= most


@pytest.mark.parametrize("weighting", ["tensor", "global"])
@pytest.mark.parametrize("bits", [0.5, 1.0, 1.7, 2.0, 3.0, 6.0])
def test_the_rate_is_met_within_a_percent_and_never_exceeded(bits, weighting):
    scheme = thinwire.Dithered(bits=bits, weighting=weighting)
    for message in ({"w": normal(1 << 17)}, {"w": normal(1 << 17, 1) ** 3}, unlike(0)):
        values = sum(t.numel() for t in message.values())
        for seed in range(3):
            frame = thinwire.encode(message, scheme, seed=seed)
            assert frame.numel() <= thinwire.capacity(message, scheme)
            assert 0.99 * bits * values <= 8 * frame.numel() <= bits * values


@pytest.mark.parametrize("bits", [0.5, 1.0, 2.0, 3.0])
def test_the_rate_is_met_where_all_runs_change_their_class_at_one_step(bits):
    n, scheme = 1 << 17, thinwire.Dithered(bits=bits)
    for x in (torch.ones(n), normal(n).sign(), 5 + 0.1 * normal(n), normal(n) / normal(n, 1)):
        assert 0.99 * bits * n <= 8 * thinwire.encode(x, scheme, seed=1).numel() <= bits * n


@pytest.mark.parametrize(("bits", "one", "ten"), [(0.5, 4864, 6400), (1, 2432, 3200), (2, 1216, 1600), (4, 608, 800)])
def test_from_which_size_on_no_frame_exceeds_its_bits(bits, one, ten):
    """The sizes that docs/dithered.md states; convolutions, whose shapes take more bytes, among the tensors."""
    scheme = thinwire.Dithered(bits=bits)
    for n in [*range(one, one + 60), *range(one, 20 * one, 97), 1 << 20, (1 << 20) + 1]:
        assert 8 * thinwire.capacity(torch.empty(n, device="meta"), scheme) <= bits * n
    for n in [*range(ten, ten + 60, 10), *range(ten, 20 * ten, 970)]:
        tensors = [torch.empty(n // 10, device="meta") for _ in range(10)]
        assert 8 * thinwire.capacity(tensors, scheme) <= bits * n
    convolutions = [torch.empty(64, 64, 3, 3, device="meta") for _ in range(3)] + [torch.empty(64, device="meta")] * 6
    assert 8 * thinwire.capacity(convolutions, scheme) <= bits * sum(t.numel() for t in convolutions)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("n", [1, 7, 256, 5_000])
def test_hostile_values_never_exceed_capacity(seed, n):
    for bits in (0.25, 1.0, 4.0, 12.0):
        scheme = thinwire.Dithered(bits=bits)
        x = hostile_values(n, seed)
        frame = thinwire.encode(x, scheme)
        assert frame.numel() <= thinwire.capacity(x, scheme)
        decoded = thinwire.decode(frame)
        assert torch.isfinite(decoded).all()
        assert energy(decoded - x) <= 30 * thinwire.expected_error(x, scheme) * energy(x)


def ideal_length(frame: torch.Tensor, x: torch.Tensor, scheme: thinwire.Dithered, key: Key) -> float:
    """Bits of everything but the codes, and what the tables give each code and class."""
    message, _ = compose([x], scheme)
    group = partition(message.layout)[1][0]
    plan = scheme.plan(message, group)
    runs, classes = len(plan.run_steps), plan.energies.classes(plan.step, plan.weights)
    bits = random_bits(torch.arange(len(x)), group.keys(key, None, x.device)[0])
    steps = torch.from_numpy(plan.run_steps).repeat_interleave(torch.from_numpy(plan.energies.counts))
    codes = torch.floor(x.double() * (1 / steps) + (bits + 0.5) * 2.0**-16).to(torch.int64)
    tables = tables_of(book().scales, plan.shape, 0, x.device)
    row = classes.to(torch.int64).repeat_interleave(torch.from_numpy(plan.energies.counts)) - 2
    assert int(row.min()) >= 0
    assert int(row.max()) < 44
    counted: dict[tuple[int, int, int], int] = {}
    for value in zip(codes.tolist(), (bits >> 11).tolist(), row.tolist()):
        counted[value] = counted.get(value, 0) + 1
    found = sum(many * ideal_bits(q, p, r, 0, tables, 5) for (q, p, r), many in counted.items())
    parts = thinwire.inspect(frame).parts
    head = sum(size for name, size in parts.items() if not name.endswith("codes"))
    return found + float(map_bits(classes.numpy(), chunk_runs(runs)).min()) + 8 * head


@pytest.mark.parametrize(("n", "most"), [(10_000, 0.1), (1 << 18, 0.02)])
@pytest.mark.parametrize("bits", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("data", ["normal", "laplace"])
def test_the_true_length_is_close_to_the_ideal_one(data, bits, n, most):
    scheme, key = thinwire.Dithered(bits=bits), Key(seed=3)
    x = normal(n) if data == "normal" else normal(n) * (normal(n, 1) ** 2 + normal(n, 2) ** 2).sqrt()
    frame = encode_message(compose([x], scheme)[0], key)
    assert 0 <= (8 * frame.numel() - ideal_length(frame, x, scheme, key)) / n <= most


@pytest.mark.parametrize(
    "scheme", [thinwire.Dithered(), thinwire.Dithered(weighting="global"), thinwire.Dithered(step=1)]
)
def test_the_closed_form_equals_the_mean_over_many_draws(scheme):
    """Within 5 standard errors; the bias of the mean, too."""
    x = {"a": normal(700), "b": 0.01 * normal(300, 1) ** 3, "zeros": torch.zeros(256), "empty": torch.zeros(0, 3)}
    flat = torch.cat([t.reshape(-1) for t in x.values()]).double()
    draws = 300
    decoded = [thinwire.decode(thinwire.encode(x, scheme, seed=seed)) for seed in range(draws)]
    errors = torch.stack([torch.cat([t.reshape(-1) for t in y.values()]).double() for y in decoded]) - flat
    relative = (errors**2).sum(1) / energy(flat)
    standard_error = float(relative.std()) / math.sqrt(draws)
    assert abs(float(relative.mean()) - thinwire.expected_error(x, scheme)) <= 5 * standard_error
    deviation = errors.mean(0) / (errors.std(0) / math.sqrt(draws) + 1e-30)
    assert float(deviation.abs().max()) <= 5
    assert abs(float(deviation[:1000].mean())) <= 5 / math.sqrt(1000)
    assert not errors[:, 1000:].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unbiased_in_every_dtype(dtype):
    x = normal(300).to(dtype)
    decoded = torch.stack(thinwire.decode(thinwire.encode([x] * 400, thinwire.Dithered(), seed=1))).double()
    deviation = (decoded.mean(0) - x.double()) / (decoded.std(0) / math.sqrt(400))
    assert float(deviation.abs().max()) <= 5


def test_segments_seeds_steps_and_ranks_draw_independently():
    x, scheme = normal(2000), thinwire.Dithered()
    message, _ = compose([x, x], scheme)
    errors = []
    for key in [Key(seed=s, step=t, rank=r) for s in range(3) for t in range(3) for r in range(3)]:
        errors += [y.double() - x for y in thinwire.decode(encode_message(message, key))]
    correlation = torch.corrcoef(torch.stack(errors))
    assert float((correlation - torch.eye(len(errors))).abs().max()) <= 5.5 / math.sqrt(2000)


def test_weights_say_which_segments_are_coarser():
    x = {"quiet": 1e-3 * normal(30_000), "loud": normal(30_000, 1)}

    def relative(scheme):
        y = thinwire.decode(thinwire.encode(x, scheme))
        return [energy(y[name] - x[name]) / energy(x[name]) for name in x], [energy(y[name] - x[name]) for name in x]

    (quiet, loud), _ = relative(thinwire.Dithered(weighting="tensor"))
    assert quiet == pytest.approx(loud, rel=0.05)
    _, (quiet, loud) = relative(thinwire.Dithered(weighting="global"))
    assert quiet == pytest.approx(loud, rel=0.05)
    _, (quiet, loud) = relative(thinwire.Dithered(weighting={"quiet": 1 / 64, "loud": 0.5}))
    assert 1024 * quiet == pytest.approx(loud, rel=0.05)


def test_global_weighting_has_the_least_total_error():
    x = unlike(1)
    total = {w: thinwire.expected_error(x, thinwire.Dithered(weighting=w)) for w in ("tensor", "global")}
    assert total["global"] < 0.2 * total["tensor"]


def test_a_given_step_is_taken_and_costs_what_it_costs():
    x = normal(100_000)
    for step in (0.25, 1.0, 5.0):
        scheme = thinwire.Dithered(step=step, weighting="global")
        frame = thinwire.encode(x, scheme)
        error = (thinwire.decode(frame) - x) / step
        assert 0.499 < float(error.abs().max()) <= 0.5001
        assert thinwire.expected_error(x, scheme) * energy(x) == pytest.approx(len(x) * step**2 / 12, rel=1e-3)
        assert thinwire.expected_error(3 * x, scheme) * energy(3 * x) == pytest.approx(len(x) * step**2 / 12, rel=1e-3)


def test_a_non_finite_value_poisons_its_run_and_no_other():
    x = normal(2000)
    x[[300, 1999]] = torch.tensor([math.nan, math.inf])
    y = thinwire.decode(thinwire.encode(x, thinwire.Dithered()))
    bad = torch.zeros(2000, dtype=torch.bool)
    bad[256:512], bad[1792:] = True, True
    assert torch.equal(torch.isnan(y), bad)
    assert energy((y - x)[~bad]) < 0.3 * energy(x[~bad])


def test_a_tensor_that_the_mapping_does_not_name_is_refused():
    scheme = thinwire.Dithered(weighting={"a": 1.0})
    with pytest.raises(MessageError, match="'b'"):
        thinwire.encode({"a": normal(5), "b": normal(5)}, scheme)


def test_every_truncation_and_every_changed_byte_is_refused_by_name():
    frame = thinwire.encode(normal(300), thinwire.Dithered())
    for length in range(frame.numel()):
        with pytest.raises(FrameError, match="frame"):
            thinwire.decode(frame[:length])
    for at in range(frame.numel()):
        for flip in (0x01, 0x80, 0xFF):
            altered = frame.clone()
            altered[at] ^= flip
            with pytest.raises(FrameError):
                thinwire.decode(altered)


def test_hostile_bytes_under_a_right_checksum_are_refused_or_decode():
    """What passes is some other message that an encoder may write: finite, and of the right shape."""
    frame = thinwire.encode(normal(300), thinwire.Dithered(bits=6.0))
    start, refused, tried = int(thinwire.inspect(frame).parts["header"]), 0, 0
    for at in range(start, frame.numel()):
        for flip in (0x01, 0x80, 0xFF):
            altered = frame.clone()
            altered[at] ^= flip
            tried += 1
            try:
                assert thinwire.decode(sealed(altered)).shape == (300,)
            except MalformedFrameError:
                refused += 1
    assert refused > 0.75 * tried
