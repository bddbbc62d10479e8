"""The command line: whole runs as users start them, and one clear message for whatever is wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import thinwire
from thinwire.cli import _config, app
from thinwire.errors import LabError

QUICK = ["--data=digits", "--model=cnn", "--epochs=2", "--batch-size=64", "--min-values=100", "--workers=2"]
CLI = [sys.executable, "-m", "thinwire.cli"]
TORCHRUN = [
    sys.executable,
    "-m",
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    "-m",
    "thinwire.cli",
]


def invoke(*arguments: str):
    return CliRunner().invoke(app, arguments)


def finish(command: list[str]) -> subprocess.CompletedProcess:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, str]:
    """A finished run: its folder, and what was printed."""
    folder = tmp_path_factory.mktemp("run")
    return folder, finish([*CLI, "train", *QUICK, "--out", str(folder)]).stdout


def test_train_shows_progress_and_names_its_folder(run):
    folder, printed = run
    lines = printed.splitlines()[3:]
    assert len(lines) == 3
    for epoch, line in enumerate(lines[:2], start=1):
        assert f"epoch {epoch}/2: loss " in line
        assert "test accuracy" in line
        assert "MB sent a worker" in line
        assert "x less than fp32" in line
    assert lines[2] == f"run folder: {folder}"


def test_a_run_folder_holds_config_metrics_checkpoint_summary_and_gradients(run):
    folder, _ = run
    config = json.loads((folder / "config.json").read_text())
    summary = json.loads((folder / "summary.json").read_text())
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in metrics if line["kind"] == "step"]
    epochs = [line for line in metrics if line["kind"] == "epoch"]
    assert (config["method"], config["workers"], config["data"]) == ("orq-9", 2, "digits")
    assert [line["step"] for line in steps] == list(range(summary["steps"])) == list(range(46))
    assert all(line["lr"] > 0 and line["seconds"] > 0 for line in steps)
    assert [line["step"] for line in steps if "vnmse" in line] == [0, 10, 20, 30, 40]
    assert sum(line["bytes_sent"] for line in steps) == epochs[-1]["bytes_sent"] == summary["bytes_sent"]
    assert 0.2 < epochs[-1]["test_accuracy"] == summary["test_accuracy"] <= 1
    # Two workers: a worker sends each of its frames once, so what was sent tells the bits, too.
    assert summary["bits_per_value"] == pytest.approx(8 * summary["bytes_sent"] / summary["parameters"] / 46)
    assert summary["ratio_fp32"] == pytest.approx(32 / summary["bits_per_value"])
    model = thinwire.lab.models.build("cnn", channels=1, classes=10, seed=9)
    checkpoint = torch.load(folder / "checkpoint.pt", weights_only=True)
    model.load_state_dict(checkpoint["model"])
    assert checkpoint["config"] == config
    assert checkpoint["optimizer"]["param_groups"][0]["momentum"] == 0.9
    captured = sorted((folder / "gradients").iterdir())
    assert [file.name for file in captured] == ["step_000007.pt", "step_000023.pt", "step_000038.pt"]
    gradients = torch.load(captured[0], weights_only=True)
    assert {name: g.shape for name, g in gradients.items()} == {n: p.shape for n, p in model.named_parameters()}


def test_torchrun_starts_the_same_run_and_equal_seeds_give_equal_bits(run, tmp_path):
    finish([*TORCHRUN, "train", *QUICK[:-1], "--out", str(tmp_path / "run")])
    first, second = (torch.load(folder / "checkpoint.pt", weights_only=True) for folder in (run[0], tmp_path / "run"))
    assert first["config"] == second["config"]
    assert all(torch.equal(first["model"][name], second["model"][name]) for name in first["model"])
    momenta = zip(first["optimizer"]["state"].values(), second["optimizer"]["state"].values(), strict=True)
    assert all(torch.equal(one["momentum_buffer"], two["momentum_buffer"]) for one, two in momenta)


@contextmanager
def endless_run(folder: Path) -> Iterator[tuple[subprocess.Popen, list[int]]]:
    """Start a run that takes minutes and wait for its first steps; gives the process and its workers' ids."""
    command = [*CLI, "train", *QUICK, "--epochs", "5000", "--out", str(folder)]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )
    try:
        deadline = time.monotonic() + 120
        while not (folder / "metrics.jsonl").is_file():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield process, workers_of(process.pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def workers_of(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [int(child) for child in children if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text()]


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().split(")")[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds worker processes through /proc")


@needs_proc
def test_a_killed_worker_ends_the_run_with_its_name_and_keeps_the_folder(tmp_path):
    with endless_run(tmp_path) as (process, workers):
        assert len(workers) == 2
        os.kill(workers[1], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert errors.splitlines()[-1] == "thinwire: error: worker 1 was killed by signal 9 (SIGKILL)"
        assert "Traceback" not in errors
        assert not any(map(is_running, workers))
    assert (tmp_path / "config.json").is_file()
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["kind"] == "step"


@needs_proc
def test_ctrl_c_ends_everything_quietly(tmp_path):
    with endless_run(tmp_path) as (process, workers):
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the parent and all workers
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 130
        assert errors == "thinwire: error: interrupted; the run folder keeps what was written\n"
        assert not any(map(is_running, workers))


@needs_proc
def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    with endless_run(tmp_path) as (process, workers):
        process.kill()
        process.wait()
        deadline = time.monotonic() + 10
        while any(map(is_running, workers)):
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("train --method zip", "unknown method 'zip'"),
        ("train --method orq --levels 8", "orq"),
        ("train --method signsgd --levels 9", "signsgd"),
        ("train --block-size 1", "block_size"),
        ("train --method fp32 --block-size 512", "block_size"),
        ("train --data cifar10", "data_root"),
        ("train --data faces", "data must be one of digits"),
        ("train --model lenet", "model must be one of cnn"),
        ("train --model gpt", "model 'gpt' takes text, but data 'mnist5k' is images"),
        ("train --data stdlib-text", "model 'resnet20' takes images, but data 'stdlib-text' is text"),
        ("train --optimizer lion", "optimizer must be one of sgd, adamw"),
        ("train --workers 0", "workers must be at least 1"),
        ("train --workers 3", "multiple of workers"),
        ("train --lr nan", "lr must be positive"),
        ("train --speed 9", "--speed"),
        ("train --epochs many", "--epochs"),
        ("compare --methods ,", "at least one method"),
        ("compare --methods orq-9,zip", "unknown method 'zip'"),
        ("compare --methods orq-9,orq", "named twice"),
        ("compare --methods fp32 --block-size 512", "no effect"),
        ("compare --seeds 0", "one seed"),
        ("compare --workers 1", "two workers"),
        ("frontier --data cauchy", "unknown data 'cauchy': choose from normal, laplace, lognormal, grads:RUN"),
        ("frontier --data grads:nowhere", "nowhere is no run folder with captured gradients"),
        ("frontier --data ,", "no data"),
        ("frontier --methods zip", "unknown method 'zip': choose from orq"),
        ("frontier --methods ,", "no method"),
        ("warmup --methods zip", "unknown method 'zip'"),
        ("warmup --methods ,", "no method"),
        ("train --algorithm hierarchical", "start the run by torchrun on several machines"),
        ("compare --algorithm hierarchical", "all workers form one node"),
        ("fly", "fly"),
    ],
)
def test_a_request_that_makes_no_sense_gets_one_message_and_status_2(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = invoke(*arguments.split())
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output
    assert list(tmp_path.iterdir()) == []  # nothing was begun


def test_missing_data_is_a_failure_that_says_what_is_expected(tmp_path):
    result = invoke("train", "--data", "cifar10", "--data-root", str(tmp_path), "--out", str(tmp_path / "run"))
    assert result.exit_code == 1
    assert "thinwire: error: no data_batch_1" in result.stderr
    assert "cifar-10-batches-py" in result.stderr


def test_an_earlier_run_is_not_overwritten_unasked(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    result = invoke("train", *QUICK, "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "holds an earlier run" in result.stderr
    assert (tmp_path / "config.json").read_text() == "{}"


def test_workers_must_agree_with_torchrun(monkeypatch, tmp_path):
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost"}.items():
        monkeypatch.setenv(name, value)
    result = invoke("train", "--workers", "2", "--out", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert "torchrun started 4 workers" in result.stderr
    result = invoke("compare", "--out", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert "without torchrun" in result.stderr


def test_hierarchical_is_for_torchrun_on_several_machines(monkeypatch):
    given = {"workers": None, "algorithm": "hierarchical"}
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "localhost", "LOCAL_WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LabError, match="several machines"):
        _config(given)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert _config(given).algorithm == "hierarchical"


def test_version():
    assert invoke("--version").output == f"thinwire {thinwire.__version__}\n"


def test_check_shows_packages_transports_and_every_kernel_backend():
    result = invoke("check")
    assert result.exit_code == 0
    for shown in ("thinwire", "torch", "numba", "matplotlib", "gloo"):
        assert shown in result.stdout
    for backend in set(thinwire.kernels.BACKENDS) - {"auto"}:
        assert f"{backend}: runs" in result.stdout


def test_check_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("thinwire.cli._LAB_PACKAGES", ("no-such-package",))
    result = invoke("check")
    assert "missing: pip install 'thinwire[lab]'" in result.stdout


def test_warmup_names_each_method_with_its_time():
    result = invoke("warmup", "--methods", "orq-9, signsgd,")
    assert result.exit_code == 0
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["orq-9", "signsgd"]
