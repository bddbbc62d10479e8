"""Comparing methods, and the report."""

import json
import math
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from typer.testing import CliRunner

import thinwire
from thinwire.cli import app
from thinwire.errors import LabError
from thinwire.lab import text
from thinwire.lab.compare import collect, plan, table, unfinished
from thinwire.lab.config import RunConfig
from thinwire.lab.folder import RunFolder
from thinwire.lab.frontier import at_bits
from thinwire.lab.report import write_report

COLUMNS = [
    "Method", "Test accuracy, %", "Bits per value", "Less than fp32", "Less than bf16", "Error, vNMSE",
    "Sent by a worker, MB", "Step, ms",
]  # fmt: skip
METHODS = ("signsgd", "fp32", "orq-9", "signsgd+ef")
OPTIONS = [
    "--methods", ",".join(METHODS), "--data", "digits", "--model", "cnn", "--epochs", "1", "--batch-size", "128",
    "--min-values", "100", "--sample-every", "4", "--seeds", "2",
]  # fmt: skip


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """A finished comparison: its folder, and what was printed."""
    out = tmp_path_factory.mktemp("compared")
    result = CliRunner().invoke(
        app, ["compare", *OPTIONS, "--out", str(out / "all"), "--markdown", str(out / "table.md")]
    )
    assert result.exit_code == 0, result.output
    return out, result.stdout


@pytest.fixture(scope="module")
def results(compared):
    return json.loads((compared[0] / "all" / "results.json").read_text())


def test_it_ends_by_naming_the_report(compared):
    out, printed = compared
    assert printed.splitlines()[-1] == f"report: {out / 'all' / 'report.html'}"


def test_the_table_has_all_columns_and_a_row_a_method(compared):
    out, printed = compared
    rows = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in (out / "table.md").open()]
    assert rows[0] == COLUMNS
    assert [row[0] for row in rows[2:]] == list(METHODS)
    for row in rows[2:]:
        assert re.search(r"\s+".join(map(re.escape, row)), printed)


def test_results_agree_with_the_runs(compared, results):
    out, _ = compared
    for method in METHODS:
        runs = [json.loads((out / "all" / method / f"seed-{s}" / "summary.json").read_text()) for s in (0, 1)]
        accuracies = [run["test_accuracy"] for run in runs]
        found = results["methods"][method]
        assert found["test_accuracy"]["mean"] == pytest.approx(sum(accuracies) / 2)
        assert found["test_accuracy"]["spread"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / math.sqrt(2))
        assert found["curve"][-1]["test_accuracy"] == pytest.approx(sum(accuracies) / 2)
        assert found["bytes_sent"]["mean"] == runs[0]["bytes_sent"] == runs[1]["bytes_sent"]
        assert len(found["loss"]) == runs[0]["steps"] == 12
    assert results["methods"]["fp32"]["vnmse"]["mean"] == 0
    assert 0 < results["methods"]["orq-9"]["vnmse"]["mean"] < results["methods"]["signsgd"]["vnmse"]["mean"]


def test_all_methods_are_measured_on_the_gradients_of_the_uncompressed_run(compared, results):
    out, _ = compared
    captured = sorted(path.relative_to(out / "all").parts[:2] for path in out.glob("all/**/step_*.pt"))
    assert captured == [("fp32", "seed-0")] * 3
    assert list(results["layers"]["values"]) == ["conv1.weight", "conv2.weight", "linear.weight"]
    assert list(results["layers"]["errors"]) == ["signsgd", "fp32", "orq-9"]  # on these, feedback changes nothing
    for errors in results["layers"]["errors"].values():
        assert list(errors) == list(results["layers"]["values"])
    for layer, error in results["layers"]["errors"]["orq-9"].items():
        assert 0 < error < results["layers"]["errors"]["signsgd"][layer] < 1
    assert len(results["levels"]["methods"]["orq-9"]["levels"]) == 9
    assert len(results["levels"]["methods"]["signsgd"]["levels"]) == 2


class Page(HTMLParser):
    """Collects what a page shows and what it would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.loads += [value for name, value in attributes if name in ("src", "href", "srcset", "data")]

    def handle_data(self, data):
        self.text += data


def test_the_report_is_one_file_with_the_table_and_four_figures(compared):
    html = (compared[0] / "all" / "report.html").read_text()
    page = Page(html)
    assert page.tags.count("img") == 4
    assert all(address.startswith("data:image/svg+xml;base64,") for address in page.loads)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "url(" not in html
    assert "@import" not in html
    for heading in (
        "Test accuracy against bytes sent",
        "Loss against steps",
        "error by layer",
        "Levels over a real gradient",
    ):
        assert heading in page.text
    for cell in (*COLUMNS, *METHODS, "digits", thinwire.__version__):
        assert cell in page.text


def test_the_report_shows_the_error_against_bits_that_was_measured_in_its_folder(compared, tmp_path):
    folder = tmp_path / "all"
    shutil.copytree(compared[0] / "all", folder)
    measured = ["--data", f"grads:{folder / 'fp32' / 'seed-0'}", "--methods", "orq", "--out", str(folder / "frontier")]
    result = CliRunner().invoke(app, ["frontier", *measured])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == f"report: {folder / 'report.html'}"
    page = Page((folder / "report.html").read_text())
    assert page.tags.count("img") == 5
    assert "Error against bits" in page.text
    curves = json.loads((folder / "frontier" / "frontier.json").read_text())["groups"]
    assert list(curves) == ["seed-0", "seed-0, unit RMS"]
    for group, methods in curves.items():
        assert group in page.text
        assert f"{at_bits(methods['orq'], 3.0):.4g}" in page.text


@pytest.mark.parametrize(
    ("workers", "algorithm", "way"),
    [
        (2, "auto", "by all-gather: each worker sends its own to 1 other."),
        (4, "auto", "by reduce-scatter and all-gather: each worker"),
        (4, "all_gather", "by all-gather: each worker sends its own to 3 others."),
        (2, "reduce_scatter", "of its own to 1 other: 1.00 frames in all."),
    ],
)
def test_the_report_says_how_frames_travelled(results, tmp_path, workers, algorithm, way):
    methods = {name: {**values, "workers": workers} for name, values in results["methods"].items()}
    asked = {**results, "config": {**results["config"], "algorithm": algorithm}, "methods": methods}
    write_report(asked, tmp_path / "report.html")
    assert way in Page((tmp_path / "report.html").read_text()).text


def test_a_run_that_diverged_is_compared_without_a_number(tmp_path):
    (job,) = plan(RunConfig(data="stdlib-text", model="gpt", captures=0), ["orq-9"], {}, seeds=1, out=tmp_path)
    folder = RunFolder(job.folder)
    names = ("bits_per_value", "ratio_fp32", "ratio_bf16", "vnmse", "bytes_sent", "seconds_per_step")
    costs = dict.fromkeys(names, 1.0)
    about = {"steps": 1, "parameters": 10, "workers": 2, "versions": {}}
    folder.write_json("summary.json", {"test_bits_per_character": float("nan"), **costs, **about})
    folder.append({"kind": "step", "loss": float("nan")})
    folder.append({"kind": "epoch", "bytes_sent": 1, "test_bits_per_character": float("nan")})
    diverged = collect([job], tmp_path)
    assert table(diverged)[1][:2] == ["orq-9", "-"]
    write_report(diverged, tmp_path / "report.html")


def test_a_second_comparison_does_not_overwrite_the_first(compared):
    with pytest.raises(LabError, match="holds an earlier run"):
        plan(RunConfig(method="none"), ["signsgd"], {}, seeds=1, out=compared[0] / "all")


def test_a_comparison_is_resumed_where_it_broke_off(compared, tmp_path):
    out, printed = compared
    shutil.copytree(out / "all", tmp_path / "all")
    base = RunConfig(
        method="none", data="digits", model="cnn", epochs=1, batch_size=128, min_values=100, sample_every=4
    )
    again = {"seeds": 2, "out": tmp_path / "all", "resume": True}
    assert unfinished(plan(base, METHODS, {}, **again)) == []
    result = CliRunner().invoke(app, ["compare", *OPTIONS, "--resume", "--out", str(tmp_path / "all")])
    shown = result.stdout.splitlines()[:-1]  # the table alone: nothing was trained
    assert shown == printed.splitlines()[-len(shown) - 1 : -1]
    (tmp_path / "all" / "fp32" / "seed-1" / "summary.json").unlink()
    left = unfinished(plan(base, [*METHODS, "orq-3"], {}, **again))
    assert [(job.config.label, job.config.seed) for job in left] == [("orq-3", 0), ("fp32", 1), ("orq-3", 1)]
    assert not (tmp_path / "all" / "fp32" / "seed-1" / "metrics.jsonl").exists()
    with pytest.raises(LabError, match="holds an earlier run"):
        plan(replace(base, epochs=2), METHODS, {}, **again)
    result = CliRunner().invoke(app, ["compare", *OPTIONS, "--resume", "--overwrite"])
    assert (result.exit_code, "give one of them" in result.stderr) == (2, True)


def test_shared_options_go_to_the_methods_that_have_them(tmp_path):
    jobs = plan(RunConfig(method="none"), ["fp32", "orq-3"], {"block_size": 512}, seeds=1, out=tmp_path)
    assert [job.config.scheme() for job in jobs] == [thinwire.NoCompression(), thinwire.ORQ(levels=3, block_size=512)]


def test_error_feedback_has_its_own_row(compared, results):
    out, _ = compared
    fed = {
        method: json.loads((out / "all" / method / "seed-0" / "config.json").read_text())["error_feedback"]
        for method in METHODS
    }
    assert fed == {"signsgd": "off", "fp32": "off", "orq-9": "off", "signsgd+ef": "on"}
    with_it, without = results["methods"]["signsgd+ef"], results["methods"]["signsgd"]
    assert with_it["loss"][0] == without["loss"][0]  # nothing is owed yet
    assert with_it["loss"][-1] != without["loss"][-1]
    assert with_it["bytes_sent"] == without["bytes_sent"]


def test_auto_marks_the_methods_that_have_error_feedback(tmp_path):
    base = RunConfig(method="none", error_feedback="auto")
    jobs = plan(base, ["fp32", "orq-9", "signsgd"], {}, seeds=1, out=tmp_path)
    assert [job.config.label for job in jobs] == ["fp32", "orq-9", "signsgd+ef"]
    with pytest.raises(LabError, match="named twice"):
        plan(base, ["signsgd", "signsgd+ef"], {}, seeds=1, out=tmp_path)
    with pytest.raises(LabError, match="fp32 loses nothing"):
        plan(base, ["fp32+ef"], {}, seeds=1, out=tmp_path)


def test_text_is_compared_by_its_own_metric(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "TRAIN_MODULES", ("heapq",))
    monkeypatch.setattr(text, "TEST_MODULES", ("copy",))
    options = "--data stdlib-text --model gpt --epochs 1 --batch-size 32 --sample-every 0 --captures 1"
    out = tmp_path / "compared"
    result = CliRunner().invoke(app, ["compare", "--methods", "orq-9", *options.split(), "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert re.search(r"epoch 1/1: loss \S+, test loss \d\.\d\d bits a character, ", result.stdout)
    page = Page((out / "report.html").read_text())
    for shown in ("Test loss, bits a character", "Test loss against bytes sent", "further down is better", "adamw"):
        assert shown in page.text
    assert "steps of 32 sequences of 128 characters" in page.text
    found = json.loads((out / "results.json").read_text())
    tested = found["methods"]["orq-9"]["test_bits_per_character"]["mean"]
    assert 1 < tested == found["methods"]["orq-9"]["curve"][0]["test_bits_per_character"] < math.log2(97)
    assert "embedding.weight" in found["layers"]["errors"]["orq-9"]
