"""Hang a model's averaging on a channel of its own."""

# No postponed annotations in this file: DDP compares those of the hook with the real types.

import logging
from collections.abc import Sequence
from typing import Literal

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from thinwire.collectives import Channel, agree
from thinwire.errors import RegistrationError
from thinwire.feedback import FeedbackMode
from thinwire.integrations.ddp.handle import Handle
from thinwire.integrations.ddp.options import Options
from thinwire.integrations.ddp.owed import ONE_NODE, Place, Route, owed, route
from thinwire.policies import Choice, Policy, Rule
from thinwire.schemes import DEFAULT, Scheme

__all__ = ["register"]

_log = logging.getLogger("thinwire")


def register(
    model: DistributedDataParallel,
    scheme: Choice = DEFAULT,
    *,
    rules: Sequence[Rule] = (),
    algorithm: str = "auto",
    second_leg: Scheme | None = None,
    ranks_per_node: int | None = None,
    error_feedback: FeedbackMode = False,
    residual_dtype: Literal["float32", "bfloat16"] = "float32",
    warmup_steps: int = 0,
    grad_scaler: torch.amp.GradScaler | None = None,
    min_values: int = 1024,
    checksum: bool = True,
    correlate: bool = False,
    seed: int = 0,
    strict: bool = False,
) -> Handle:
    """Average the model's gradients through quantized frames from now on.

    A collective call: every rank makes it, right after wrapping the model and before the first backward pass.

    Args:
        model: not compiled with DDP's python reducer, without another communication hook.
        scheme: for every parameter that no rule names and that has at least `min_values` values. A Schedule changes it
            by step. Without one, Dithered(bits=2.0): see docs/choosing.md.
        rules: for parameters by name, module, dimensions or count; the first that fits wins. See Rule.
        algorithm: how frames travel: "all_gather", "reduce_scatter", "auto" (the first up to 3 ranks, the second
            beyond), or "hierarchical" (exact within nodes). See docs/collectives.md.
        second_leg: of reduce_scatter, the scheme of the averaged shards; None: that of the parameter.
        ranks_per_node: with "hierarchical": so many consecutive ranks form a node; None: LOCAL_WORLD_SIZE of the
            environment, which torchrun sets.
        error_feedback: True: what an encoding lost is added to the next step's gradient; "auto": for biased
            schemes only. See docs/error-feedback.md.
        residual_dtype: how residuals are kept; "bfloat16", stochastically rounded, halves their memory.
        warmup_steps: so many first steps are averaged uncompressed. Higher => more bytes.
        grad_scaler: the scaler that multiplies the loss: a step that it will skip (some averaged gradient is not
            finite) puts all residuals back, and a changed scale rescales them.
        min_values: smaller parameters travel uncompressed in the same frames. Higher => more bytes, less error.
        checksum: whether frames bear one, by which bytes altered in transit are seen. False => a little less time; an
            altered frame may then decode to wrong values.
        correlate: spread the ranks' random numbers evenly: less error of the mean of like gradients for the same bytes,
            each rank still unbiased. See docs/collectives.md.
        seed: of the random numbers, with the step, the rank and the parameter. Give each model its own.
        strict: refuse what would be averaged uncompressed because it cannot be encoded, or run without kernels.

    Raises:
        RegistrationError, SchemeError: the model or an option is not fit, or an option has no effect; on all
            ranks alike.
        DisagreementError: ranks differ, or only some can take part; on all ranks.
        ChannelError: a rank is gone.
    """
    if not isinstance(model, DistributedDataParallel):
        remedy = ": register the model before compiling it" if hasattr(model, "_orig_mod") else ""
        raise RegistrationError(
            f"register() takes a model wrapped in DistributedDataParallel, got {type(model).__name__}{remedy}"
        )
    options = Options(
        scheme=scheme,
        rules=tuple(rules),
        algorithm=algorithm,
        second_leg=second_leg,
        ranks_per_node=ranks_per_node,
        error_feedback=error_feedback,
        residual_dtype=residual_dtype,
        warmup_steps=warmup_steps,
        grad_scaler=grad_scaler,
        min_values=min_values,
        checksum=checksum,
        correlate=correlate,
        seed=seed,
        strict=strict,
    )
    channel = Channel(model.process_group)
    try:
        policy, way, places = _agreed(channel, model, options)
        if options.nodes() is not None:
            channel.close()
            channel = Channel(model.process_group, options.nodes())
        handle = Handle(channel, policy, options, way, places)
        try:
            model.register_comm_hook(handle, _average)
        except RuntimeError as error:
            raise RegistrationError(f"the model already has a communication hook: {error}") from error
    except Exception:
        channel.close()
        raise
    _log_plain(policy, way)
    if model.static_graph:
        _explain_static_graph(model, handle)
    return handle


def _average(handle: Handle, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return handle.average(bucket)


def _agreed(
    channel: Channel, model: DistributedDataParallel, options: Options
) -> tuple[Policy, Route, dict[str, Place]]:
    """How parameters travel and which residuals are kept, after all ranks said that nothing is in their way."""
    obstacle: Exception | None = None
    described: dict[str, str] = {}
    try:
        _check_reducer(model)
        policy = options.policy(model.module, channel.world_size)
        way = route(options, channel.rank, channel.world_size)
        places = owed(policy, options, way) if options.error_feedback else {}
        if options.strict and way.one_node:
            raise RegistrationError(f"strict: all ranks form one node, {ONE_NODE}")
        if options.error_feedback is True and not places and way.index is not None:
            raise RegistrationError("error_feedback has no effect: every parameter travels exactly")
        described = options.describe(model, policy)
    except (RegistrationError, ValueError) as error:
        obstacle = error
    agree(channel, described, obstacle)
    return policy, way, places


def _check_reducer(model: DistributedDataParallel) -> None:
    if getattr(model, "_use_python_reducer", False):
        raise RegistrationError(
            "DDP with the python reducer (torch._dynamo.config.optimize_ddp = 'python_reducer') hands its hooks "
            "single gradients instead of buckets: use 'ddp_optimizer' or False"
        )


def _explain_static_graph(model: DistributedDataParallel, handle: Handle) -> None:
    """Refuse what makes torch itself fail an internal assertion in `backward()`."""

    def check(module: DistributedDataParallel, inputs: object) -> None:
        if handle.stats().steps:
            watch.remove()
        elif torch.is_grad_enabled() and not module.require_backward_grad_sync:
            raise RegistrationError(
                "static_graph=True: DDP's first backward pass must synchronize. Run one step without no_sync() before "
                "accumulating, or wrap the model without static_graph"
            )

    watch = model.register_forward_pre_hook(check)


def _log_plain(policy: Policy, way: Route) -> None:
    """Say once what travels uncompressed because it cannot be encoded, or need not be."""
    if way.one_node:
        _log.warning("hierarchical: all ranks form one node, %s", ONE_NODE)
    plain = [f"{name} ({decision.why})" for name, decision in policy.decisions.items() if decision.schedule is None]
    if plain:
        _log.warning("averaged uncompressed: %s", ", ".join(plain))
