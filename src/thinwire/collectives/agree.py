"""One small exchange by which ranks make sure that they mean the same thing."""

from __future__ import annotations

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from thinwire.collectives.channel import Channel
from thinwire.collectives.transport import Link
from thinwire.errors import DisagreementError

__all__ = ["agree"]

_SHOWN = 4  # differences, and ranks, written out before the rest is only counted


def agree(channel: Channel, description: Mapping[str, str], error: Exception | None = None) -> None:
    """Compare `description` over all ranks of the channel.

    Args:
        description: what -> how, in words for humans: they become the error's text.
        error: this rank's own reason not to take part, sent in the description's place.

    Raises:
        DisagreementError: descriptions differ, or some ranks have an error; on every rank in the same words.
        error: itself, when every rank has the same one.
    """
    mine = {"error": f"{type(error).__name__}: {error}"} if error else dict(description)
    texts = channel.submit(lambda: _gather_texts(channel.link, json.dumps(mine))).wait()
    if all(text == texts[0] for text in texts):
        if error is not None:
            raise error
        return
    raise DisagreementError(_differences([json.loads(text) for text in texts])) from error


def _gather_texts(link: Link, text: str) -> list[str]:
    mine = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    lengths = link.gather(torch.tensor([mine.numel()]).view(torch.uint8)).view(torch.int64).flatten().tolist()
    rows: Tensor = link.gather(torch.nn.functional.pad(mine, (0, max(lengths) - mine.numel())))
    return [bytes(row[:length].numpy()).decode() for row, length in zip(rows, lengths)]


def _differences(descriptions: list[dict[str, str]]) -> str:
    failed = {rank: d["error"] for rank, d in enumerate(descriptions) if "error" in d}
    if failed:
        return "; ".join(f"rank {rank} cannot take part: {cause}" for rank, cause in failed.items())
    names = dict.fromkeys(name for d in descriptions for name in d)
    found = [name for name in names if len({d.get(name) for d in descriptions}) > 1]
    said = [f"{name} is {_by_rank([d.get(name, 'absent') for d in descriptions])}" for name in found[:_SHOWN]]
    more = f"; and {len(found) - _SHOWN} more differences" if len(found) > _SHOWN else ""
    return f"ranks disagree: {'; '.join(said)}{more}"


def _by_rank(values: list[str]) -> str:
    """'A on ranks 0, 2 and B on rank 1', the commonest first."""
    ranks: dict[str, list[int]] = {}
    for rank, value in enumerate(values):
        ranks.setdefault(value, []).append(rank)
    ordered = sorted(ranks.items(), key=lambda item: -len(item[1]))
    return " and ".join(f"{value} on {_ranks(where)}" for value, where in ordered)


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:_SHOWN]))
    more = f", ... ({len(ranks)} ranks)" if len(ranks) > _SHOWN else ""
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}{more}"
