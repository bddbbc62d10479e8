"""Quantized averaging as a communication hook of DistributedDataParallel."""

# No postponed annotations in this file: DDP compares those of the hook with the real types.

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel

from thinwire.collectives import Channel, Observer, Traffic, agree, mean_of_frames, plain_mean
from thinwire.errors import RegistrationError, SchemeError
from thinwire.schemes import NoCompression, Scheme
from thinwire.types import DTYPES, Key, Message, Segment
from thinwire.wire import VERSION

__all__ = ["Handle", "Stats", "register"]


@dataclass(frozen=True, kw_only=True)
class Stats(Traffic):
    """This rank's traffic for one model since registration. Plain averaging adds no values and frame bytes."""

    steps: int = 0  # backward passes that synchronized

    @property
    def bits_per_value(self) -> float:
        """Frame bits per encoded value, everything counted; NaN before the first."""
        return 8 * self.frame_bytes / self.values if self.values else float("nan")


class Handle:
    """A registered model's side of the exchange: switch, counters, observer.

    Attributes:
        enabled: False means plain averaging. Set it on all ranks between the same two steps. (DDP cannot
            remove a hook.)
        observer: if not None, called with each bucket's local gradients (a Message, whose segments bear the
            parameters' names) and its Key, on the handle's own thread, before they travel. It must not write
            to the gradients. What it raises ends the step on every rank.
    """

    def __init__(self, channel: Channel, segments: dict[Tensor, Segment], seed: int) -> None:
        self.enabled = True
        self.observer: Observer | None = None
        self._channel = channel
        self._segments = segments  # by the parameter itself: bucket indices change after the first step
        self._seed = seed
        self._step = 0
        self._pending: list[Future[Tensor]] = []

    def stats(self) -> Stats:
        """What was exchanged so far."""
        return Stats(steps=self._step, **vars(self._channel.traffic))

    def close(self) -> None:
        """Leave the private process group. A later backward pass that synchronizes raises ChannelError."""
        self._channel.close()

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Submit one bucket's averaging; at the step's last bucket, wait for all of them.

        DDP waits there anyway, but would report a failed Future as "Unable to cast ... to Tensor": waiting
        here lets the error itself come out of `backward()`.

        Returns:
            A Future of a new tensor of the bucket's count and dtype. The bucket itself keeps the local
            gradients, so that they survive a failure.
        """
        message = self._message(bucket)
        key = Key(seed=self._seed, step=self._step, rank=self._channel.rank)
        buffer = bucket.buffer()
        future = self._channel.submit(lambda: self._mean(buffer, message, key), buffer.device)
        self._pending.append(future)
        if bucket.is_last():
            self._step += 1
            pending, self._pending = self._pending, []
            for each in pending:
                each.wait()
        return future

    def _message(self, bucket: dist.GradBucket) -> Message:
        """The bucket's values, one segment a parameter, in the order and memory format that DDP gave them."""
        buffer = bucket.buffer()
        try:
            layout = tuple(self._segments[parameter] for parameter in bucket.parameters())
        except KeyError:
            raise RegistrationError("a bucket holds a parameter that the model did not have at registration") from None
        counts = [segment.numel for segment in layout]
        if (
            buffer.layout != torch.strided
            or sum(counts) != buffer.numel()
            or {s.dtype for s in layout} != {buffer.dtype}
        ):
            raise RegistrationError(
                f"DDP's bucket {bucket.index()} ({buffer.numel()} values, {buffer.dtype}, {buffer.layout}) does "
                f"not match its parameters as registered ({sum(counts)} values): convert the model before "
                "wrapping it"
            )
        flat = buffer if buffer.dtype == torch.float32 else None
        return Message(layout, list(buffer.split(counts)), flat)

    def _mean(self, buffer: Tensor, message: Message, key: Key) -> Tensor:
        if self.enabled:
            return mean_of_frames(self._channel, message, key, self.observer).to(buffer.dtype)
        if self.observer is not None:
            self.observer(message, key)
        return plain_mean(self._channel, buffer)


def register(model: DistributedDataParallel, scheme: Scheme, *, min_values: int = 1024, seed: int = 0) -> Handle:
    """Average the model's gradients through quantized frames from now on.

    A collective call: every rank makes it, right after wrapping the model and before the first backward pass.

    Args:
        model: not compiled with DDP's python reducer, without another communication hook.
        scheme: for every parameter of at least `min_values` values.
        min_values: smaller parameters travel uncompressed in the same frames. Higher => more bytes, less error.
        seed: of the random numbers, with the step, the rank and the parameter. Give each model its own.

    Raises:
        RegistrationError, SchemeError: the model or an option is not fit, on all ranks alike.
        DisagreementError: ranks differ, or only some can take part; on all ranks.
        ChannelError: a rank is gone.
    """
    if not isinstance(model, DistributedDataParallel):
        raise RegistrationError(
            f"register() takes a model wrapped in DistributedDataParallel, got {type(model).__name__}"
        )
    channel = Channel(model.process_group)
    try:
        agree(channel, _describe(model, scheme, min_values, seed), _obstacle(model, scheme, min_values, seed))
        handle = Handle(channel, _segments(model, scheme, min_values), seed)
        try:
            model.register_comm_hook(handle, _average)
        except RuntimeError as error:
            raise RegistrationError(f"the model already has a communication hook: {error}") from error
    except Exception:
        channel.close()
        raise
    return handle


def _average(handle: Handle, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return handle.average(bucket)


def _segments(model: DistributedDataParallel, scheme: Scheme, min_values: int) -> dict[Tensor, Segment]:
    return {
        parameter: Segment(
            shape=tuple(parameter.shape),
            dtype=parameter.dtype,
            scheme=scheme if parameter.numel() >= min_values else NoCompression(),
            name=name,
            stream=index,
        )
        for index, (name, parameter) in enumerate(model.module.named_parameters())
    }


def _describe(model: DistributedDataParallel, scheme: Scheme, min_values: int, seed: int) -> dict[str, str]:
    """What must be the same on all ranks, for `agree`."""
    described = {
        "frame format": str(VERSION),
        "scheme": repr(scheme),
        "min_values": repr(min_values),
        "seed": repr(seed),
    }
    for index, (name, parameter) in enumerate(model.module.named_parameters()):
        frozen = "" if parameter.requires_grad else " frozen"
        order = "" if parameter.is_contiguous() else f" strides {parameter.stride()}"
        described[f"parameter {index}"] = f"{name} {tuple(parameter.shape)} {parameter.dtype}{order}{frozen}"
    return described


def _obstacle(model: DistributedDataParallel, scheme: Scheme, min_values: int, seed: int) -> Exception | None:
    """Why this rank cannot take part, if it cannot."""
    if not isinstance(scheme, Scheme):
        return SchemeError(f"scheme must be a thinwire scheme such as thinwire.ORQ(levels=9), got {scheme!r}")
    for option, value, limit in (("min_values", min_values, 1 << 63), ("seed", seed, 1 << 64)):
        if not isinstance(value, int) or not 0 <= value < limit:
            return RegistrationError(f"{option} must be an integer in [0, 2^{limit.bit_length() - 1}), got {value!r}")
    if getattr(model, "_use_python_reducer", False):
        return RegistrationError(
            "DDP with the python reducer (torch._dynamo.config.optimize_ddp = 'python_reducer') hands its hooks "
            "single gradients instead of buckets: use 'ddp_optimizer' or False"
        )
    for name, module in model.module.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            return RegistrationError(f"{name} makes sparse gradients: build it with sparse=False")
    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad and parameter.dtype not in DTYPES:
            return RegistrationError(f"parameter {name} is {parameter.dtype}: its gradients cannot be encoded")
    return None
