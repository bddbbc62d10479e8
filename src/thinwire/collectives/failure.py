"""The failure frame: what a rank sends in place of a frame that it could not make."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from thinwire.errors import PeerFailure

__all__ = ["failure_frame", "frames_or_failure", "raise_failures"]

_MAGIC = b"TWFAULT1"


def failure_frame(error: BaseException, length: int) -> Tensor:
    """Put the cause into a frame's place: magic, then UTF-8 text, cut and zero-padded to uint8 `[length]`."""
    text = f"{type(error).__name__}: {error}".encode()[: length - len(_MAGIC)]
    return torch.tensor(list((_MAGIC + text).ljust(length, b"\0")), dtype=torch.uint8)


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
        said = failure_frame(error, min(slots)).to(device)
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
    heads = torch.stack([frame[: len(_MAGIC)] for frame in frames]).cpu()
    failed = [i for i, head in enumerate(heads) if bytes(head.tolist()) == _MAGIC]
    if failed:
        said = "; ".join(f"rank {ranks[i]} could not {doing}: {_cause(frames[i])}" for i in failed)
        raise PeerFailure(said) from own


def _cause(frame: Tensor) -> str:
    text = bytes(frame[len(_MAGIC) :].cpu().numpy())
    return text.rstrip(b"\0").decode(errors="ignore")
