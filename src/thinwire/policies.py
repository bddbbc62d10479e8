"""Which parameter travels how, from which step on, and why."""

from __future__ import annotations

import bisect
import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor, nn

from thinwire.errors import SchemeError
from thinwire.feedback import FeedbackMode, wants_feedback
from thinwire.schemes import NoCompression, Scheme, partition
from thinwire.types import DTYPES, Segment

__all__ = ["Choice", "Decision", "Policy", "Row", "Rule", "Schedule", "TravelPlan", "as_schedule"]


@dataclass(frozen=True)
class Schedule:
    """Schemes by step.

    Args:
        phases: first step -> a scheme, or "keep" (values as they are), until the next phase begins; one begins at 0.

    Raises:
        SchemeError: no phase begins at step 0, a step that is not a whole number, or something that is not a scheme.
    """

    phases: Mapping[int, Scheme | Literal["keep"]]

    def __post_init__(self) -> None:
        steps = list(self.phases)
        if 0 not in steps or not all(isinstance(step, int) and step >= 0 for step in steps):
            raise SchemeError(f"a schedule's phases begin at whole steps, the first at 0; got {steps}")
        object.__setattr__(self, "phases", {step: _scheme(self.phases[step]) for step in sorted(steps)})

    def at(self, step: int) -> Scheme:
        """The scheme of a step, counted from 0."""
        chosen = self.phases[max(start for start in self.phases if start <= step)]
        assert isinstance(chosen, Scheme)
        return chosen


Choice = Scheme | Schedule | Literal["keep"]


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What holds for the parameters that meet all of the conditions given.

    Args:
        scheme: a Scheme, a Schedule, or "keep": values as they are.
        name: pattern of the parameter's full name, with `*`, `?` and `[...]` as in file names.
        module: class of the module that holds the parameter, or a tuple of classes.
        dims: number of dimensions.
        min_values, max_values: bounds of its count of values, both inclusive.

    Raises:
        SchemeError: no condition, or `scheme` is none of the above.
    """

    scheme: Choice = field(kw_only=False)
    name: str | None = None
    module: type[nn.Module] | tuple[type[nn.Module], ...] | None = None
    dims: int | None = None
    min_values: int | None = None
    max_values: int | None = None

    def __post_init__(self) -> None:
        as_schedule(self.scheme)
        if not self.why:
            raise SchemeError("a rule needs a condition; what holds for all is register's own scheme")

    @property
    def why(self) -> str:
        """The conditions, in words."""
        classes = self.module if isinstance(self.module, tuple) else (self.module,) if self.module else ()
        given = {
            "name": self.name,
            "module": "|".join(each.__name__ for each in classes) or None,
            "dims": self.dims,
            "min_values": self.min_values,
            "max_values": self.max_values,
        }
        return ", ".join(f"{what}={value}" for what, value in given.items() if value is not None)

    def meets(self, name: str, parameter: nn.Parameter, holders: Sequence[nn.Module]) -> bool:
        """Whether all conditions hold for a parameter of this name, held by these modules."""
        return (
            (self.name is None or fnmatch.fnmatchcase(name, self.name))
            and (self.module is None or any(isinstance(holder, self.module) for holder in holders))
            and (self.dims is None or parameter.dim() == self.dims)
            and (self.min_values is None or parameter.numel() >= self.min_values)
            and (self.max_values is None or parameter.numel() <= self.max_values)
        )


@dataclass(frozen=True, kw_only=True)
class Decision:
    """How one parameter travels.

    Args:
        schedule: None: it cannot be encoded, and is averaged as it is.
        why: the rule, in words.
        rule: the rule's index, None if none applied.
    """

    schedule: Schedule | None
    why: str
    rule: int | None = None


class Policy:
    """The decisions for all parameters of a model, in the order of `named_parameters`. The first rule that fits wins.

    Args:
        scheme: for what no rule names and has at least `min_values` values; smaller parameters are kept.

    Attributes:
        decisions: by name.
        plain: the parameters that cannot be encoded.
        starts: the steps at which some parameter's scheme may change, 0 first.

    Raises:
        SchemeError: a rule that decides nothing.
    """

    def __init__(self, model: nn.Module, scheme: Choice, rules: Sequence[Rule], min_values: int) -> None:
        holders: dict[nn.Parameter, list[nn.Module]] = {}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                holders.setdefault(parameter, []).append(module)
        self._parameters = dict(model.named_parameters())
        self.decisions = {
            name: _decide(name, parameter, holders[parameter], scheme, rules, min_values)
            for name, parameter in self._parameters.items()
        }
        self.plain = {p for name, p in self._parameters.items() if self.decisions[name].schedule is None}
        used = {decision.rule for decision in self.decisions.values()}
        for index, rule in enumerate(rules):
            if index not in used:
                raise SchemeError(f"rule {index} ({rule.why}) decides nothing: no parameter meets it first")
        schedules = [decision.schedule for decision in self.decisions.values() if decision.schedule is not None]
        self.starts = sorted({0}.union(*(schedule.phases for schedule in schedules)))
        self._phase: tuple[int, dict[Tensor, Segment]] = (-1, {})

    def segments(self, step: int) -> dict[Tensor, Segment]:
        """Each parameter's segment at a step; what cannot be encoded has none. A parameter's index is its stream."""
        phase = bisect.bisect_right(self.starts, step)
        if phase != self._phase[0]:
            self._phase = phase, self._make_segments(step)
        return self._phase[1]

    def _make_segments(self, step: int) -> dict[Tensor, Segment]:
        return {
            parameter: Segment(
                shape=tuple(parameter.shape),
                dtype=parameter.dtype,
                scheme=decision.schedule.at(step),
                name=name,
                stream=index,
            )
            for index, (name, parameter) in enumerate(self._parameters.items())
            if (decision := self.decisions[name]).schedule is not None
        }

    def described(self) -> dict[str, str]:
        """Each parameter's shape, dtype and schedule, in words."""
        return {
            name: f"{tuple(parameter.shape)} {parameter.dtype} {self.decisions[name].schedule}"
            for name, parameter in self._parameters.items()
        }

    def plan(self, step: int, feedback: FeedbackMode, note: str = "") -> TravelPlan:
        """How every parameter travels at a step."""
        segments = self.segments(step)
        rows = []
        for name, parameter in self._parameters.items():
            segment = segments.get(parameter)
            frozen = "" if parameter.requires_grad else "frozen: it does not travel; "
            rows.append(
                Row(
                    name=name,
                    shape=tuple(parameter.shape),
                    dtype=str(parameter.dtype).removeprefix("torch."),
                    scheme="plain" if segment is None else segment.scheme.label,
                    bits=8 * parameter.element_size() if segment is None else _bits_per_value(segment),
                    feedback=segment is not None and wants_feedback(segment, feedback),
                    why=frozen + self.decisions[name].why,
                )
            )
        return TravelPlan(step, note, tuple(rows))


def as_schedule(choice: object) -> Schedule:
    """A choice as a schedule of one phase or more.

    Raises:
        SchemeError: it is neither a scheme, a Schedule nor "keep".
    """
    return choice if isinstance(choice, Schedule) else Schedule({0: _scheme(choice)})


def _scheme(choice: object) -> Scheme:
    if isinstance(choice, str) and choice == "keep":
        return NoCompression()
    if isinstance(choice, Scheme):
        return choice
    raise SchemeError(f'a scheme must be a thinwire scheme such as thinwire.ORQ(levels=9), or "keep"; got {choice!r}')


def _decide(
    name: str,
    parameter: nn.Parameter,
    holders: Sequence[nn.Module],
    scheme: Choice,
    rules: Sequence[Rule],
    min_values: int,
) -> Decision:
    if parameter.dtype not in DTYPES:
        return Decision(schedule=None, why=f"{parameter.dtype} cannot be encoded")
    if any(isinstance(holder, nn.Embedding | nn.EmbeddingBag) and holder.sparse for holder in holders):
        return Decision(schedule=None, why="sparse gradients cannot be encoded")
    for index, rule in enumerate(rules):
        if rule.meets(name, parameter, holders):
            return Decision(schedule=as_schedule(rule.scheme), why=f"rule {index}: {rule.why}", rule=index)
    if parameter.numel() < min_values:
        return Decision(schedule=as_schedule("keep"), why=f"fewer than {min_values} values")
    return Decision(schedule=as_schedule(scheme), why="the default")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One parameter's line of a plan."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    scheme: str  # its label; "plain" if averaged without frames
    bits: float  # a value, levels included, frame headers not
    feedback: bool
    why: str


@dataclass(frozen=True)
class TravelPlan:
    """How every parameter travels at one step. `print` it.

    Args:
        step: which.
        note: what holds for all of them, empty if nothing does.
        rows: one a parameter.
    """

    step: int
    note: str
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        titles = ("parameter", "shape", "dtype", "scheme", "bits", "feedback", "why")
        lines = [titles, *(_cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(titles))]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
        return "\n".join([f"step {self.step}" + (f": {self.note}" if self.note else ""), *table])


def _cells(row: Row) -> tuple[str, ...]:
    shape = "x".join(map(str, row.shape)) or "scalar"
    return (row.name, shape, row.dtype, row.scheme, f"{row.bits:.3f}", "yes" if row.feedback else "no", row.why)


def _bits_per_value(segment: Segment) -> float:
    """What a segment's parts take in a frame of its own, a value; 0 for an empty one."""
    group = partition((segment,))[1][0]
    return 8 * sum(group.scheme.part_bytes(group).values()) / max(segment.numel, 1)
