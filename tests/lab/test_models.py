"""The lab's networks."""

import pytest
import torch

from thinwire.errors import LabError
from thinwire.lab.models import MODELS, build


@pytest.mark.parametrize(
    ("name", "parameters"), [("resnet20", 269_722), ("resnet56", 853_018), ("resnet110", 1_727_962)]
)
def test_residual_networks_have_the_published_number_of_parameters(name, parameters):
    model = build(name, channels=3, classes=10, seed=0)
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("name", ["cnn", "resnet20"])
@pytest.mark.parametrize(("channels", "side", "classes"), [(1, 8, 10), (1, 28, 10), (3, 32, 100)])
def test_models_take_every_data_set(name, channels, side, classes):
    model = build(name, channels=channels, classes=classes, seed=0)
    assert model(torch.zeros(2, channels, side, side)).shape == (2, classes)


def test_option_a_shortcut_subsamples_and_adds_zero_channels():
    block = build("resnet20", channels=3, classes=10, seed=0).stage2[0]
    x = torch.randn(1, 16, 8, 8)
    shortcut = block._shortcut(x)
    assert torch.equal(shortcut[:, 8:24], x[:, :, ::2, ::2])
    assert not shortcut[:, :8].any()
    assert not shortcut[:, 24:].any()


def test_weights_depend_on_the_seed_and_leave_the_global_generator_alone():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (build("cnn", channels=1, classes=10, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first.conv2.weight, again.conv2.weight)
    assert not torch.equal(first.conv2.weight, other.conv2.weight)


def test_an_unknown_model_is_refused_with_the_known_ones():
    with pytest.raises(LabError, match=", ".join(MODELS)):
        build("resnet21", channels=1, classes=10, seed=0)
