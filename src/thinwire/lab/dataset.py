"""What a data set of the lab is: examples in memory, how a model sees them and is tested, and each worker's share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from thinwire.errors import LabError

__all__ = ["DataSet", "Examples", "Metric", "batches", "shares", "steps_per_epoch"]


@dataclass(frozen=True, kw_only=True)
class Examples:
    """A data set in memory: one row an example.

    `train` and `test` are uint8, the labels int64. Images: `[n, channels, height, width]` and `[n]`. Text:
    `[n, context]` characters and `[n, context]`, the character after each.
    """

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    def __post_init__(self) -> None:
        for inputs, labels in ((self.train, self.train_labels), (self.test, self.test_labels)):
            if inputs.dtype != torch.uint8 or labels.dtype != torch.int64 or len(inputs) != len(labels):
                raise LabError(
                    f"examples {inputs.dtype} {tuple(inputs.shape)} with labels {labels.dtype} {tuple(labels.shape)}"
                )


@dataclass(frozen=True, kw_only=True)
class Metric:
    """What a test measures: the mean of a value that each prediction has.

    Args:
        name: of the number in metrics.jsonl, summary.json and results.json.
        label, unit: how people call it, and in what they count it.
        factor: from the stored number to that unit.
        higher_is_better: which end of the axis is good.
        total: float32 logits `[n, classes]` and int64 labels `[n]` to the sum of their values, float64 `[]`.
    """

    name: str
    label: str
    unit: str
    factor: float = 1.0
    higher_is_better: bool
    total: Callable[[Tensor, Tensor], Tensor]

    @property
    def title(self) -> str:
        return f"{self.label.capitalize()}, {self.unit}"

    def show(self, value: float) -> str:
        """Write a stored number as people read it."""
        return f"{self.label} {self.factor * value:.2f} {self.unit}"


@dataclass(frozen=True, kw_only=True)
class DataSet(ABC):
    """How a data set is read and how a model sees it.

    Args:
        read: makes the examples, from files below a folder for those that are not bundled.
        folder: where below data_root the files are; "" = bundled with an installed package.
    """

    read: Callable[[Path], Examples]
    folder: str = ""

    kind: ClassVar[str]  # what a model must take: "images", "text"
    example: ClassVar[str]  # one of them in words, in the plural
    metric: ClassVar[Metric]

    @property
    @abstractmethod
    def shape(self) -> dict[str, int]:
        """What a model of this kind must know to be built: keyword arguments of its constructor."""

    @abstractmethod
    def inputs(self, raw: Tensor) -> Tensor:
        """Turn raw examples into what a model takes."""

    def augment(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        """Vary raw training examples at random; as they are, unless a kind knows how."""
        return raw


def batches(
    examples: Examples, dataset: DataSet, *, batch_size: int, rank: int, world_size: int, seed: int, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this worker's share of an epoch: the same number of batches, of the same sizes, on every worker.

    All workers draw one order of the examples; batch i is the i-th run of `batch_size` of them, of which each
    worker takes every `world_size`-th. Only the last batch may be smaller; of it, fewer than `world_size` examples
    are left out, others in every epoch.

    Args:
        examples: the data.
        dataset: how a model sees them.
        batch_size: examples a step over all workers together, a multiple of world_size.
        rank: this worker's.
        world_size: number of workers.
        seed, epoch: which order and augmentation.

    Yields:
        What a model takes, and int64 labels `[n, ...]`.
    """
    for chosen, generator in shares(
        len(examples.train), batch_size=batch_size, rank=rank, world_size=world_size, seed=seed, epoch=epoch
    ):
        raw = dataset.augment(examples.train[chosen], generator)
        yield dataset.inputs(raw), examples.train_labels[chosen]


def shares(
    count: int, *, batch_size: int, rank: int, world_size: int, seed: int, epoch: int
) -> Iterator[tuple[Tensor, torch.Generator]]:
    """Yield the indices of each of this worker's batches and the generator that augments it."""
    order = np.random.default_rng([seed, epoch]).permutation(count)
    for index in range(steps_per_epoch(count, batch_size, world_size)):
        batch = order[index * batch_size : (index + 1) * batch_size]
        batch = batch[: len(batch) - len(batch) % world_size]
        draw = np.random.default_rng([seed, epoch, index, rank]).integers(2**63)
        yield torch.from_numpy(batch[rank::world_size]), torch.Generator().manual_seed(int(draw))


def steps_per_epoch(count: int, batch_size: int, world_size: int) -> int:
    """Return the number of batches an epoch, equal on all workers."""
    full, rest = divmod(count, batch_size)
    return full + (rest >= world_size)
