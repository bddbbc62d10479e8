"""How parameters travel: rules and phases at work, what passes through, and what the counters say of it."""

from __future__ import annotations

import gc
import json
import logging
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from ddp_nets import backward, build
from thinwire import ddp
from thinwire.errors import RegistrationError
from workers import Workers


def phases_job(rank: int, n: int) -> None:
    """A warm-up is DDP's own averaging to the bit; then the schedule's phases follow."""
    plain, model = build("mlp", bucket_cap_mb=0.01), build("mlp", bucket_cap_mb=0.01)
    schedule = ddp.Schedule({0: thinwire.ORQ(levels=9), 4: thinwire.ORQ(levels=3), 5: "keep"})
    rules = [ddp.Rule("keep", name="last.*"), ddp.Rule(schedule, dims=2)]
    handle = ddp.register(model, thinwire.QSGD(levels=5), rules=rules, min_values=50, warmup_steps=3)
    labels: dict[str, str] = {}
    handle.observer = lambda message, key: labels.update({s.name: s.scheme.label for s in message.layout})
    seen = []
    for step in range(6):
        if step in (0, 3):
            assert ("warm-up" in str(handle.plan())) == (step == 0)
        planned = {row.name: row.scheme for row in handle.plan().rows}
        for each in (plain, model):
            each.zero_grad()
            backward(each, rank, step)
        equal = all(torch.equal(a.grad, b.grad) for a, b in zip(plain.parameters(), model.parameters()))
        assert equal == (step < 3)
        assert labels == planned
        seen.append(labels["first.weight"])
        if step < 3:
            assert handle.step_stats().uncompressed == {"warm-up": 1.0}
    assert seen == ["orq-9"] * 4 + ["orq-3", "none"]
    assert labels["middle.bias"] == "qsgd-5"
    assert labels["first.bias"] == "none"
    handle.close()


def test_warm_up_and_schedules_change_at_their_steps(team: Workers) -> None:
    team.run(phases_job)


class Odd(nn.Module):
    """Complex, sparse, empty, scalar and plain parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = nn.Parameter(torch.zeros(1500, dtype=torch.complex64))
        self.words = nn.Embedding(300, 8, sparse=True)
        self.nothing = nn.Parameter(torch.zeros(0, 7))
        self.gain = nn.Parameter(torch.ones(()))
        self.plain = nn.Parameter(torch.zeros(4000))

    def forward(self, rank: int) -> Tensor:
        generator = torch.Generator().manual_seed(rank)
        wave = torch.randn(1500, dtype=torch.complex64, generator=generator)
        x = torch.randn(4000, generator=generator)
        words = self.words(torch.tensor([rank, 7, 7, 20 + rank])).sum()
        return (self.phase * wave).sum().real + (self.plain * x).sum() * self.gain + words + self.nothing.sum()


def odd_job(rank: int, n: int, spread: bool) -> None:
    torch.manual_seed(0)
    options: dict[str, Any] = {"bucket_cap_mb": 0.001} if spread else {}
    plain, model = DistributedDataParallel(Odd(), **options), DistributedDataParallel(Odd(), **options)
    model.load_state_dict(plain.state_dict())
    records: list[str] = []
    catcher = logging.Handler()
    catcher.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("thinwire").addHandler(catcher)
    handle = ddp.register(model, thinwire.SignSGD(), error_feedback=True)
    logging.getLogger("thinwire").removeHandler(catcher)
    assert records == [
        "averaged uncompressed: phase (torch.complex64 cannot be encoded), "
        "words.weight (sparse gradients cannot be encoded)"
    ]
    for _ in range(3):
        for each in (plain, model):
            each.zero_grad()
            each(rank).backward()
        for (name, a), (_, b) in zip(plain.module.named_parameters(), model.module.named_parameters()):
            if name == "words.weight":
                assert b.grad.is_sparse
                torch.testing.assert_close(a.grad.to_dense(), b.grad.to_dense())
            else:
                assert torch.equal(a.grad, b.grad) == (name != "plain"), name
    gone = handle.step_stats().uncompressed
    words = 4 * 8  # the four rows that were looked up
    assert gone["cannot be encoded"] == (3000 + words) / (3000 + words + 4000 + 1)
    assert gone["fewer than 1024 values"] == 1 / (3000 + words + 4000 + 1)
    handle.close()
    with pytest.raises(RegistrationError, match="strict: parameters would be averaged uncompressed: phase"):
        ddp.register(DistributedDataParallel(Odd()), thinwire.SignSGD(), strict=True)


@pytest.mark.parametrize("spread", [False, True], ids=["one bucket a dtype", "many buckets"])
def test_sparse_complex_empty_and_scalar_parameters_pass_through_with_one_log_line(team: Workers, spread: bool) -> None:
    team.run(odd_job, spread)


def kept_job(rank: int, n: int) -> None:
    """Nothing is compressed, everything travels: pytorch#58467, where a left-over collective was empty."""
    plain, model = build("mlp", bucket_cap_mb=0.01), build("mlp", bucket_cap_mb=0.01)
    handle = ddp.register(model, "keep", algorithm="all_gather")
    for step in range(3):
        for each in (plain, model):
            each.zero_grad()
            backward(each, rank, step)
        for a, b in zip(plain.parameters(), model.parameters()):
            torch.testing.assert_close(a.grad, b.grad)
    assert sum(handle.stats().uncompressed.values()) == pytest.approx(1)
    handle.close()


def test_keeping_every_parameter_leaves_no_empty_collective(team: Workers) -> None:
    team.run(kept_job)


def stats_job(rank: int, n: int, folder: str) -> None:
    model = build("mlp", bucket_cap_mb=0.01)
    handle = ddp.register(model, thinwire.ORQ(levels=9), warmup_steps=1, algorithm="all_gather")
    handle.sample_every = 2
    path = Path(folder) / f"rank{rank}.jsonl"
    handle.writers.append(ddp.JsonLines(path))
    board = Board()
    handle.writers.append(ddp.TensorBoard(board))
    for step in range(5):
        model.zero_grad()
        backward(model, rank, step)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    total = handle.stats()
    assert [line["step"] for line in lines] == list(range(5))
    for name in ("bytes_sent", "bytes_received", "frame_bytes", "values", "calls", "steps"):
        assert sum(line[name] for line in lines) == getattr(total, name), name
    assert ["vnmse" in line for line in lines] == [False, False, True, False, True]
    assert lines[2]["vnmse"] == pytest.approx(total.vnmse, rel=0.2)
    assert 0.001 < total.vnmse < 0.1
    assert lines[0]["uncompressed"] == 1
    assert board.seen["thinwire/bytes_sent", 3] == lines[3]["bytes_sent"]
    last = handle.step_stats()
    assert last.steps == 1
    assert last.bits_per_value == 8 * last.frame_bytes / last.values
    if n > 1:
        assert lines[0]["ratio_fp32"] == pytest.approx(1)
        assert last.ratio_fp32 == pytest.approx(32 / last.bits_per_value)
        assert last.ratio_bf16 == last.ratio_fp32 / 2
    else:
        assert math.isnan(last.ratio_fp32)
    assert last.plan_seconds > 0
    assert last.encode_seconds > 0
    assert last.decode_seconds > 0
    small = sum(p.numel() for p in model.parameters() if p.numel() < 1024)
    assert last.uncompressed == {"fewer than 1024 values": small / sum(p.numel() for p in model.parameters())}
    handle.close()


class Board:
    """Stands in for a SummaryWriter."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], float] = {}

    def add_scalar(self, name: str, value: float, step: int) -> None:
        self.seen[name, step] = value


def test_stats_by_step_and_in_total_and_their_writers(team: Workers, tmp_path: Path) -> None:
    team.run(stats_job, str(tmp_path))


def test_tensorboard_from_a_folder_needs_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    with pytest.raises(RegistrationError, match="pip install tensorboard"):
        ddp.TensorBoard(tmp_path)


def test_tensorboard_reads_what_was_written_to_a_folder(tmp_path: Path) -> None:
    reason = "tensorboard is not installed"
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason=reason)
    board = ddp.TensorBoard(tmp_path)
    for step in range(3):
        board(step, ddp.Stats(bytes_sent=100 * step, values=8, frame_bytes=2))
    del board
    gc.collect()
    read = events.EventAccumulator(str(tmp_path)).Reload()
    sent = read.Scalars("thinwire/bytes_sent")
    assert [(event.step, event.value) for event in sent] == [(0, 0.0), (1, 100.0), (2, 200.0)]
    assert [event.value for event in read.Scalars("thinwire/bits_per_value")] == [2.0] * 3


def count_job(rank: int, n: int) -> None:
    """Several buckets, with and without accumulation: pytorch#63768, where steps were counted by the bucket."""
    model = build("mlp", bucket_cap_mb=0.01)
    handle = ddp.register(model, thinwire.ORQ(levels=5))
    for step, accumulating in enumerate((False, True, True, False)):
        backward(model, rank, step, accumulating)
        assert handle.stats().steps == handle.state_dict()["step"] == step + 1
    with model.no_sync():
        model(torch.ones(2, model.module.features), branch=True).sum().backward()
    assert handle.stats().steps == 4
    assert handle.stats().calls > 4
    handle.close()


def test_steps_are_counted_once_whatever_buckets_and_no_sync_do(team: Workers) -> None:
    team.run(count_job)


def test_a_world_of_one_still_trains(team: Workers) -> None:
    """hivemind#450: a single peer trained on zeros."""
    team.run(learning_job)


def learning_job(rank: int, n: int) -> None:
    model = build("mlp")
    handle = ddp.register(model, thinwire.SignSGD(), error_feedback=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(32, model.module.features, generator=torch.Generator().manual_seed(rank))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = (model(x, branch=True) - 1).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < 0.7 * losses[0]
    handle.close()
