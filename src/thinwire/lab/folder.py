"""The run folder: what a run leaves behind, readable at any moment and after any end."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import LabError

__all__ = ["RunFolder", "read_json", "read_metrics", "write_json"]

_FILES = ("config.json", "metrics.jsonl", "checkpoint.pt", "summary.json", "error.txt")


class RunFolder:
    """One run's files.

    `config.json`, `summary.json`, `checkpoint.pt` and `gradients/step_*.pt` appear whole or not at all;
    `metrics.jsonl` grows by one line at a time. Both kinds of `.pt` file load with `weights_only=True`.

    Args:
        path: the folder; see `create` for a new one.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | os.PathLike[str], *, overwrite: bool = False) -> RunFolder:
        """Make a folder for a new run.

        Args:
            path: where; parents are made as needed.
            overwrite: remove the files of an earlier run there. Other files stay.

        Raises:
            LabError: there is an earlier run, or no folder can be made there.
        """
        folder = cls(path)
        earlier = folder._files()
        if earlier and not overwrite:
            raise LabError(f"{folder.path} holds an earlier run: choose another folder or overwrite it")
        try:
            for file in earlier:
                file.unlink()
            folder.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LabError(f"cannot write to {folder.path}: {error.strerror}") from error
        return folder

    def _files(self) -> list[Path]:
        named = [self.path / name for name in _FILES]
        return [file for file in named if file.is_file()] + self.gradients()

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line to metrics.jsonl. Numbers that are not finite become null."""
        with open(self.path / "metrics.jsonl", "a", encoding="utf-8") as lines:
            lines.write(json.dumps(_finite(record)) + "\n")

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        write_json(self.path / name, value)

    def save(self, name: str, value: Mapping[str, Any]) -> None:
        """Write tensors and plain values with torch.save."""
        target = self.path / name
        target.parent.mkdir(exist_ok=True)
        partial = target.with_name(target.name + ".partial")
        torch.save(dict(value), partial)
        os.replace(partial, target)

    def save_gradients(self, step: int, gradients: Mapping[str, Tensor]) -> None:
        self.save(f"gradients/step_{step:06d}.pt", gradients)

    def gradients(self) -> list[Path]:
        """Return the files of captured gradients, in order of steps."""
        return sorted(self.path.glob("gradients/step_*.pt"))


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON file that appears whole or not at all. Numbers that are not finite become null."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(_finite(value), indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a metrics.jsonl file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value
