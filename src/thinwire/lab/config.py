"""What one training run does, checked before anything starts."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from thinwire import schemes
from thinwire.collectives import ALGORITHMS
from thinwire.errors import LabError
from thinwire.feedback import FeedbackMode
from thinwire.lab.data import DATASETS
from thinwire.lab.models import MODELS
from thinwire.lab.optimizers import RECIPES, Recipe

__all__ = ["FEEDBACK", "FEEDBACK_MARK", "SCHEDULES", "RunConfig"]

SCHEDULES = ("cosine", "step")
FEEDBACK: dict[str, FeedbackMode] = {"off": False, "on": True, "auto": "auto"}
FEEDBACK_MARK = "+ef"  # after the name of a method that has it


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run. Equal configurations give bit-identical weights on one machine.

    Raises:
        LabError: a value that no run can have.
        SchemeError: an unknown method, or a level count or block size that it cannot have.
    """

    method: str = "orq-9"  # as thinwire.schemes.from_spec reads it
    block_size: int | None = None  # values that share a level set; higher => fewer bits, more error
    level_dtype: str | None = None  # float32 or bfloat16, how levels travel; None, here and above: the method's own
    min_values: int = 1024  # smaller parameters travel uncompressed; higher => more bits, less error
    algorithm: str = "auto"  # how frames travel
    error_feedback: str = "off"  # on, or auto: for biased methods only
    workers: int = 2
    data: str = "mnist5k"
    data_root: str | None = None  # folder that holds the data sets that are not bundled
    model: str = "resnet20"
    epochs: int = 3
    batch_size: int = 64  # examples a step, over all workers together
    optimizer: str | None = None  # sgd or adamw; None: the model's own
    lr: float | None = None  # the highest; None, here and below: the optimizer's own
    weight_decay: float | None = None
    warmup: int | None = None  # steps in which the rate rises from near 0; higher => a calmer start
    momentum: float = 0.9  # of sgd; the first beta of adamw
    schedule: str = "cosine"
    seed: int = 0  # of weights, order of examples, augmentation and rounding
    threads: int = 1  # of PyTorch, a worker; results may differ in the last bits between thread counts
    sample_every: int = 10  # steps between two measurements of the gradients' error; 0 = never
    captures: int = 3  # snapshots of one worker's gradients kept in the run folder; 0 = none

    def __post_init__(self) -> None:
        for name in ("workers", "epochs", "batch_size", "threads"):
            self._require(name, getattr(self, name) >= 1, "at least 1")
        for name in ("min_values", "sample_every", "captures", "seed"):
            self._require(name, getattr(self, name) >= 0, "at least 0")
        self._require("seed", self.seed < 2**63, "below 2^63")
        self._require("lr", self.lr is None or 0 < self.lr < math.inf, "positive and finite")
        self._require("warmup", self.warmup is None or self.warmup >= 1, "at least 1")
        self._require("momentum", 0 <= self.momentum < 1, "in [0, 1)")
        decay = self.weight_decay
        self._require("weight_decay", decay is None or 0 <= decay < math.inf, "at least 0 and finite")
        for name, known in (
            ("data", DATASETS),
            ("model", MODELS),
            ("schedule", SCHEDULES),
            ("algorithm", ALGORITHMS),
            ("error_feedback", FEEDBACK),
        ):
            self._require(name, getattr(self, name) in known, "one of " + ", ".join(known))
        self._require("optimizer", self.optimizer in (None, *RECIPES), "one of " + ", ".join(RECIPES))
        kind, takes = DATASETS[self.data].kind, MODELS[self.model].takes
        if kind != takes:
            raise LabError(f"model {self.model!r} takes {takes}, but data {self.data!r} is {kind}")
        if self.batch_size % self.workers:
            raise LabError(f"batch_size ({self.batch_size}) must be a multiple of workers ({self.workers})")
        if DATASETS[self.data].folder and self.data_root is None:
            raise LabError(f"data {self.data!r} is read from a local folder: give data_root")
        if self.data_root is not None and not DATASETS[self.data].folder:
            raise LabError(f"data_root has no effect: data {self.data!r} comes with an installed package")
        if self.scheme().traits.exact and self.error_feedback == "on":
            raise LabError(f"error_feedback has no effect: {self.method} loses nothing; auto leaves it out")

    def _require(self, name: str, holds: bool, rule: str) -> None:
        if not holds:
            raise LabError(f"{name} must be {rule}, got {getattr(self, name)!r}")

    @property
    def label(self) -> str:
        """The method, and whether it has error feedback."""
        mode = FEEDBACK[self.error_feedback]
        fed = not self.scheme().traits.averages_out if mode == "auto" else mode
        return self.method + (FEEDBACK_MARK if fed else "")

    def scheme(self) -> schemes.Scheme:
        """Return the method with this run's block size and level type.

        Raises:
            SchemeError: see RunConfig.
        """
        given = {"block_size": self.block_size, "level_dtype": self.level_dtype}
        return schemes.from_spec(self.method, **{name: value for name, value in given.items() if value is not None})

    def recipe(self) -> Recipe:
        """Return the optimizer with its options: what was asked for, and its own where nothing was."""
        own = RECIPES[self.optimizer or MODELS[self.model].optimizer]
        return replace(
            own,
            lr=own.lr if self.lr is None else self.lr,
            weight_decay=own.weight_decay if self.weight_decay is None else self.weight_decay,
            momentum=self.momentum,
            warmup=own.warmup if self.warmup is None else self.warmup,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain values, for config.json and the checkpoint; of the recipe, those that hold."""
        return {**asdict(self), **asdict(self.recipe())}
