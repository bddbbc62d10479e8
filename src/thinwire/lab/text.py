"""Text for the lab: sources of Python's own standard library, character by character."""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from thinwire.errors import LabError
from thinwire.lab.dataset import DataSet, Examples, Metric

__all__ = ["ALPHABET", "TEST_MODULES", "TRAIN_MODULES", "TextData", "decode", "encode", "read_stdlib"]

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))  # the code after its last is any other character
CONTEXT = 128  # characters an example
TRAIN_MODULES = (
    "argparse",
    "ast",
    "bdb",
    "calendar",
    "codecs",
    "configparser",
    "contextlib",
    "csv",
    "dataclasses",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "ipaddress",
    "mailbox",
    "optparse",
    "os",
    "pickle",
    "random",
    "shutil",
    "smtplib",
    "socket",
    "statistics",
    "subprocess",
    "textwrap",
    "threading",
    "tokenize",
    "traceback",
    "types",
    "warnings",
)
TEST_MODULES = ("copy", "gettext", "plistlib", "tempfile", "weakref")


def encode(text: str) -> Tensor:
    """Return the place of each character in ALPHABET, uint8 `[len(text)]`; len(ALPHABET) for any other."""
    places = np.full(128, len(ALPHABET), dtype=np.uint8)
    places[[ord(character) for character in ALPHABET]] = np.arange(len(ALPHABET))
    points = np.frombuffer(text.encode("utf-32-le"), dtype="<u4")
    return torch.from_numpy(places[np.minimum(points, 127)])


def decode(codes: Tensor) -> str:
    """Return the text of codes; what was outside ALPHABET is shown as U+FFFD."""
    shown = ALPHABET + "\N{REPLACEMENT CHARACTER}"
    return "".join(shown[code] for code in codes.tolist())


def read_stdlib(_root: Path) -> Examples:
    """Read the modules of the running Python; other versions have other text.

    Raises:
        LabError: a source file is missing or is no text.
    """
    train, train_labels = _examples(TRAIN_MODULES)
    test, test_labels = _examples(TEST_MODULES)
    return Examples(train=train, train_labels=train_labels, test=test, test_labels=test_labels)


def _examples(modules: Iterable[str]) -> tuple[Tensor, Tensor]:
    """Cut the joined sources into examples, and give the characters that follow each of theirs."""
    codes = encode("".join(_source(module) for module in modules))
    count = (len(codes) - 1) // CONTEXT
    used = count * CONTEXT
    return codes[:used].view(count, CONTEXT), codes[1 : used + 1].view(count, CONTEXT).to(torch.int64)


def _source(module: str) -> str:
    file = Path(sysconfig.get_paths()["stdlib"]) / f"{module}.py"
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LabError(f"data 'stdlib-text' needs the sources of Python's standard library: {error}") from error


@dataclass(frozen=True, kw_only=True)
class TextData(DataSet):
    """Text to be continued, one character at a time."""

    kind: ClassVar[str] = "text"
    example: ClassVar[str] = f"sequences of {CONTEXT} characters"
    metric: ClassVar[Metric] = Metric(
        name="test_bits_per_character",
        label="test loss",
        unit="bits a character",
        higher_is_better=False,
        total=lambda logits, labels: functional.cross_entropy(logits.double(), labels, reduction="sum") / math.log(2),
    )

    @property
    def shape(self) -> dict[str, int]:
        return {"vocabulary": len(ALPHABET) + 1, "context": CONTEXT}

    def inputs(self, raw: Tensor) -> Tensor:
        return raw.to(torch.int64)
