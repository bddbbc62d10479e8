"""The failure frame: what a rank sends in place of a frame that it could not make."""

from __future__ import annotations

import torch
from torch import Tensor

from thinwire.errors import PeerFailure

__all__ = ["failure_frame", "raise_failures"]

_MAGIC = b"TWFAULT1"


def failure_frame(error: BaseException, length: int) -> Tensor:
    """Put the cause into a frame's place: magic, then UTF-8 text, cut and zero-padded to uint8 `[length]`."""
    text = f"{type(error).__name__}: {error}".encode()[: length - len(_MAGIC)]
    return torch.tensor(list((_MAGIC + text).ljust(length, b"\0")), dtype=torch.uint8)


def raise_failures(frames: Tensor, own: Exception | None = None) -> None:
    """Look for failure frames among the gathered ones.

    Args:
        frames: uint8 `[ranks, length]`.
        own: this rank's error, if it is one of those that failed.

    Raises:
        PeerFailure: there is one; names each such rank and its cause, in the same words on every rank.
    """
    heads = frames[:, : len(_MAGIC)].cpu()
    failed = [rank for rank, head in enumerate(heads) if bytes(head.tolist()) == _MAGIC]
    if failed:
        raise PeerFailure("; ".join(f"rank {r} could not encode: {_cause(frames[r])}" for r in failed)) from own


def _cause(frame: Tensor) -> str:
    text = bytes(frame[len(_MAGIC) :].cpu().numpy())
    return text.rstrip(b"\0").decode(errors="ignore")
