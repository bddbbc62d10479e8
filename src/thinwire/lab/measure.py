"""Look at gradients on their way to the encoder, without changing them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

import thinwire
from thinwire.schemes import Scheme
from thinwire.types import Key, Message

__all__ = ["Probe", "capture_steps", "errors_by_layer", "levels_in_use"]

_FEW_LEVELS = 64  # more cannot be drawn apart


class Probe:
    """An observer for `thinwire.ddp.Handle` that measures and keeps this worker's gradients.

    The trainer calls `begin` before a backward pass and reads `error` and `gradients` after it; a pass hands
    over its gradients in several messages.

    Args:
        sample_every: steps between two measurements; 0 = never.
        captures: the steps whose gradients are kept.
    """

    def __init__(self, *, sample_every: int, captures: frozenset[int]) -> None:
        self._sample_every = sample_every
        self._captures = captures
        self.begin(0)

    def begin(self, step: int) -> None:
        """Forget the last step and decide what to do in this one."""
        self._sampling = self._sample_every > 0 and step % self._sample_every == 0
        self._capturing = step in self._captures
        self._error = 0.0
        self._power = 0.0
        self._captured: dict[int, tuple[str, Tensor]] = {}

    def __call__(self, message: Message, key: Key) -> None:
        if self._capturing:
            for segment, values in zip(message.layout, message.values, strict=True):
                copy = values.detach().reshape(segment.shape).clone()
                self._captured[segment.stream] = segment.name, copy
        if self._sampling:
            tensors = {s.name: v for s, v in zip(message.layout, message.values, strict=True)}
            power = sum(float(v.double().square().sum()) for v in message.values)
            relative = thinwire.expected_error(tensors, {s.name: s.scheme for s in message.layout})
            self._error += relative * power
            self._power += power

    @property
    def error(self) -> float | None:
        """vNMSE of this step's gradients as a whole, expected over the rounding; None where not measured."""
        return self._error / self._power if self._sampling and self._power > 0 else None

    @property
    def gradients(self) -> dict[str, Tensor]:
        """Name -> gradient of this worker in this step, in the model's order; empty where not kept."""
        return dict(self._captured[stream] for stream in sorted(self._captured))


def capture_steps(steps: int, captures: int) -> frozenset[int]:
    """Return `captures` steps spread over a run of `steps`: the middles of equal parts."""
    return frozenset((2 * i + 1) * steps // (2 * captures) for i in range(captures))


def errors_by_layer(
    snapshots: list[dict[str, Tensor]], schemes: Mapping[str, Scheme], *, min_values: int
) -> dict[str, dict[str, float]]:
    """Measure what each method does to the same gradients, layer by layer.

    Args:
        snapshots: captured gradients, name -> tensor.
        schemes: label -> method.
        min_values: smaller tensors are left out (they travel uncompressed).

    Returns:
        label -> layer name -> vNMSE, the mean over the snapshots in which the layer's gradient is not zero.
    """
    layers = {name for tensors in snapshots for name, g in tensors.items() if g.numel() >= min_values}
    errors: dict[str, dict[str, float]] = {}
    for label, scheme in schemes.items():
        errors[label] = {}
        for name in (name for name in snapshots[0] if name in layers):
            present = [tensors[name] for tensors in snapshots if bool(tensors[name].any())]
            values = [thinwire.expected_error(gradient, scheme) for gradient in present]
            if values:
                errors[label][name] = float(torch.tensor(values).mean())
    return errors


def levels_in_use(gradients: Mapping[str, Tensor], schemes: Mapping[str, Scheme]) -> dict[str, object]:
    """Encode and decode the first block of the largest gradient with every method that has few levels.

    The block is the smallest of the methods' own; of methods that have none, 2048 values.

    Args:
        gradients: name -> tensor.
        schemes: label -> method.

    Returns:
        "layer" and "values" of the block, and "methods": label -> "levels" (the decoded values that occur,
        sorted), "shares" (of the block's values that became each level) and "vnmse" (expected).
    """
    layer = max(gradients, key=lambda name: gradients[name].numel())
    sizes = [size for scheme in schemes.values() if (size := scheme.options().get("block_size"))]
    block = gradients[layer].flatten()[: min(sizes, default=2048)]
    methods = {}
    for label, scheme in schemes.items():
        decoded = thinwire.decode(thinwire.encode(block, scheme))
        levels, counts = torch.as_tensor(decoded).unique(return_counts=True)
        if len(levels) <= _FEW_LEVELS:
            methods[label] = {
                "levels": levels.tolist(),
                "shares": (counts / len(block)).tolist(),
                "vnmse": thinwire.expected_error(block, scheme),
            }
    return {"layer": layer, "values": block.tolist(), "methods": methods}
