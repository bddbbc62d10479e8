"""The failure frame: what a rank sends in place of a frame that it could not make."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from thinwire.errors import PeerFailure

__all__ = ["failure_frame", "failure_in", "frames_or_failure", "raise_failures"]

_MAGIC = b"TWFAULT1"


def failure_frame(cause: str, length: int) -> Tensor:
    """Put the cause into a frame's place: magic, then UTF-8 text, cut and zero-padded to uint8 `[length]`."""
    text = cause.encode()[: length - len(_MAGIC)]
    return torch.tensor(list((_MAGIC + text).ljust(length, b"\0")), dtype=torch.uint8)


def failure_in(frame: Tensor) -> str | None:
    """The cause that a failure frame bears; None if it is another frame."""
    if bytes(frame[: len(_MAGIC)].tolist()) != _MAGIC:
        return None
    return bytes(frame[len(_MAGIC) :].cpu().numpy()).rstrip(b"\0").decode(errors="ignore")


def frames_or_failure(
    make: Callable[[], list[Tensor]], slots: Sequence[int], device: torch.device
) -> tuple[list[Tensor], Exception | None]:
    """What `make` returns, or failure frames that say why it did not: the other ranks wait for this rank's bytes.

    Args:
        slots: most bytes of each frame. The cause is cut to the smallest, so that it reads alike everywhere.
    """
    try:
        return make(), None
    except Exception as error:
        said = failure_frame(f"{type(error).__name__}: {error}", min(slots)).to(device)
        return [pad(said, (0, slot - said.numel())) for slot in slots], error


def raise_failures(
    frames: Sequence[Tensor], ranks: Sequence[int], doing: str = "encode", own: Exception | None = None
) -> None:
    """Look for failure frames among the received ones.

    Args:
        frames: uint8, one of each of `ranks`.
        doing: what these ranks were at, for the error's text.
        own: this rank's error, if it is one of those that failed.

    Raises:
        PeerFailure: there is one; names each such rank and its cause, in the same words on every rank.
    """
    causes = {rank: cause for rank, frame in zip(ranks, frames) if (cause := failure_in(frame)) is not None}
    if causes:
        raise PeerFailure("; ".join(f"rank {r} could not {doing}: {cause}" for r, cause in causes.items())) from own
