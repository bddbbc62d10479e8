"""One training run, as seen from one worker."""

from __future__ import annotations

import inspect
import math
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire import ddp
from thinwire.errors import LabError
from thinwire.lab.config import FEEDBACK, RunConfig
from thinwire.lab.data import DATASETS
from thinwire.lab.dataset import Examples, batches, steps_per_epoch
from thinwire.lab.folder import RunFolder
from thinwire.lab.measure import Probe, capture_steps
from thinwire.lab.models import build

__all__ = ["WITHOUT_BUFFERS", "Report", "learning_rate", "train"]

Report = Callable[[dict[str, Any]], None]  # takes an event: {"kind": "start" | "step" | "epoch" | "end", ...}

_TEST_BATCH = 250
_RENAMED = "forward_sync_buffers" in inspect.signature(DistributedDataParallel).parameters
WITHOUT_BUFFERS: dict[str, Any] = {"forward_sync_buffers" if _RENAMED else "broadcast_buffers": False}
_MILESTONES = (0.5, 0.75)  # parts of a run after which the "step" schedule divides the rate by 10


def train(config: RunConfig, examples: Examples, folder: RunFolder | None, report: Report) -> None:
    """Train one model on this worker, together with the other ranks of the initialised process group.

    Args:
        config: what to do; the same on every rank.
        examples: the whole data set; each rank takes its share.
        folder: where rank 0 writes; None on the others.
        report: called on rank 0 after every step and epoch.

    Raises:
        LabError: the configuration does not fit the number of ranks or the data.
        thinwire.ThinwireError: the ranks disagree, or one of them failed.
    """
    world_size = dist.get_world_size()
    if world_size != config.workers:
        raise LabError(f"the configuration is for {config.workers} workers, but {world_size} were started")
    if steps_per_epoch(len(examples.train), config.batch_size, world_size) == 0:
        raise LabError(f"{len(examples.train)} training examples are too few for {world_size} workers")
    torch.set_num_threads(config.threads)
    torch.use_deterministic_algorithms(True)
    run = _Run(config, examples, folder, report)
    run.start()
    for epoch in range(config.epochs):
        run.train_epoch(epoch)
    run.finish()


def learning_rate(config: RunConfig, step: int, steps: int) -> float:
    """Return the learning rate of a step, of `steps` in all."""
    done = step / steps
    recipe = config.recipe()
    highest = recipe.lr * min(1.0, (step + 1) / recipe.warmup)
    if config.schedule == "cosine":
        return highest * 0.5 * (1 + math.cos(math.pi * done))
    return highest * 0.1 ** sum(done >= milestone for milestone in _MILESTONES)


def _by_prediction(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """One row a prediction: an image has one, a sequence one a character."""
    return logits.flatten(0, -2), labels.flatten()


class _Run:
    """The state of a run on one rank. Only rank 0 has a folder, reports, and looks at gradients."""

    def __init__(self, config: RunConfig, examples: Examples, folder: RunFolder | None, report: Report) -> None:
        self.config = config
        self.examples = examples
        self.dataset = DATASETS[config.data]
        self.metric = self.dataset.metric
        self.folder = folder
        self.report = report
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.steps = config.epochs * steps_per_epoch(len(examples.train), config.batch_size, self.world_size)
        self.step = 0
        self.seconds: list[float] = []  # of each step
        self.errors: list[float] = []  # sampled vNMSE
        self.model = build(config.model, seed=config.seed, **self.dataset.shape)
        self.replica = DistributedDataParallel(self.model, **WITHOUT_BUFFERS)
        self.handle = ddp.register(
            self.replica,
            config.scheme(),
            algorithm=config.algorithm,
            error_feedback=FEEDBACK[config.error_feedback],
            min_values=config.min_values,
            seed=config.seed,
        )
        self.probe = Probe(sample_every=config.sample_every, captures=capture_steps(self.steps, config.captures))
        if folder is not None:
            self.handle.observer = self.probe
        self.optimizer = config.recipe().build(self.model.parameters())

    def start(self) -> None:
        if self.folder is not None:
            self.folder.write_json("config.json", self.config.as_dict())
        self._tell({"kind": "start", "method": self.config.label, "seed": self.config.seed, "steps": self.steps})

    def train_epoch(self, epoch: int) -> None:
        """Train one epoch, test, and write a checkpoint."""
        began = time.perf_counter()
        self.replica.train()
        losses = [self._train_step(epoch, *batch) for batch in self._batches(epoch)]
        self._average_buffers()
        self.tested = self._test()
        if self.folder is not None:
            self.folder.save("checkpoint.pt", self._checkpoint(epoch))
        self._record(
            kind="epoch",
            epoch=epoch,
            step=self.step,
            loss=statistics.fmean(losses),
            bytes_sent=self.handle.stats().bytes_sent,
            bits_per_value=self.handle.stats().bits_per_value,
            ratio_fp32=self.handle.stats().ratio_fp32,
            seconds=time.perf_counter() - began,
            **{self.metric.name: self.tested},
        )

    def _batches(self, epoch: int) -> Any:
        return batches(
            self.examples,
            self.dataset,
            batch_size=self.config.batch_size,
            rank=self.rank,
            world_size=self.world_size,
            seed=self.config.seed,
            epoch=epoch,
        )

    def _train_step(self, epoch: int, inputs: Tensor, labels: Tensor) -> float:
        began = time.perf_counter()
        rate = learning_rate(self.config, self.step, self.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        sent = self.handle.stats().bytes_sent
        self.probe.begin(self.step)
        self.optimizer.zero_grad()
        loss = functional.cross_entropy(*_by_prediction(self.replica(inputs), labels))
        loss.backward()
        self.optimizer.step()
        mean_loss = loss.detach() / self.world_size
        dist.all_reduce(mean_loss)
        self.seconds.append(time.perf_counter() - began)
        self._after_step(epoch, float(mean_loss), rate, self.handle.stats().bytes_sent - sent)
        self.step += 1
        return float(mean_loss)

    def _after_step(self, epoch: int, loss: float, rate: float, sent: int) -> None:
        if self.folder is None:
            return
        error = self.probe.error
        if error is not None:
            self.errors.append(error)
        if self.probe.gradients:
            self.folder.save_gradients(self.step, self.probe.gradients)
        self._record(
            kind="step",
            step=self.step,
            epoch=epoch,
            loss=loss,
            lr=rate,
            bytes_sent=sent,
            seconds=self.seconds[-1],
            **({} if error is None else {"vnmse": error}),
        )

    @torch.no_grad()
    def _average_buffers(self) -> None:
        """Give all ranks the mean of their running statistics, which training keeps apart."""
        for buffer in self.model.buffers():
            if buffer.is_floating_point():
                dist.all_reduce(buffer)
                buffer /= self.world_size

    @torch.no_grad()
    def _test(self) -> float:
        """Return the metric's mean over all predictions for the test examples; each rank looks at a part of them."""
        self.model.eval()
        inputs, labels = self.examples.test, self.examples.test_labels
        total = torch.zeros((), dtype=torch.float64)
        for chosen in torch.arange(self.rank, len(inputs), self.world_size).split(_TEST_BATCH):
            logits = self.model(self.dataset.inputs(inputs[chosen]))
            total += self.metric.total(*_by_prediction(logits, labels[chosen]))
        dist.all_reduce(total)
        return float(total) / labels.numel()

    def _checkpoint(self, epoch: int) -> dict[str, Any]:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "config": self.config.as_dict(),
            "epochs_done": epoch + 1,
        }

    def finish(self) -> None:
        """Write the summary and let go of the hook's process group."""
        if self.folder is not None:
            summary = self._summary()
            self.folder.write_json("summary.json", summary)
            self._tell({"kind": "end", **summary})
        self.handle.close()

    def _summary(self) -> dict[str, Any]:
        stats = self.handle.stats()
        return {
            "method": self.config.method,
            "seed": self.config.seed,
            self.metric.name: self.tested,
            "bits_per_value": stats.bits_per_value,
            "ratio_fp32": stats.ratio_fp32,
            "ratio_bf16": stats.ratio_bf16,
            "vnmse": statistics.fmean(self.errors) if self.errors else None,
            "bytes_sent": stats.bytes_sent,
            "bytes_received": stats.bytes_received,
            "seconds_per_step": statistics.median(self.seconds),
            "seconds": sum(self.seconds),
            "steps": self.step,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "workers": self.world_size,
            "versions": {
                "thinwire": thinwire.__version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
            },
        }

    def _record(self, **record: Any) -> None:
        if self.folder is not None:
            self.folder.append(record)
            self._tell(record)

    def _tell(self, event: dict[str, Any]) -> None:
        if self.folder is not None:
            self.report(event)
