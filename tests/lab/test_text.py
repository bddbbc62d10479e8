"""Text from Python's own sources, and the model that learns it."""

import copy
import math
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from thinwire.errors import LabError
from thinwire.lab import text
from thinwire.lab.config import RunConfig
from thinwire.lab.data import DATASETS, load
from thinwire.lab.dataset import batches
from thinwire.lab.models import build
from thinwire.lab.text import ALPHABET, CONTEXT, TEST_MODULES, TRAIN_MODULES, decode, encode

STDLIB = DATASETS["stdlib-text"]


@pytest.fixture
def gpt():
    return build("gpt", seed=0, **STDLIB.shape)


@pytest.fixture
def codes():
    return load("stdlib-text").test[:4].to(torch.int64)


def test_the_alphabet_survives_the_round_trip_and_anything_else_becomes_one_code():
    assert decode(encode(ALPHABET)) == ALPHABET
    assert encode(ALPHABET).tolist() == list(range(96))
    assert encode("\t\x7fé\N{SNOWMAN}\N{GRINNING FACE}").tolist() == [96] * 5
    assert decode(encode("naïve")) == "na\N{REPLACEMENT CHARACTER}ve"
    assert encode("").shape == (0,)


def test_training_and_test_text_come_from_different_files():
    assert list(TRAIN_MODULES) == sorted(set(TRAIN_MODULES))
    assert list(TEST_MODULES) == sorted(set(TEST_MODULES))
    assert not set(TRAIN_MODULES) & set(TEST_MODULES)


def test_examples_are_the_sources_and_labels_their_next_characters():
    examples, again = load("stdlib-text"), load("stdlib-text")
    assert torch.equal(examples.train, again.train)
    assert torch.equal(examples.test_labels, again.test_labels)
    assert 8000 < len(examples.train) < 16000
    assert 500 < len(examples.test) < 1500
    assert examples.train.shape[1] == CONTEXT
    for inputs, labels in ((examples.train, examples.train_labels), (examples.test, examples.test_labels)):
        assert torch.equal(inputs.flatten()[1:], labels.flatten()[:-1])
    source = Path(copy.__file__).read_text(encoding="utf-8")
    assert decode(examples.test[:8].flatten()) == source[: 8 * CONTEXT]


def test_a_missing_source_is_named(monkeypatch):
    monkeypatch.setattr(text, "TRAIN_MODULES", ("copy", "no_such_module"))
    with pytest.raises(LabError, match=r"sources of Python's standard library: .*no_such_module\.py"):
        load("stdlib-text")


def test_a_gpt_gives_logits_for_each_next_character_and_starts_near_a_uniform_guess(gpt, codes):
    logits = gpt(codes)
    assert logits.shape == (4, CONTEXT, 97)
    loss = functional.cross_entropy(logits[:, :-1].flatten(0, 1), codes[:, 1:].flatten())
    assert loss.item() == pytest.approx(math.log(97), abs=0.3)
    assert gpt(codes[:, :5]).shape == (4, 5, 97)


def test_a_later_character_does_not_change_an_earlier_prediction(gpt, codes):
    changed = codes.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 97
    before, after = gpt(codes), gpt(changed)
    assert torch.equal(before[:, :40], after[:, :40])
    assert not torch.isclose(before[:, 40:], after[:, 40:]).all(dim=2).any()


def test_the_embedding_that_reads_in_also_reads_out_as_one_parameter(gpt, codes):
    shapes = [tuple(parameter.shape) for parameter in gpt.parameters()]
    assert shapes.count((97, 128)) == 1
    assert [name for name, value in gpt.state_dict().items() if value.shape == (97, 128)] == ["embedding.weight"]
    assert 5e5 < sum(parameter.numel() for parameter in gpt.parameters()) < 1e6
    gpt(codes[:, :10]).sum().backward()
    assert gpt.embedding.weight.grad[96].any()  # a code that does not occur has a gradient from the output alone


def test_training_lowers_the_loss():
    config = RunConfig(data="stdlib-text", model="gpt", workers=1)
    model = build("gpt", seed=0, layers=1, width=32, heads=2, **STDLIB.shape)
    optimizer = config.recipe().build(model.parameters())
    losses = []
    stream = batches(load("stdlib-text"), STDLIB, batch_size=16, rank=0, world_size=1, seed=0, epoch=0)
    for _, (inputs, labels) in zip(range(25), stream):
        optimizer.zero_grad()
        losses.append(functional.cross_entropy(model(inputs).flatten(0, 1), labels.flatten()))
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.8 * losses[0]


def test_the_metric_is_bits_a_character():
    labels = torch.tensor([3, 0])
    certain = functional.one_hot(labels, 4) * 100.0
    assert float(STDLIB.metric.total(torch.zeros(2, 4), labels)) == pytest.approx(4)  # 2 bits each
    assert float(STDLIB.metric.total(certain, labels)) == pytest.approx(0)
    assert STDLIB.metric.show(1.5) == "test loss 1.50 bits a character"
