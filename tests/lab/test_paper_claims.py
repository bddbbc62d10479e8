"""What the paper claims of its levels, on real gradients: one worker trained by the demo's recipe, all layers."""

from functools import cache

import pytest
import torch
from torch.nn import functional

import thinwire
from thinwire.lab.config import RunConfig
from thinwire.lab.data import DATASETS, load
from thinwire.lab.dataset import batches
from thinwire.lab.models import build
from thinwire.lab.train import learning_rate

STEPS = (0, 10, 40)


@cache
def snapshots() -> dict[int, dict[str, torch.Tensor]]:
    """One worker's gradients at STEPS of the demo's recipe, for every parameter that is compressed."""
    config = RunConfig(workers=4, model="resnet20", data="mnist5k", epochs=3)
    images, dataset = load(config.data, None), DATASETS[config.data]
    model = build(config.model, seed=config.seed, **dataset.shape)
    optimizer = config.recipe().build(model.parameters())
    kept = {}
    stream = batches(images, dataset, batch_size=config.batch_size, rank=0, world_size=4, seed=config.seed, epoch=0)
    for step, (batch, labels) in zip(range(max(STEPS) + 1), stream):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step, 186)
        optimizer.zero_grad()
        functional.cross_entropy(model(batch), labels).backward()
        if step in STEPS:
            named = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
            kept[step] = {n: g for n, g in named.items() if g.numel() >= config.min_values and bool(g.any())}
        optimizer.step()
    return kept


@pytest.mark.parametrize("step", STEPS)
def test_there_are_gradients_of_many_layers(step):
    assert len(snapshots()[step]) >= 18


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("levels", [3, 5, 9])
def test_orq_has_less_error_than_linear_and_qsgd(step, levels):
    gradients = snapshots()[step]
    orq, linear, qsgd = (
        thinwire.expected_error(gradients, method(levels=levels))
        for method in (thinwire.ORQ, thinwire.Linear, thinwire.QSGD)
    )
    assert orq < linear
    assert orq < qsgd
    for name, gradient in gradients.items():
        orq, linear, qsgd = (
            thinwire.expected_error(gradient, method(levels=levels))
            for method in (thinwire.ORQ, thinwire.Linear, thinwire.QSGD)
        )
        assert orq < min(linear, qsgd), name


@pytest.mark.parametrize("step", STEPS)
def test_bingrad_b_has_less_error_than_sign(step):
    for name, gradient in snapshots()[step].items():
        assert thinwire.expected_error(gradient, thinwire.BinGradB()) < thinwire.expected_error(
            gradient, thinwire.SignSGD()
        ), name
