"""What every method owes: pure, deterministic, exact on zeros and constants, loud on bad options, equal everywhere."""

import dataclasses

import pytest
import torch
from tests.kernels.data import hostile_values
from tests.schemes.cases import CASES

import thinwire
from thinwire import kernels
from thinwire.errors import SchemeError
from thinwire.schemes import METHODS, LeveledScheme, from_options, from_spec
from thinwire.types import DTYPES

LEVELED = [case for case in CASES if isinstance(case, LeveledScheme)]
all_cases = pytest.mark.parametrize("scheme", CASES, ids=repr)
leveled_cases = pytest.mark.parametrize("scheme", LEVELED, ids=repr)


def through(x, scheme, seed=0):
    return thinwire.decode(thinwire.encode(x, scheme, seed=seed))


def test_the_list_covers_every_method():
    assert {type(case) for case in CASES} == set(METHODS.values())


@all_cases
def test_frozen_keyword_only_and_rebuilt_from_its_name_and_options(scheme):
    assert from_options(scheme.method, scheme.options()) == scheme
    assert from_spec(scheme.label).label == scheme.label
    assert getattr(thinwire, type(scheme).__name__) is type(scheme)
    with pytest.raises(TypeError):
        type(scheme)(9)
    with pytest.raises((dataclasses.FrozenInstanceError, AttributeError)):
        scheme.block_size = 3


def test_dithered_has_two_bits_unless_they_or_a_step_are_given():
    assert thinwire.Dithered().bits == thinwire.Dithered(bits=None).bits == 2.0
    assert thinwire.Dithered(step=0.5).bits is None
    for built in (from_spec("dithered", step=0.5), from_options("dithered", thinwire.Dithered(step=0.5).options())):
        assert built == thinwire.Dithered(step=0.5)


@all_cases
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bytes_and_same_values_on_every_backend(scheme, dtype):
    for seed in range(12):
        x = hostile_values(2300, seed).to(dtype)
        frames, decoded = [], []
        for name in ("reference", "cpu"):
            with kernels.backend(name):
                frames.append(thinwire.encode(x, scheme, seed=seed))
                decoded.append(thinwire.decode(frames[0]))
        assert torch.equal(*frames)
        assert torch.equal(*[d.nan_to_num(7) for d in decoded])


@all_cases
def test_input_is_not_mutated_and_equal_seeds_give_equal_bytes(scheme):
    x = hostile_values(3000, 0)
    before = x.clone()
    one, two, other = (thinwire.encode(x, scheme, seed=seed) for seed in (5, 5, 6))
    assert torch.equal(x, before)
    assert torch.equal(one, two)
    if getattr(scheme, "rounding", "") == "stochastic":
        assert not torch.equal(thinwire.decode(one), thinwire.decode(other))


@all_cases
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_zeros_decode_to_exact_zeros_beside_other_blocks(scheme, dtype):
    block = max(2048, scheme.options().get("block_size") or 0)
    x = torch.cat([torch.zeros(block), torch.randn(block), torch.zeros(100)]).to(dtype)
    y = through(x, scheme)
    assert not y[:block].any()
    assert not y[2 * block :].any()
    assert not torch.isnan(y).any()


@leveled_cases
@pytest.mark.parametrize("value", [1.0, -3.25, 2.0**-100, 2.0**100])
def test_constant_blocks_come_back_exactly(scheme, value):
    if isinstance(scheme, thinwire.QSGD) and scheme.norm == "l2":
        pytest.skip("the L2 norm of a constant block is above the constant, so it is not a level")
    x = torch.full((300,), value)
    assert torch.equal(through(x, scheme), x)


@leveled_cases
def test_fewer_distinct_values_than_levels(scheme):
    y = through(torch.tensor([1.0, 2.0] * 50), scheme)
    assert torch.isfinite(y).all()
    if isinstance(scheme, (thinwire.ORQ, thinwire.Linear, thinwire.BinGradB)):
        assert torch.equal(y, torch.tensor([1.0, 2.0] * 50))


@all_cases
def test_power_of_two_scaling_commutes(scheme):
    if not scheme.traits.scale_equivariant:
        pytest.skip("not declared")
    x = hostile_values(4096, 0)
    for exponent in (-60, 3, 60):
        assert torch.equal(through(x * 2.0**exponent, scheme), through(x, scheme) * 2.0**exponent)


@leveled_cases
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf"), 2.0**127])
def test_a_non_finite_value_poisons_its_block_and_no_other(scheme, poison):
    scheme = dataclasses.replace(scheme, block_size=64)
    x = torch.randn(256)
    x[100] = poison
    y = through(x, scheme)
    assert torch.isnan(y[64:128]).all()
    assert torch.isfinite(y[:64]).all()
    assert torch.isfinite(y[128:]).all()


def test_no_compression_is_the_identity_to_the_bit():
    x = torch.tensor([0.0, -0.0, float("-inf"), float("inf"), 1e-45, 3.3e38, 1 / 3], dtype=torch.float64)
    for dtype in DTYPES:
        before = x.to(dtype)
        after = through(before, thinwire.NoCompression())
        assert after.view(torch.uint8).tolist() == before.view(torch.uint8).tolist()
        assert torch.isnan(through(torch.full((3,), float("nan"), dtype=dtype), thinwire.NoCompression())).all()


@leveled_cases
def test_codes_follow_positions_not_neighbours(scheme):
    """A segment's bytes depend on its own values, key and stream alone: more segments beside it change nothing."""
    a, b = torch.randn(3000), torch.randn(500)
    alone = through([a], scheme)[0]
    assert torch.equal(alone, through([a, b], scheme)[0])
    assert torch.equal(alone, through({"a": a, "b": b}, {"a": scheme, "b": thinwire.NoCompression()})["a"])


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda: thinwire.ORQ(levels=4), "2\\^K \\+ 1"),
        (lambda: thinwire.ORQ(levels=257), "3..129"),
        (lambda: thinwire.ORQ(levels=9.0), "integer"),
        (lambda: thinwire.ORQ(levels=True), "integer"),
        (lambda: thinwire.ORQ(block_size=1), "at least 2|2\\.\\."),
        (lambda: thinwire.ORQ(level_dtype="float16"), "level_dtype"),
        (lambda: thinwire.QSGD(levels=8), "odd"),
        (lambda: thinwire.QSGD(norm="l1"), "norm"),
        (lambda: thinwire.MinMax(levels=1), "levels"),
        (lambda: thinwire.MinMax(levels=257), "levels"),
        (lambda: thinwire.Linear(levels=0), "levels"),
        (lambda: thinwire.TernGrad(clip=0), "clip"),
        (lambda: thinwire.TernGrad(clip=float("nan")), "clip"),
        (lambda: thinwire.TernGrad(clip="2"), "clip"),
        (lambda: thinwire.TernGrad(clip=10**400), "clip"),
        (lambda: thinwire.Dithered(bits=0.1), "bits"),
        (lambda: thinwire.Dithered(bits=True), "bits"),
        (lambda: thinwire.Dithered(bits=float("nan")), "bits"),
        (lambda: thinwire.Dithered(bits=3, step=0.5), "either"),
        (lambda: thinwire.Dithered(bits=2.0, step=0.5), "either"),
        (lambda: thinwire.Dithered(step=0), "step"),
        (lambda: thinwire.Dithered(weighting="layer"), "weighting"),
        (lambda: thinwire.Dithered(weighting={}), "weighting"),
        (lambda: thinwire.Dithered(weighting=("w",)), "weighting"),
        (lambda: thinwire.Dithered(weighting=(1, 2)), "weighting"),
        (lambda: thinwire.Rotated(bits=None), "bits"),
        (lambda: thinwire.DeadZone(bits=None), "bits"),
        (lambda: thinwire.Dithered(weighting={"w": 0}), "weight of 'w'"),
        (lambda: from_spec("orc-9"), "orq"),
        (lambda: from_spec("orq-" + "9" * 5000), "unknown method"),
        (lambda: from_spec("signsgd-3"), "no option 'levels'"),
        (lambda: from_spec("fp32", block_size=64), "no option"),
        (lambda: from_options("orq", {"level": 9}), "its options are"),
    ],
)
def test_bad_options_are_refused_by_name(build, says):
    with pytest.raises(SchemeError, match=says):
        build()
