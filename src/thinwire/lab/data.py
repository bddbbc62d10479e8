"""The data sets of the lab by name."""

from __future__ import annotations

import os
from pathlib import Path

from thinwire.lab.dataset import DataSet, Examples
from thinwire.lab.images import IMAGES
from thinwire.lab.text import TextData, read_stdlib

__all__ = ["DATASETS", "load"]

DATASETS: dict[str, DataSet] = {**IMAGES, "stdlib-text": TextData(read=read_stdlib)}


def load(name: str, data_root: str | os.PathLike[str] | None = None) -> Examples:
    """Read a data set into memory. Nothing is downloaded.

    Args:
        name: one of DATASETS.
        data_root: the folder that holds the data set's own folder, for those that have one.

    Raises:
        LabError: files are missing or damaged, or a package that reads them is not installed.
    """
    return DATASETS[name].read(Path(data_root or "."))
