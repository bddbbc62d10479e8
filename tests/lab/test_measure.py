"""Looking at gradients."""

import pytest
import torch

import thinwire
from thinwire import ORQ, NoCompression, SignSGD
from thinwire.lab.measure import Probe, capture_steps, errors_by_layer, levels_in_use
from thinwire.schemes import from_spec
from thinwire.types import Key, Message, Segment


def segment(name: str, values: torch.Tensor, scheme, stream: int) -> Segment:
    return Segment(shape=tuple(values.shape), dtype=values.dtype, scheme=scheme, name=name, stream=stream)


@pytest.fixture
def gradients() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(*shape, generator=generator) for name, shape in [("a", (40, 50)), ("b", (7,))]}


def test_a_probe_sees_one_step_through_several_messages(gradients):
    schemes = {"a": ORQ(levels=3), "b": NoCompression()}
    probe = Probe(sample_every=2, captures=frozenset({4}))
    probe.begin(4)
    for stream, name in reversed(list(enumerate(gradients))):  # DDP hands over the last layers first
        values = gradients[name]
        probe(Message((segment(name, values, schemes[name], stream),), [values.flatten()]), Key())
    assert probe.error == pytest.approx(thinwire.expected_error(gradients, schemes), rel=1e-6)
    assert list(probe.gradients) == ["a", "b"]
    assert all(torch.equal(probe.gradients[name], gradients[name]) for name in gradients)
    probe.begin(5)
    assert probe.error is None
    assert probe.gradients == {}


def test_captured_gradients_are_copies(gradients):
    probe = Probe(sample_every=0, captures=frozenset({0}))
    probe.begin(0)
    values = gradients["b"].clone()
    probe(Message((segment("b", values, SignSGD(), 0),), [values]), Key())
    values.zero_()
    assert torch.equal(probe.gradients["b"], gradients["b"])


def test_captures_are_spread_over_the_run():
    assert sorted(capture_steps(96, 3)) == [16, 48, 80]
    assert capture_steps(96, 0) == frozenset()
    assert capture_steps(1, 3) == frozenset({0})


def test_errors_by_layer_are_means_over_the_snapshots_where_the_layer_is_not_zero(gradients):
    doubled = {"a": torch.zeros(40, 50), "b": gradients["b"] * 2}
    scheme = SignSGD(block_size=4)
    errors = errors_by_layer([gradients, doubled], {"signsgd": scheme}, min_values=7)
    assert errors["signsgd"]["a"] == pytest.approx(thinwire.expected_error(gradients["a"], scheme))
    assert errors["signsgd"]["b"] == pytest.approx(thinwire.expected_error(gradients["b"], scheme))  # scale-equivariant
    assert list(errors_by_layer([gradients], {"signsgd": scheme}, min_values=8)["signsgd"]) == ["a"]


def test_levels_in_use_are_those_of_one_block(gradients):
    found = levels_in_use(gradients, {"fp32": NoCompression(), "orq-5": ORQ(levels=5, block_size=512)})
    assert found["layer"] == "a"
    assert len(found["values"]) == 512
    assert list(found["methods"]) == ["orq-5"]  # a value each is no level
    drawn = found["methods"]["orq-5"]
    assert drawn["levels"][0] == min(found["values"])
    assert drawn["levels"][-1] == max(found["values"])
    assert len(drawn["levels"]) == 5
    assert sum(drawn["shares"]) == pytest.approx(1)


def test_methods_without_blocks_show_their_levels_on_2048_values():
    gradients = {"a": torch.linspace(-1, 1, 3000)}
    whole = from_spec("optimal-tensor-9")
    found = levels_in_use(gradients, {"optimal-tensor-9": whole})
    assert len(found["values"]) == 2048
    assert len(found["methods"]["optimal-tensor-9"]["levels"]) == 9
    found = levels_in_use(gradients, {"orq-9": ORQ(levels=9, block_size=256), "optimal-tensor-9": whole})
    assert len(found["values"]) == 256
