"""The networks of the lab: a small CNN and the CIFAR ResNets, for small images of any number of channels; and a GPT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from thinwire.errors import LabError
from thinwire.lab.gpt import GPT

__all__ = ["MODELS", "Model", "build"]


def _first_convolution(channels: int) -> nn.Conv2d:
    convolution = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
    if channels == 1:  # the same order in memory, by the strides that its gradient has and DDP compares
        convolution.to(memory_format=torch.channels_last)
    return convolution


class SmallCNN(nn.Module):
    """Two convolutions and a linear layer, for smoke tests and small images.

    Args:
        channels: of the images.
        classes: number of outputs.
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.conv1 = _first_convolution(channels)
        self.norm1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(32)
        self.linear = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.norm1(self.conv1(images))), 2)
        x = functional.relu(self.norm2(self.conv2(x)))
        return self.linear(x.mean(dim=(2, 3)))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a shortcut without parameters (option A: subsample, add zero channels)."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.new_channels = channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out))
        return functional.relu(out + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.new_channels == 0:
            return x
        before = self.new_channels // 2
        x = x[:, :, :: self.stride, :: self.stride]
        return functional.pad(x, (0, 0, 0, 0, before, self.new_channels - before))


class CifarResNet(nn.Module):
    """The residual network for small images, with 6n + 2 layers.

    Args:
        depth: 20, 56, 110, ...
        channels: of the images.
        classes: number of outputs.

    References: He, Zhang, Ren, Sun, "Deep Residual Learning for Image Recognition" (2015), with
    shortcuts of option A.
    """

    def __init__(self, depth: int, channels: int, classes: int) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv1 = _first_convolution(channels)
        self.norm1 = nn.BatchNorm2d(16)
        self.stage1 = _stage(16, 16, blocks, stride=1)
        self.stage2 = _stage(16, 32, blocks, stride=2)
        self.stage3 = _stage(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = functional.relu(self.norm1(self.conv1(images)))
        x = self.stage3(self.stage2(self.stage1(x)))
        return self.linear(x.mean(dim=(2, 3)))


def _stage(channels_in: int, channels: int, blocks: int, stride: int) -> nn.Sequential:
    first = BasicBlock(channels_in, channels, stride)
    return nn.Sequential(first, *(BasicBlock(channels, channels, 1) for _ in range(blocks - 1)))


@dataclass(frozen=True, kw_only=True)
class Model:
    """A model by name.

    Args:
        takes: the kind of data set, `DataSet.kind`.
        make: builds it from a data set's `shape`.
        optimizer: what it is trained with where nothing else is asked for.
    """

    takes: str
    make: Callable[..., nn.Module]
    optimizer: str = "sgd"


MODELS: dict[str, Model] = {
    "cnn": Model(takes="images", make=SmallCNN),
    "resnet20": Model(takes="images", make=partial(CifarResNet, 20)),
    "resnet56": Model(takes="images", make=partial(CifarResNet, 56)),
    "resnet110": Model(takes="images", make=partial(CifarResNet, 110)),
    "gpt": Model(takes="text", make=GPT, optimizer="adamw"),
}


def build(name: str, *, seed: int, **shape: int) -> nn.Module:
    """Build a model with seeded weights.

    Args:
        name: one of MODELS.
        seed: of the initial weights; equal seeds give equal weights.
        shape: what the data asks for, `DataSet.shape`: channels and classes, or vocabulary and context.

    Raises:
        LabError: no such model.
    """
    if name not in MODELS:
        raise LabError(f"no model {name!r}; known: {', '.join(MODELS)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MODELS[name].make(**shape)
