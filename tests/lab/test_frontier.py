"""Error against bits."""

import json
import math

import pytest
import torch
from typer.testing import CliRunner

import thinwire
from thinwire import ORQ, LloydMax
from thinwire.cli import app
from thinwire.errors import LabError
from thinwire.lab.folder import RunFolder
from thinwire.lab.frontier import CURVES, SYNTHETIC, Curve, Sample, at_bits, markdown, measure, samples

POINTS = [{"bits": 3.0, "vnmse": 0.01}, {"bits": 1.0, "vnmse": 1.0}, {"bits": 2.0, "vnmse": 0.25}]


@pytest.mark.parametrize(
    ("bits", "vnmse"),
    [(1.0, 1.0), (1.5, 0.5), (2.0, 0.25), (2.5, 0.05), (3.0, 0.01), (0.99, None), (3.01, None)],
)
def test_a_curve_is_interpolated_in_the_logarithm_and_never_extrapolated(bits, vnmse):
    assert at_bits(POINTS, bits) == (None if vnmse is None else pytest.approx(vnmse))


def test_an_error_that_is_not_finite_is_left_out():
    assert at_bits([{"bits": 1.0, "vnmse": math.nan}, {"bits": 2.0, "vnmse": math.nan}], 1.5) is None


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run folder with two snapshots: two tensors that travel compressed, and a small one."""
    folder = RunFolder.create(tmp_path_factory.mktemp("runs") / "tiny")
    folder.write_json("config.json", {"min_values": 500})
    for step in (3, 12):
        generator = torch.Generator().manual_seed(step)
        shapes = {"a": (60, 50), "b": (500,), "small": (499,)}
        folder.save_gradients(step, {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})
    return folder.path


def test_each_snapshot_is_one_message_of_what_was_compressed(run):
    first, second = samples([f"grads:{run}"])
    assert (first.name, second.name) == ("tiny, step 3", "tiny, step 12")
    assert list(first.tensors) == ["a", "b"]
    assert first.values == 3500


def test_bits_are_those_of_whole_frames_and_errors_the_expected_ones(run):
    sample = samples([f"grads:{run}"])[0]
    curves = {"orq": Curve(label="ORQ", schemes=(ORQ(levels=3), ORQ(levels=9)))}
    found = measure(sample, curves)
    for point, scheme in zip(found["curves"]["orq"], curves["orq"].schemes, strict=True):
        frame = thinwire.encode(sample.tensors, scheme)
        assert point["bits"] == pytest.approx(thinwire.inspect(frame).bits) == 8 * len(frame) / 3500
        assert point["vnmse"] == thinwire.expected_error(sample.tensors, scheme)
    third, fifth, ninth, seventeenth = found["equal_bits"]
    assert third["vnmse"]["orq"] == pytest.approx(found["curves"]["orq"][0]["vnmse"])
    assert ninth["vnmse"]["orq"] == pytest.approx(found["curves"]["orq"][1]["vnmse"])
    assert ninth["vnmse"]["orq"] < fifth["vnmse"]["orq"] < third["vnmse"]["orq"]
    assert seventeenth["vnmse"]["orq"] is None


def test_the_curves_reach_all_bits_at_which_methods_are_compared():
    values = torch.randn(20_000, generator=torch.Generator().manual_seed(0))
    found = measure(Sample(name="normal", tensors={"normal": values}), CURVES)
    for row in found["equal_bits"]:
        errors = row["vnmse"]
        assert all(error is not None for error in errors.values())
        assert min(errors.values()) == errors["lloydmax"]
        assert errors["optimal"] < 1.05 * errors["orq"]  # its header is 16 bytes longer
    for points in found["curves"].values():
        bits = [point["bits"] for point in points]
        assert bits == sorted(bits)


def test_synthetic_data_is_what_it_is_called_and_always_the_same():
    moments = {"normal": (0, 1), "laplace": (0, 2), "lognormal": (math.exp(0.5), math.exp(2) - math.e)}
    for name in SYNTHETIC:
        (sample,), (again,) = samples([name]), samples([name])
        values = sample.tensors[name].double()
        assert sample.values == 1 << 20
        assert torch.equal(sample.tensors[name], again.tensors[name])
        mean, variance = moments[name]
        assert values.mean().item() == pytest.approx(mean, abs=0.01)
        assert values.var().item() == pytest.approx(variance, rel=0.05)


def test_a_run_without_gradients_is_refused(tmp_path):
    with pytest.raises(LabError, match="no run folder with captured gradients"):
        samples([f"grads:{tmp_path}"])


def test_biased_methods_are_called_so():
    assert CURVES["lloydmax"].title == "Lloyd-Max (biased)"
    assert CURVES["orq"].title == "ORQ"
    assert Curve(label="both", schemes=(ORQ(), LloydMax())).title == "both (biased)"


def test_the_command_prints_the_table_and_writes_numbers_and_a_figure(run, tmp_path):
    out = tmp_path / "frontier"
    result = CliRunner().invoke(
        app, ["frontier", "--data", f"grads:{run}", "--methods", "orq,lloydmax", "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    results = json.loads((out / "frontier.json").read_text())
    assert [message["name"] for message in results["messages"]] == ["tiny, step 3", "tiny, step 12"]
    text = (out / "frontier.md").read_text()
    assert text == markdown(results)
    assert text in result.stdout
    rows = [line for line in text.splitlines() if line.startswith("| tiny")]
    assert len(rows) == 2 * 4
    assert "| Data | Bits | ORQ | Lloyd-Max (biased) |" in text
    assert "interpolated linearly in bits" in text
    assert (out / "frontier.svg").read_text().startswith("<?xml")
