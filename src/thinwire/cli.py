"""thinwire for humans: train, compare, frontier, check, warmup."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, NoReturn

import torch
import torch.distributed as dist
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import thinwire
from thinwire import kernels, schemes
from thinwire.collectives import ALGORITHMS
from thinwire.errors import LabError, SchemeError, ThinwireError
from thinwire.lab import frontier as frontiers
from thinwire.lab.compare import collect, markdown, plan, table, unfinished
from thinwire.lab.config import SCHEDULES, RunConfig
from thinwire.lab.data import DATASETS
from thinwire.lab.extra import require
from thinwire.lab.folder import RunFolder, read_json
from thinwire.lab.launch import Job, launch, torchrun_workers
from thinwire.lab.models import MODELS
from thinwire.lab.optimizers import RECIPES
from thinwire.lab.report import FRONTIER, write_report
from thinwire.wire.public import usual_schemes

__all__ = ["app", "main"]

app = typer.Typer(
    help="Train with quantized gradients, and compare what methods cost and give.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_DEFAULTS = RunConfig()
_COMPARED = "fp32,signsgd,bingrad-b,terngrad,orq-3,qsgd-9,linear-9,orq-9"
_SYNTHETIC = ",".join(frontiers.SYNTHETIC)
_PACKAGES = ("torch", "numpy", "numba", "typer", "rich")
_LAB_PACKAGES = ("torchvision", "scikit-learn", "mlxtend", "matplotlib", "jinja2")


def _own(option: str) -> str:
    return "[default: " + ", ".join(f"{getattr(recipe, option):g} for {name}" for name, recipe in RECIPES.items()) + "]"


Workers = Annotated[int | None, typer.Option(help=f"Worker processes. [default: torchrun's, or {_DEFAULTS.workers}]")]
Data = Annotated[str, typer.Option(help="One of " + ", ".join(DATASETS) + ".")]
DataRoot = Annotated[str | None, typer.Option(help="Folder that holds cifar-10-batches-py or cifar-100-python.")]
Model = Annotated[str, typer.Option(help="One of " + ", ".join(MODELS) + ".")]
Epochs = Annotated[int, typer.Option(help="Passes over the training data.")]
BatchSize = Annotated[int, typer.Option(help="Examples a step, over all workers together.")]
Optimizer = Annotated[str | None, typer.Option(help="One of " + ", ".join(RECIPES) + ". [default: the model's own]")]
Rate = Annotated[float | None, typer.Option("--lr", help=f"Highest learning rate. {_own('lr')}")]
Decay = Annotated[float | None, typer.Option(help=f"Weight decay. {_own('weight_decay')}")]
Warmup = Annotated[
    int | None, typer.Option("--lr-warmup", help=f"Steps in which the learning rate rises. {_own('warmup')}")
]
Momentum = Annotated[float, typer.Option(help="Momentum of SGD; first beta of AdamW.")]
Schedule = Annotated[str, typer.Option(help="Of the learning rate: " + " or ".join(SCHEDULES) + ".")]
Seed = Annotated[int, typer.Option(help="Of weights, order of examples, augmentation and rounding.")]
BlockSize = Annotated[int | None, typer.Option(help="Values that share a level set. [default: the method's, 2048]")]
LevelDtype = Annotated[str | None, typer.Option(help="How levels travel: float32 or bfloat16. [default: float32]")]
MinValues = Annotated[int, typer.Option(help="Smaller parameters travel uncompressed.")]
Algorithm = Annotated[str, typer.Option(help="How frames travel: " + ", ".join(ALGORITHMS) + ".")]
Feedback = Annotated[str, typer.Option(help="Send later what encoding lost: off, on, or auto (biased methods only).")]
SampleEvery = Annotated[int, typer.Option(help="Steps between measurements of the gradients' error; 0 = never.")]
Captures = Annotated[int, typer.Option(help="Snapshots of the gradients to keep.")]
Threads = Annotated[int, typer.Option(help="PyTorch's threads a worker.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier run in the same folder.")]


def main() -> None:
    """Run the command line. SIGTERM ends it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()


def _fail(message: str, status: int) -> NoReturn:
    print(f"thinwire: error: {message}", file=sys.stderr)
    raise typer.Exit(status)


@contextlib.contextmanager
def _asked_for() -> Iterator[None]:
    """Turn a refused request into one message and exit status 2."""
    try:
        yield
    except (SchemeError, LabError) as error:
        _fail(str(error), 2)


@contextlib.contextmanager
def _done() -> Iterator[None]:
    """Turn a failure while working into one message and exit status 1."""
    try:
        yield
    except (ThinwireError, OSError) as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("interrupted; the run folder keeps what was written", 130)


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    if version:
        print(f"thinwire {thinwire.__version__}")
        raise typer.Exit


@app.command()
def train(
    method: Annotated[str, typer.Option(help="As orq-9, qsgd-5, signsgd, fp32.")] = _DEFAULTS.method,
    levels: Annotated[int | None, typer.Option(help="With --method orq: the same as --method orq-LEVELS.")] = None,
    workers: Workers = None,
    data: Data = _DEFAULTS.data,
    data_root: DataRoot = None,
    model: Model = _DEFAULTS.model,
    epochs: Epochs = _DEFAULTS.epochs,
    batch_size: BatchSize = _DEFAULTS.batch_size,
    optimizer: Optimizer = None,
    lr: Rate = None,
    weight_decay: Decay = None,
    warmup: Warmup = None,
    momentum: Momentum = _DEFAULTS.momentum,
    schedule: Schedule = _DEFAULTS.schedule,
    seed: Seed = _DEFAULTS.seed,
    block_size: BlockSize = None,
    level_dtype: LevelDtype = None,
    min_values: MinValues = _DEFAULTS.min_values,
    algorithm: Algorithm = _DEFAULTS.algorithm,
    error_feedback: Feedback = _DEFAULTS.error_feedback,
    sample_every: SampleEvery = _DEFAULTS.sample_every,
    captures: Captures = _DEFAULTS.captures,
    threads: Threads = _DEFAULTS.threads,
    out: Annotated[Path | None, typer.Option(help="Run folder. [default: runs/DATA-MODEL-METHOD]")] = None,
    overwrite: Overwrite = False,
) -> None:
    """Train one model on several workers that exchange quantized gradients."""
    given = locals()
    with _asked_for():
        config = _config({**given, "method": method if levels is None else f"{method}-{levels}"})
        out = out or Path("runs") / f"{data}-{model}-{config.method}"
        if _is_first():
            RunFolder.create(out, overwrite=overwrite)
    with _done(), _Display(config) as display:
        launch([Job(config=config, folder=str(out))], display)
    if _is_first():
        print(f"run folder: {out}")


@app.command()
def compare(
    methods: Annotated[
        str, typer.Option(help="Names joined by commas; signsgd+ef is signsgd with error feedback.")
    ] = _COMPARED,
    seeds: Annotated[int, typer.Option(help="Runs a method, on consecutive seeds.")] = 1,
    workers: Workers = None,
    data: Data = _DEFAULTS.data,
    data_root: DataRoot = None,
    model: Model = _DEFAULTS.model,
    epochs: Epochs = _DEFAULTS.epochs,
    batch_size: BatchSize = _DEFAULTS.batch_size,
    optimizer: Optimizer = None,
    lr: Rate = None,
    weight_decay: Decay = None,
    warmup: Warmup = None,
    momentum: Momentum = _DEFAULTS.momentum,
    schedule: Schedule = _DEFAULTS.schedule,
    seed: Seed = _DEFAULTS.seed,
    block_size: BlockSize = None,
    level_dtype: LevelDtype = None,
    min_values: MinValues = _DEFAULTS.min_values,
    algorithm: Algorithm = _DEFAULTS.algorithm,
    error_feedback: Feedback = _DEFAULTS.error_feedback,
    sample_every: SampleEvery = _DEFAULTS.sample_every,
    captures: Captures = _DEFAULTS.captures,
    threads: Threads = _DEFAULTS.threads,
    out: Annotated[Path | None, typer.Option(help="Folder for everything. [default: runs/compare-DATA-MODEL]")] = None,
    overwrite: Overwrite = False,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep finished runs of the same options in the folder; do the others.")
    ] = False,
    markdown_file: Annotated[
        Path | None, typer.Option("--markdown", help="Also write the table to this file, in Markdown.")
    ] = None,
) -> None:
    """Train the same model with several methods on the same seeds; write a table and a report."""
    given = locals()
    with _asked_for():
        if torchrun_workers() is not None:
            raise LabError("compare starts its workers itself: run it without torchrun")
        if overwrite and resume:
            raise LabError("--overwrite replaces earlier runs and --resume keeps them: give one of them")
        names = _names(methods)
        options = {"block_size": block_size, "level_dtype": level_dtype}
        base = _config({**given, **dict.fromkeys(options), "method": "none"})
        out = out or Path("runs") / f"compare-{data}-{model}"
        jobs = plan(base, names, options, seeds=seeds, out=out, overwrite=overwrite, resume=resume)
        waiting = unfinished(jobs)
    with _done():
        if waiting:
            with _Display(base) as display:
                launch(waiting, display)
        results = collect(jobs, out)
        write_report(results, out / "report.html")
        if markdown_file is not None:
            markdown_file.write_text(markdown(results), encoding="utf-8")
    _print_table(results)
    print(f"report: {out / 'report.html'}")


def _names(joined: str) -> list[str]:
    return [name.strip() for name in joined.split(",") if name.strip()]


def _config(given: dict[str, Any]) -> RunConfig:
    """Make a configuration of those of a command's arguments that belong in it."""
    started, asked = torchrun_workers(), given["workers"]
    if None not in (started, asked) and started != asked:
        raise LabError(f"torchrun started {started} workers: leave --workers out, or give the same number")
    options = {field.name: given[field.name] for field in fields(RunConfig) if field.name in given}
    options["workers"] = next(count for count in (asked, started, _DEFAULTS.workers) if count is not None)
    config = RunConfig(**options)
    if config.algorithm == "hierarchical" and started in (None, int(os.environ.get("LOCAL_WORLD_SIZE", "0"))):
        raise LabError(
            "algorithm hierarchical encodes nothing on one machine, where all workers form one node: "
            "leave --algorithm out, or start the run by torchrun on several machines"
        )
    return config


def _is_first() -> bool:
    return torchrun_workers() is None or os.environ["RANK"] == "0"


class _Display:
    """Shows the events of a run: one line an epoch, and a bar on a terminal."""

    def __init__(self, config: RunConfig) -> None:
        self._epochs = config.epochs
        self._metric = DATASETS[config.data].metric
        console = Console(soft_wrap=True, highlight=False)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: Any = None
        self._run = ""

    def __enter__(self) -> _Display:
        if _is_first():
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def __call__(self, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "phase":
            self._progress.console.print(event["doing"])
        elif kind == "start":
            self._run = f"{event['method']}, seed {event['seed']}"
            self._task = self._progress.add_task(self._run, total=event["steps"])
        elif kind == "step":
            self._progress.advance(self._task)
        elif kind == "epoch":
            self._progress.console.print(self._epoch_line(event))
        elif kind == "end":
            self._progress.remove_task(self._task)

    def _epoch_line(self, event: dict[str, Any]) -> str:
        return (
            f"{self._run}, epoch {event['epoch'] + 1}/{self._epochs}: loss {event['loss']:.4f}, "
            f"{self._metric.show(event[self._metric.name])}, {event['bytes_sent'] / 1e6:.2f} MB sent a worker, "
            f"{event['ratio_fp32']:.2f}x less than fp32, {event['seconds']:.1f} s"
        )


def _print_table(results: dict[str, Any]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    shown = Table(box=None, pad_edge=False, header_style="bold")
    titles, *rows = table(results)
    for index, title in enumerate(titles):
        shown.add_column(title, justify="right" if index else "left", min_width=max(len(row[index]) for row in rows))
    for row in rows:
        shown.add_row(*row)
    console.print(shown)


@app.command()
def frontier(
    data: Annotated[str, typer.Option(help=f"Joined by commas: {_SYNTHETIC}, grads:RUN.")] = _SYNTHETIC,
    methods: Annotated[str, typer.Option(help="Names joined by commas.")] = ",".join(frontiers.METHODS),
    out: Annotated[
        Path,
        typer.Option(
            help="Folder for results; it may hold earlier ones. "
            "COMPARISON/frontier, in the folder of a comparison: its report shows them, too."
        ),
    ] = Path("runs/frontier"),
) -> None:
    """Measure what averages of 1, 8 and 32 ranks lose against bits, for every method at its rates."""
    with _asked_for():
        require("matplotlib")  # draws the figure, after minutes of work
        chosen = frontiers.choose(_names(methods))
        samples = frontiers.samples(_names(data))
    with _done():
        messages = []
        for sample in samples:
            print(f"measuring {sample.name}: {sample.values} values", file=sys.stderr)
            messages.append(frontiers.measure(sample, chosen))
        results = frontiers.write(out, messages)
        compared = out.name == FRONTIER and (out.parent / "results.json").is_file()
        if compared:
            write_report(read_json(out.parent / "results.json"), out.parent / "report.html")
    print(frontiers.markdown(results))
    print(f"numbers and figure: {out / 'frontier.json'}, {out / 'frontier.svg'}")
    if compared:
        print(f"report: {out.parent / 'report.html'}")


@app.command()
def check() -> None:
    """Show what is installed and which kernels run here."""
    for name, version in (("thinwire", thinwire.__version__), ("python", platform.python_version())):
        print(f"{name:14}{version}")
    for package in (*_PACKAGES, *_LAB_PACKAGES):
        print(f"{package:14}{_installed(package)}")
    print(f"{'cores':14}{os.cpu_count()}")
    transports = [name for name in ("gloo", "nccl", "mpi") if getattr(dist, f"is_{name}_available")()]
    print(f"{'transports':14}{', '.join(transports) or 'none'}")
    for backend in kernels.BACKENDS:
        if backend != "auto":
            print(f"{'kernels':14}{backend}: {_try_backend(backend)}")


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "missing: pip install 'thinwire[lab]'" if package in _LAB_PACKAGES else "missing"


def _try_backend(backend: str) -> str:
    """Encode and decode a little with a backend, and say how that went."""
    values = torch.linspace(-1, 1, 5000)
    try:
        with kernels.backend(backend):
            thinwire.decode(thinwire.encode(values, thinwire.ORQ(levels=9)))
    except ThinwireError as error:
        return f"cannot run here: {error}"
    return "runs"


@app.command()
def warmup(
    methods: Annotated[
        str | None, typer.Option(help="Names joined by commas. [default: all, with the usual level counts]")
    ] = None,
) -> None:
    """Compile kernels ahead of their first use: two minutes or so for all."""
    with _asked_for():
        chosen = usual_schemes() if methods is None else [schemes.from_spec(name) for name in _names(methods)]
        if not chosen:
            raise LabError("there is no method to compile for")
    with _done():
        for scheme in chosen:
            began = time.perf_counter()
            thinwire.warmup(scheme)
            print(f"{scheme.label}: {time.perf_counter() - began:.1f} s")


if __name__ == "__main__":
    main()
