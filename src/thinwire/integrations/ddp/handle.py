"""One model's side of the exchange: buckets in, averages out, and everything that is kept between steps."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from thinwire.collectives import Channel, Observer, Stages, mean_of_frames, plain_mean
from thinwire.errors import RegistrationError, StateError
from thinwire.feedback import Residuals
from thinwire.integrations.ddp import state
from thinwire.integrations.ddp.options import Options
from thinwire.integrations.ddp.owed import Place, Route
from thinwire.monitor import Meter, Stats, Writer
from thinwire.policies import Policy, TravelPlan
from thinwire.types import Key, Message

__all__ = ["Handle"]

_log = logging.getLogger("thinwire")
_SWITCHED_OFF = "switched off"
_WARMUP = "warm-up"
_ONE_NODE = "one node"


class Handle:
    """A registered model's switch, counters, observer, and state.

    Attributes:
        enabled: False means plain averaging. Set it on all ranks between the same two steps. (DDP cannot
            remove a hook.)
        observer: if not None, called with each bucket's local gradients (a Message, whose segments bear the
            parameters' names) and its Key, on the handle's own thread, before they travel. It must not write
            to the gradients, and copies what it keeps: averages take their place. What it raises ends the step on
            every rank.
        sample_every: steps between two measurements of the encoding's error (`Stats.vnmse`); 0 = never. Higher =>
            less time.
        writers: called with each step's number and Stats when it has ended, in `backward()`.
    """

    def __init__(
        self, channel: Channel, policy: Policy, options: Options, way: Route, places: dict[str, Place]
    ) -> None:
        self.enabled = True
        self.observer: Observer | None = None
        self.sample_every = 0
        self.writers: list[Writer] = []
        self._channel = channel
        self._policy = policy
        self._options = options
        self._way = way
        self._places = places  # of residuals, by name
        self._residuals = _residuals(options, channel.rank)
        self._meter = Meter(self._residuals)
        self._step = 0
        self._begun = False  # a bucket of the present step has come
        self._finite = True  # so far, all of its averages
        self._steps_here = 0
        self._fp32_bytes = 0.0
        self._travelled: Counter[str] = Counter()
        self._ended, self._before = Stats(), Stats()  # totals after the last step, and after the one before
        self._pending: list[Future[Tensor]] = []

    def stats(self) -> Stats:
        """What was exchanged since registration."""
        return Stats(
            **vars(self._channel.traffic),
            steps=self._steps_here,
            fp32_bytes=self._fp32_bytes,
            travelled=dict(self._travelled),
            lost=self._meter.lost,
            power=self._meter.power,
        )

    def step_stats(self) -> Stats:
        """What the last step exchanged: the last backward pass that synchronized."""
        return self._ended.since(self._before)

    def plan(self) -> TravelPlan:
        """How each parameter travels in the next step, at what bits, and why. Print it."""
        why = self._all_plain(self._step)
        note = f"{why}: all is averaged plainly" if why else ""
        return self._policy.plan(self._step, self._options.error_feedback, note)

    def state_dict(self) -> dict[str, Any]:
        """What the next step depends on beside the model: plain tensors and numbers, of this rank, between steps.

        Parameters that owe nothing yet have a residual of zeros, so that a distributed checkpoint can be read into it.
        """
        kept = self._residuals.tensors() if self._residuals else {}
        dtype = getattr(torch, self._options.residual_dtype)
        return state.pack(
            step=self._step,
            seed=self._options.seed,
            loss_scale=self._residuals.scale if self._residuals else 1.0,
            rank=self._channel.rank,
            world_size=self._channel.world_size,
            parameters=self._policy.described(),
            residuals={
                name: kept.get(place.stream, torch.zeros(place.count, dtype=dtype, device=place.device))
                for name, place in self._places.items()
            },
        )

    def load_state_dict(self, saved: Mapping[str, Any], *, strict: bool = True) -> None:
        """Go on where `state_dict` left off, to the bit. Every rank loads its own.

        Args:
            strict: False: take what fits (the step, and residuals of parameters of the same name and count if the
                number of ranks is the same) and log what does not.

        Raises:
            StateError: not a state, or, with `strict`, one that does not fit in some respect; nothing was changed.
        """
        here, rank = self.state_dict(), self._channel.rank
        found = state.mismatches(saved, here, rank)
        if found and strict:
            raise StateError(f"the state does not fit: {'; '.join(found)}. strict=False takes what fits")
        if found:
            _log.warning("the state does not fit in all: %s", "; ".join(found))
        self._step = saved["step"]
        if self._residuals is not None:
            residuals = {self._places[name].stream: kept for name, kept in state.fitting(saved, here, rank).items()}
            self._residuals.load(residuals, saved["loss_scale"])

    def close(self) -> None:
        """Leave the private process group. A later backward pass that synchronizes raises ChannelError."""
        self._channel.close()

    def average(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Submit one bucket's averaging; at the step's last bucket, wait for all of them.

        DDP waits there anyway, but would report a failed Future as "Unable to cast ... to Tensor": waiting
        here lets the error itself come out of `backward()`.

        Returns:
            A Future of the bucket's own tensor, which then holds the averages (a new one, if the bucket is sparse).
        """
        if not self._begun:
            self._begin_step()
        future = self._submit(bucket)
        self._pending.append(future)
        if bucket.is_last():
            self._end_step()
        return future

    def _begin_step(self) -> None:
        self._begun, self._finite = True, True
        self._meter.on = self.sample_every > 0 and self._step % self.sample_every == 0
        scaler = self._options.grad_scaler
        if self._residuals is not None:  # between steps nothing runs on the channel's thread
            self._residuals.begin(self._step, 1.0 if scaler is None else scaler.get_scale())

    def _end_step(self) -> None:
        pending, self._pending = self._pending, []
        self._begun = False
        try:
            for each in pending:
                each.wait()
        except BaseException:
            if self._residuals is not None:
                self._residuals.put_back()
            raise
        if self._residuals is not None:
            if self._finite:
                self._residuals.commit()
            else:
                self._residuals.put_back()
        self._step += 1
        self._steps_here += 1
        self._before, self._ended = self._ended, self.stats()
        for writer in self.writers:
            writer(self._step - 1, self.step_stats())

    def _all_plain(self, step: int) -> str:
        """Why a whole step is averaged plainly; empty if it is not."""
        if not self.enabled:
            return _SWITCHED_OFF
        if self._way.one_node:
            return _ONE_NODE
        return _WARMUP if step < self._options.warmup_steps else ""

    def _submit(self, bucket: dist.GradBucket) -> Future[Tensor]:
        buffer = bucket.buffer()
        if self._policy.plain.issuperset(bucket.parameters()):
            stored = buffer._values() if buffer.is_sparse else buffer  # DDP sees a complex number as two
            self._travelled["cannot be encoded"] += stored.numel()
            return self._channel.submit(lambda: self._plain_mean(buffer), buffer.device)
        message = self._message(bucket)
        key = Key(seed=self._options.seed, step=self._step, rank=self._channel.rank)
        plain = self._all_plain(self._step)
        for segment in message.layout:
            exact = segment.scheme.traits.exact
            self._travelled[plain or (self._policy.decisions[segment.name].why if exact else "")] += segment.numel
        return self._channel.submit(self._mean(buffer, message, key, bool(plain)), buffer.device)

    def _message(self, bucket: dist.GradBucket) -> Message:
        """The bucket's values, one segment a parameter, in the order and memory format that DDP gave them."""
        buffer = bucket.buffer()
        segments = self._policy.segments(self._step)
        try:
            layout = tuple(segments[parameter] for parameter in bucket.parameters())
        except KeyError:
            raise RegistrationError("a bucket holds a parameter that the model did not have at registration") from None
        counts = [segment.numel for segment in layout]
        if sum(counts) != buffer.numel() or {s.dtype for s in layout} != {buffer.dtype}:
            raise RegistrationError(
                f"DDP's bucket {bucket.index()} ({buffer.numel()} values, {buffer.dtype}) does not match its "
                f"parameters as registered ({sum(counts)} values): convert the model before wrapping it"
            )
        flat = buffer if buffer.dtype == torch.float32 else None
        return Message(layout, list(buffer.split(counts)), flat)

    def _mean(self, buffer: Tensor, message: Message, key: Key, plain: bool) -> Stages[Tensor]:
        if plain:
            if self.observer is not None:
                self.observer(message, key)
            yield
            return self._plain_mean(buffer)
        mean = yield from mean_of_frames(
            self._channel,
            message,
            key,
            self.observer,
            algorithm=self._options.algorithm,
            second_leg=self._options.second_leg,
            checked=self._options.checksum,
            correlate=self._options.correlate,
            feedback=self._meter if self._residuals is not None or self._meter.on else None,
        )
        self._fp32_bytes += 4 * self._way.values_sent(message.layout)
        return self._written(mean, buffer)

    def _plain_mean(self, buffer: Tensor) -> Tensor:
        mean, fp32_bytes = plain_mean(self._channel, buffer)
        self._fp32_bytes += fp32_bytes
        return self._written(mean, buffer)

    def _written(self, mean: Tensor, buffer: Tensor) -> Tensor:
        """The averages as DDP gets them: in its own bucket, since it would keep any other tensor until the next step.

        Notes whether a loss scaler will see a value that is not finite.
        """
        mean = mean if mean.is_sparse else buffer.copy_(mean)
        if self._options.grad_scaler is not None:
            wide = None if mean.is_complex() else torch.float64  # in which no sum of finite values overflows
            self._finite = self._finite and bool(torch.isfinite(mean.sum(dtype=wide)))
        return mean


def _residuals(options: Options, rank: int) -> Residuals | None:
    if not options.error_feedback:
        return None
    return Residuals(options.error_feedback, getattr(torch, options.residual_dtype), Key(seed=options.seed, rank=rank))
