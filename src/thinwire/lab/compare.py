"""Train the same model with several methods on the same seeds, and collect what each cost and gave."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from thinwire.errors import LabError
from thinwire.lab.config import FEEDBACK_MARK, RunConfig
from thinwire.lab.data import DATASETS
from thinwire.lab.dataset import Metric
from thinwire.lab.folder import RunFolder, read_json, read_metrics, write_json
from thinwire.lab.launch import Job
from thinwire.lab.measure import errors_by_layer, levels_in_use
from thinwire.schemes import NoCompression, Scheme, from_spec

__all__ = ["collect", "markdown", "markdown_table", "metric_of", "plan", "table", "unfinished"]


def plan(
    base: RunConfig,
    methods: Sequence[str],
    options: Mapping[str, Any],
    *,
    seeds: int,
    out: str | os.PathLike[str],
    overwrite: bool = False,
    resume: bool = False,
) -> list[Job]:
    """Make the run folders `out/METHOD/seed-K` of all methods on all seeds.

    Only one run, uncompressed if there is one, keeps gradients: all methods are measured on the same ones.

    Args:
        base: everything but the method and its options; its seed is the first of the seeds.
        methods: as thinwire.schemes.from_spec reads them; with "+ef" at the end, with error feedback.
        options: "block_size" and "level_dtype", for those of the methods that have them; None = the method's own.
        seeds: runs a method.
        out: the folder for all of it.
        overwrite: replace earlier runs there.
        resume: keep finished runs of the same configuration there, and replace those that did not finish.

    Raises:
        LabError: no methods, a method twice, an option that none of them has, error feedback for one that loses
            nothing, a single worker, or an earlier run there that is neither to be replaced nor kept.
        SchemeError: an unknown method, or an impossible value of an option.
    """
    if not methods or seeds < 1:
        raise LabError("a comparison needs at least one method and one seed")
    if base.workers < 2:
        raise LabError("a comparison needs at least two workers: one alone sends nothing")
    given = {name: value for name, value in options.items() if value is not None}
    known = [given.keys() & from_spec(method.removesuffix(FEEDBACK_MARK)).options().keys() for method in methods]
    unused = given.keys() - set().union(*known)
    if unused:
        raise LabError(f"{', '.join(sorted(unused))} has no effect on {', '.join(methods)}")
    configs = [_named(base, method, {name: given[name] for name in own}) for method, own in zip(methods, known)]
    built = [config.scheme() for config in configs]
    if len({(scheme, config.label == config.method) for scheme, config in zip(built, configs)}) < len(configs):
        raise LabError(f"a method is named twice: {', '.join(methods)}")
    source = built.index(NoCompression()) if NoCompression() in built else 0
    jobs = []
    for seed in range(base.seed, base.seed + seeds):
        for index, config in enumerate(configs):
            captures = base.captures if (index, seed) == (source, base.seed) else 0
            job = Job(
                config=replace(config, seed=seed, captures=captures),
                folder=str(Path(out) / config.label / f"seed-{seed}"),
            )
            jobs.append(job)
            if not (resume and _finished(job)):
                broken_off = resume and not (Path(job.folder) / "summary.json").is_file()
                RunFolder.create(job.folder, overwrite=overwrite or broken_off)
    return jobs


def unfinished(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs that are still to be done."""
    return [job for job in jobs if not _finished(job)]


def _finished(job: Job) -> bool:
    folder = Path(job.folder)
    done = (folder / "summary.json").is_file()  # the last file that a run writes
    return done and read_json(folder / "config.json") == job.config.as_dict()


def _named(base: RunConfig, method: str, options: Mapping[str, Any]) -> RunConfig:
    name = method.removesuffix(FEEDBACK_MARK)
    return replace(base, method=name, error_feedback=base.error_feedback if name == method else "on", **options)


def collect(jobs: Sequence[Job], out: str | os.PathLike[str]) -> dict[str, Any]:
    """Read finished runs, measure all methods on the captured gradients, and write `out/results.json`.

    Returns:
        What is in results.json: "config", "seeds", "methods" (label -> mean and spread of each measure, curves),
        "layers" (sizes and errors by layer), "levels" (a block of gradient values and the levels for it).
    """
    first = jobs[0].config
    schemes = {job.config.label: job.config.scheme() for job in jobs}
    metric = DATASETS[first.data].metric
    methods = {}
    for method in schemes:
        methods[method] = _summarise([Path(job.folder) for job in jobs if job.config.label == method], metric.name)
    shared = first.as_dict()
    for own in ("method", "seed", "captures", "block_size", "level_dtype", "error_feedback"):
        del shared[own]
    results: dict[str, Any] = {
        "config": shared,
        "schemes": {method: scheme.options() for method, scheme in schemes.items()},
        "seeds": sorted({job.config.seed for job in jobs}),
        "methods": methods,
    }
    snapshots = _snapshots(jobs)
    if snapshots:
        measured = _once(schemes)
        errors = errors_by_layer(snapshots, measured, min_values=first.min_values)
        results["layers"] = {
            "values": {name: g.numel() for name, g in snapshots[0].items() if g.numel() >= first.min_values},
            "snapshots": len(snapshots),
            "errors": errors,
        }
        results["levels"] = levels_in_use(snapshots[len(snapshots) // 2], measured)
    write_json(Path(out) / "results.json", results)
    return results


def _once(schemes: Mapping[str, Scheme]) -> dict[str, Scheme]:
    """The first label of each scheme: on gradients that are owed nothing, error feedback makes no difference."""
    labels: dict[Scheme, str] = {}
    for label, scheme in schemes.items():
        labels.setdefault(scheme, label)
    return {label: scheme for scheme, label in labels.items()}


def _summarise(folders: list[Path], metric: str) -> dict[str, Any]:
    summaries = [read_json(folder / "summary.json") for folder in folders]
    metrics = [read_metrics(folder / "metrics.jsonl") for folder in folders]
    result: dict[str, Any] = {name: _spread([s[name] for s in summaries]) for name in (metric, *_COSTS)}
    for name in ("steps", "parameters", "workers", "versions"):
        result[name] = summaries[0][name]
    epochs = [[line for line in lines if line["kind"] == "epoch"] for lines in metrics]
    steps = [[line["loss"] for line in lines if line["kind"] == "step"] for lines in metrics]
    result["curve"] = [
        {
            "bytes_sent": statistics.fmean(line["bytes_sent"] for line in lines),
            metric: _mean([line[metric] for line in lines]),
        }
        for lines in zip(*epochs, strict=True)
    ]
    result["loss"] = [_mean(losses) for losses in zip(*steps, strict=True)]
    return result


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def _spread(values: list[float | None]) -> dict[str, float | None]:
    """Return mean and sample standard deviation (None for one run)."""
    mean = _mean(values)
    known = [value for value in values if value is not None]
    return {"mean": mean, "spread": statistics.stdev(known) if mean is not None and len(known) > 1 else None}


def _snapshots(jobs: Sequence[Job]) -> list[dict[str, torch.Tensor]]:
    files = [file for job in jobs if job.config.captures for file in RunFolder(job.folder).gradients()]
    return [torch.load(file, weights_only=True) for file in files]


@dataclass(frozen=True, kw_only=True)
class _Column:
    title: str
    factor: float = 1.0  # from the stored number to the shown one
    mean: str
    spread: str = ""  # "" = not shown: equal on all seeds

    def cell(self, value: Mapping[str, float | None]) -> str:
        if value["mean"] is None:
            return "-"
        text = self.mean.format(value["mean"] * self.factor)
        if self.spread and value["spread"] is not None:
            text += " ± " + self.spread.format(value["spread"] * self.factor)
        return text


_COSTS = {
    "bits_per_value": _Column(title="Bits per value", mean="{:.3f}"),
    "ratio_fp32": _Column(title="Less than fp32", mean="{:.2f}x"),
    "ratio_bf16": _Column(title="Less than bf16", mean="{:.2f}x"),
    "vnmse": _Column(title="Error, vNMSE", mean="{:.3g}", spread="{:.1g}"),
    "bytes_sent": _Column(title="Sent by a worker, MB", factor=1e-6, mean="{:.2f}"),
    "seconds_per_step": _Column(title="Step, ms", factor=1e3, mean="{:.0f}", spread="{:.0f}"),
}


def metric_of(results: Mapping[str, Any]) -> Metric:
    """Return what the runs were tested by."""
    return DATASETS[results["config"]["data"]].metric


def _columns(results: Mapping[str, Any]) -> dict[str, _Column]:
    metric = metric_of(results)
    tested = _Column(title=metric.title, factor=metric.factor, mean="{:.2f}", spread="{:.2f}")
    return {metric.name: tested, **_COSTS}


def table(results: Mapping[str, Any]) -> list[list[str]]:
    """Return the comparison as texts: a row of titles, and one a method."""
    columns = _columns(results)
    titles = ["Method", *(column.title for column in columns.values())]
    rows = [
        [method, *(column.cell(values[name]) for name, column in columns.items())]
        for method, values in results["methods"].items()
    ]
    return [titles, *rows]


def markdown(results: Mapping[str, Any]) -> str:
    """Return the table in Markdown."""
    return markdown_table(*table(results))


def markdown_table(titles: Sequence[str], *rows: Sequence[str]) -> str:
    """Write rows of texts in Markdown, the first column to the left and the others to the right."""
    lines = [titles, ["---"] + ["--:"] * (len(titles) - 1), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
