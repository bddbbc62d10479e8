"""What `register` was asked for, and whether it can be had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from thinwire.collectives import check_algorithm, node_ranks
from thinwire.errors import RegistrationError
from thinwire.feedback import FeedbackMode
from thinwire.policies import Choice, Policy, Rule, as_schedule
from thinwire.schemes import Scheme
from thinwire.wire import VERSION

__all__ = ["Options"]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The arguments of `register`; see there."""

    scheme: Choice
    rules: Sequence[Rule]
    algorithm: str
    second_leg: Scheme | None
    ranks_per_node: int | None
    error_feedback: FeedbackMode
    residual_dtype: Literal["float32", "bfloat16"]
    warmup_steps: int
    grad_scaler: torch.amp.GradScaler | None
    min_values: int
    checksum: bool
    correlate: bool
    seed: int
    strict: bool

    def policy(self, model: nn.Module, world_size: int) -> Policy:
        """Check the options against a model, and decide for its parameters.

        Raises:
            SchemeError, RegistrationError: an option is invalid, or has no effect.
        """
        self._check_types()
        check_algorithm(self.algorithm, self.second_leg, world_size)
        policy = Policy(model, self.scheme, self.rules, self.min_values)
        self._check_effects()
        if self.strict:
            self._check_strict(model, policy)
        return policy

    def nodes(self) -> int | None:
        """How many ranks a node has, if the algorithm asks.

        Raises:
            SchemeError, RegistrationError: that is not known, or has no effect.
        """
        if self.algorithm == "hierarchical":
            return node_ranks(self.ranks_per_node)
        if self.ranks_per_node is not None:
            raise RegistrationError(f"ranks_per_node has no effect on {self.algorithm}: it is for hierarchical")
        return None

    def _check_types(self) -> None:
        as_schedule(self.scheme)
        for rule in self.rules:
            if not isinstance(rule, Rule):
                raise RegistrationError(f"rules must be a list of thinwire.ddp.Rule, got {rule!r}")
        for option, value, limit in (
            ("min_values", self.min_values, 1 << 63),
            ("warmup_steps", self.warmup_steps, 1 << 63),
            ("seed", self.seed, 1 << 64),
        ):
            if not isinstance(value, int) or not 0 <= value < limit:
                power = limit.bit_length() - 1
                raise RegistrationError(f"{option} must be an integer in [0, 2^{power}), got {value!r}")
        for option, chosen, known in (
            ("error_feedback", self.error_feedback, (False, True, "auto")),
            ("residual_dtype", self.residual_dtype, ("float32", "bfloat16")),
            ("checksum", self.checksum, (False, True)),
            ("correlate", self.correlate, (False, True)),
        ):
            if chosen not in known:
                raise RegistrationError(f"{option} must be one of {', '.join(map(str, known))}, got {chosen!r}")
        if self.grad_scaler is not None and not isinstance(self.grad_scaler, torch.amp.GradScaler):
            raise RegistrationError(f"grad_scaler must be a torch.amp.GradScaler, got {self.grad_scaler!r}")

    def _check_effects(self) -> None:
        """Refuse what would change nothing: whoever asked for it expects otherwise."""
        if self.residual_dtype != "float32" and not self.error_feedback:
            raise RegistrationError("residual_dtype has no effect without error_feedback")
        if self.grad_scaler is not None and not self.error_feedback:
            raise RegistrationError("grad_scaler has no effect without error_feedback: it is for residuals")

    def _check_strict(self, model: nn.Module, policy: Policy) -> None:
        plain = {name: decision.why for name, decision in policy.decisions.items() if decision.schedule is None}
        if plain:
            listed = "; ".join(f"{name}: {why}" for name, why in plain.items())
            raise RegistrationError(f"strict: parameters would be averaged uncompressed: {listed}")
        devices = {parameter.device.type for parameter in model.parameters()} - {"cpu"}
        if devices:
            raise RegistrationError(
                f"strict: there are no kernels for {', '.join(sorted(devices))}: the reference runs"
            )

    def describe(self, model: DistributedDataParallel, policy: Policy) -> dict[str, str]:
        """What must be the same on all ranks, for `agree`."""
        described = {
            "frame format": str(VERSION),
            "scheme": repr(self.scheme),
            "min_values": repr(self.min_values),
            "seed": repr(self.seed),
            "algorithm": repr(self.algorithm),
            "second_leg": repr(self.second_leg),
            "ranks_per_node": repr(self.nodes()),
            "error_feedback": repr(self.error_feedback),
            "residual_dtype": repr(self.residual_dtype),
            "warmup_steps": repr(self.warmup_steps),
            "checksum": repr(self.checksum),
            "correlate": repr(self.correlate),
            "grad_scaler": "absent" if self.grad_scaler is None else "given",
        }
        for index, (name, parameter) in enumerate(model.module.named_parameters()):
            frozen = "" if parameter.requires_grad else " frozen"
            order = "" if parameter.is_contiguous() else f" strides {parameter.stride()}"
            rule = policy.decisions[name].rule
            ruled = "" if rule is None else f" by rule {rule}: {self.rules[rule].scheme!r}"
            described[f"parameter {index}"] = f"{name} {tuple(parameter.shape)} {parameter.dtype}{order}{frozen}{ruled}"
        return described
