"""Data sets, their augmentation, and what each worker gets of them."""

import hashlib
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from torch import Tensor

from thinwire.errors import LabError
from thinwire.lab.data import load
from thinwire.lab.dataset import Examples, batches, shares, steps_per_epoch
from thinwire.lab.extra import require
from thinwire.lab.images import IMAGES, stratified_split

CIFAR = {"cifar10": torchvision.datasets.CIFAR10, "cifar100": torchvision.datasets.CIFAR100}


def write_cifar(name: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Tensor, list[int]]:
    """Write a tiny CIFAR folder as the original one is pickled, and make torchvision expect its checksums.

    Returns:
        The training images, uint8 `[n, 3, 32, 32]`, and their labels.
    """
    kind = CIFAR[name]
    folder = root / kind.base_folder
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    label_key = "labels" if name == "cifar10" else "fine_labels"
    images, labels = [], []

    def write(file: str, content: dict) -> list[str]:
        data = pickle.dumps(content, protocol=2)
        (folder / file).write_bytes(data)
        return [file, hashlib.md5(data).hexdigest()]

    def write_batch(file: str) -> list[str]:
        data = rng.integers(0, 256, (6, 3072), dtype=np.uint8)
        targets = rng.integers(0, IMAGES[name].classes, 6).tolist()
        if file not in ("test", "test_batch"):
            images.append(data)
            labels.extend(targets)
        return write(file, {"data": data, label_key: targets, "batch_label": file})

    monkeypatch.setattr(kind, "train_list", [write_batch(file) for file, _ in kind.train_list])
    monkeypatch.setattr(kind, "test_list", [write_batch(file) for file, _ in kind.test_list])
    file, checksum = write(kind.meta["filename"], {kind.meta["key"]: ["a"] * IMAGES[name].classes})
    monkeypatch.setattr(kind, "meta", {**kind.meta, "filename": file, "md5": checksum})
    return torch.from_numpy(np.concatenate(images)).reshape(-1, 3, 32, 32), labels


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_is_read_from_its_own_pickle_format(name, tmp_path, monkeypatch):
    expected, labels = write_cifar(name, tmp_path, monkeypatch)
    images = load(name, tmp_path)
    assert torch.equal(images.train, expected)
    assert images.train_labels.tolist() == labels
    assert images.test.shape == (6, 3, 32, 32)


def test_missing_cifar_files_are_named_with_the_place_where_they_are_expected(tmp_path, monkeypatch):
    write_cifar("cifar10", tmp_path, monkeypatch)
    folder = tmp_path / "cifar-10-batches-py"
    (folder / "data_batch_3").unlink()
    with pytest.raises(LabError, match=r"no data_batch_3 in .*cifar-10-batches-py.*cifar-10-python.tar.gz"):
        load("cifar10", tmp_path)


def test_a_damaged_cifar_file_is_named(tmp_path, monkeypatch):
    write_cifar("cifar100", tmp_path, monkeypatch)
    file = tmp_path / "cifar-100-python" / "train"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(LabError, match=r"damaged in .*cifar-100-python: train "):
        load("cifar100", tmp_path)


def test_a_cifar_file_of_other_content_is_refused(tmp_path, monkeypatch):
    write_cifar("cifar100", tmp_path, monkeypatch)
    data = pickle.dumps({"data": np.zeros((6, 3072), np.uint8)})  # no labels
    (tmp_path / "cifar-100-python" / "train").write_bytes(data)
    monkeypatch.setattr(CIFAR["cifar100"], "train_list", [["train", hashlib.md5(data).hexdigest()]])
    with pytest.raises(LabError, match="cannot be read as CIFAR100"):
        load("cifar100", tmp_path)


@pytest.mark.parametrize(("name", "train", "test"), [("digits", 1438, 359), ("mnist5k", 4000, 1000)])
def test_bundled_data_has_a_stratified_split_and_its_stated_normalisation(name, train, test):
    images, dataset = load(name), IMAGES[name]
    assert (len(images.train), len(images.test)) == (train, test)
    counts = torch.bincount(images.test_labels, minlength=dataset.classes)
    assert counts.max() - counts.min() <= 2
    values = dataset.inputs(images.train)
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02


def test_a_split_keeps_every_index_once_and_depends_on_its_seed_alone():
    labels = np.repeat(np.arange(5), 20)
    train, test = stratified_split(labels, 0.25, seed=1)
    assert sorted([*train, *test]) == list(range(100))
    assert np.bincount(labels[test]).tolist() == [5] * 5
    assert np.array_equal(stratified_split(labels, 0.25, seed=1)[1], test)
    assert not np.array_equal(stratified_split(labels, 0.25, seed=2)[1], test)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("count", [1, 7, 24, 100, 101])
def test_workers_share_an_epoch_without_overlap_in_batches_of_equal_size(world_size, count):
    batch_size = 12
    parts = [
        [chosen for chosen, _ in shares(count, batch_size=batch_size, rank=r, world_size=world_size, seed=3, epoch=1)]
        for r in range(world_size)
    ]
    sizes = [[len(chosen) for chosen in part] for part in parts]
    assert all(size == sizes[0] for size in sizes)
    assert len(sizes[0]) == steps_per_epoch(count, batch_size, world_size)
    seen = [int(i) for part in parts for chosen in part for i in chosen]
    assert len(set(seen)) == len(seen)
    assert 0 <= count - len(seen) < world_size


def test_the_order_depends_on_seed_and_epoch_alone():
    def order(seed, epoch):
        parts = shares(50, batch_size=10, rank=0, world_size=2, seed=seed, epoch=epoch)
        return [chosen.tolist() for chosen, _ in parts]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def some_images(side: int, channels: int) -> Examples:
    pixels = torch.zeros(8, channels, side, side, dtype=torch.uint8)
    pixels[:, :, 10, 10] = 200  # one bright pixel, off the middle
    labels = torch.zeros(8, dtype=torch.int64)
    return Examples(train=pixels, train_labels=labels, test=pixels, test_labels=labels)


def bright_columns(name: str) -> set[int]:
    dataset = IMAGES[name]
    columns = set()
    for epoch in range(12):
        for batch, _ in batches(
            some_images(32, dataset.channels), dataset, batch_size=8, rank=0, world_size=1, seed=0, epoch=epoch
        ):
            columns |= set(batch[:, 0].amax(dim=1).argmax(dim=1).tolist())
    return columns


def test_cifar_is_shifted_and_mirrored_mnist_only_shifted_digits_neither():
    assert bright_columns("cifar10") == {*range(6, 15), *range(17, 26)}
    assert bright_columns("mnist5k") == set(range(8, 13))
    assert bright_columns("digits") == {10}


def test_batches_are_channels_last_in_memory():
    images = some_images(32, 3)
    batch, _ = next(batches(images, IMAGES["cifar10"], batch_size=8, rank=0, world_size=1, seed=0, epoch=0))
    assert batch.shape == (8, 3, 32, 32)
    assert batch.is_contiguous(memory_format=torch.channels_last)


def test_a_package_that_is_not_installed_is_named_with_the_remedy():
    with pytest.raises(LabError, match=r"needs the package no_such_package: pip install 'thinwire\[lab\]'"):
        require("no_such_package.part")
