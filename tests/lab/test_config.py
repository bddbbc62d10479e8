"""What a run may be asked for."""

from dataclasses import replace

import pytest
import torch

from thinwire import ORQ
from thinwire.errors import LabError, SchemeError
from thinwire.lab.config import RunConfig
from thinwire.lab.optimizers import RECIPES
from thinwire.lab.train import learning_rate


@pytest.mark.parametrize(
    "wrong",
    [
        {"workers": 0},
        {"epochs": 0},
        {"batch_size": 0},
        {"batch_size": 7},
        {"threads": 0},
        {"seed": -1},
        {"min_values": -1},
        {"algorithm": "ring"},
        {"error_feedback": "yes"},
        {"error_feedback": "on", "method": "fp32"},
        {"sample_every": -1},
        {"captures": -1},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"warmup": 0},
        {"momentum": 1.0},
        {"weight_decay": float("inf")},
        {"weight_decay": -0.1},
        {"data": "imagenet"},
        {"model": "vgg"},
        {"schedule": "linear"},
        {"optimizer": "lion"},
        {"model": "gpt"},
        {"data": "stdlib-text"},
        {"data": "cifar10"},
        {"data_root": "/data"},
    ],
)
def test_impossible_runs_are_refused_by_the_name_of_the_option(wrong):
    with pytest.raises(LabError, match=next(iter(wrong))):
        RunConfig(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"method": "zip"}, {"method": "orq-4"}, {"block_size": 1}, {"level_dtype": "int8"},
     {"method": "fp32", "block_size": 512}],
)  # fmt: skip
def test_impossible_methods_are_refused(wrong):
    with pytest.raises(SchemeError):
        RunConfig(**wrong)


def test_options_reach_the_scheme():
    config = RunConfig(method="orq-5", block_size=512, level_dtype="bfloat16")
    assert config.scheme() == ORQ(levels=5, block_size=512, level_dtype="bfloat16")
    assert RunConfig(method="orq-5").scheme() == ORQ(levels=5)


def test_the_model_chooses_an_optimizer_and_that_one_its_options_unless_they_are_given():
    text = {"data": "stdlib-text", "model": "gpt"}
    sgd, adamw = RECIPES["sgd"], RECIPES["adamw"]
    assert RunConfig().recipe() == sgd
    assert RunConfig(**text).recipe() == adamw
    assert RunConfig(optimizer="adamw").recipe() == adamw
    asked = RunConfig(**text, optimizer="sgd", lr=0.3, weight_decay=0.0, momentum=0.5, warmup=7)
    assert asked.recipe() == replace(sgd, lr=0.3, weight_decay=0.0, momentum=0.5, warmup=7)
    assert asked.as_dict() | {"optimizer": "sgd", "lr": 0.3, "warmup": 7} == asked.as_dict()
    weights = [torch.nn.Parameter(torch.ones(2))]
    (group,) = RunConfig(**text, momentum=0.7).recipe().build(weights).param_groups
    assert (group["lr"], group["betas"][0], group["weight_decay"]) == (adamw.lr, 0.7, adamw.weight_decay)
    (group,) = asked.recipe().build(weights).param_groups
    assert (group["lr"], group["momentum"], group["weight_decay"]) == (0.3, 0.5, 0.0)


def test_learning_rates():
    cosine, step = RunConfig(lr=0.2), RunConfig(lr=0.2, schedule="step")
    assert learning_rate(cosine, 0, 100) == pytest.approx(0.2)
    assert learning_rate(cosine, 50, 100) == pytest.approx(0.1)
    assert learning_rate(cosine, 99, 100) < 1e-4
    rates = [learning_rate(step, at, 100) for at in (0, 49, 50, 74, 75, 99)]
    assert rates == pytest.approx([0.2, 0.2, 0.02, 0.02, 0.002, 0.002])
    warm = RunConfig(data="stdlib-text", model="gpt", lr=0.2)
    assert learning_rate(warm, 0, 1000) == pytest.approx(0.2 / RECIPES["adamw"].warmup)
    assert learning_rate(warm, 500, 1000) == pytest.approx(0.1)
    assert learning_rate(RunConfig(lr=0.2, warmup=4), 1, 1_000_000) == pytest.approx(0.1)
