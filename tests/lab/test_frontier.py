"""Error against bits."""

import json
import math

import pytest
import torch
from typer.testing import CliRunner

import thinwire
from thinwire import ORQ, QSGD, BinGradB
from thinwire.cli import app
from thinwire.errors import LabError
from thinwire.lab.folder import RunFolder
from thinwire.lab.frontier import (
    LIMITS,
    METHODS,
    SYNTHETIC,
    Sample,
    at_bits,
    average,
    choose,
    markdown,
    measure,
    rates,
    ratios,
    samples,
    write,
)
from thinwire.schemes import from_spec
from thinwire.types import Key
from thinwire.wire import accumulate, compose, encode

POINTS = [
    {"bits": 3.0, "errors": {"1": 0.01, "8": 0.01}},
    {"bits": 1.0, "errors": {"1": 1.0, "8": 0.5}},
    {"bits": 2.0, "errors": {"1": 0.25, "8": 0.02}},
]
VALUES = 1 << 16


@pytest.fixture(scope="module")
def normal():
    """Normal values, measured by every method of the library at a few of its rates."""
    values = torch.randn(VALUES, generator=torch.Generator().manual_seed(0))
    few = {name: rates(name)[:4] for name in METHODS}
    return few, measure(Sample(name="normal", group="normal", tensors={"normal": values}, normal=True), few)["curves"]


@pytest.mark.parametrize(
    ("bits", "error"),
    [(1.0, 1.0), (1.5, 0.5), (2.0, 0.25), (2.5, 0.05), (3.0, 0.01), (0.99, None), (3.01, None)],
)
def test_a_curve_is_interpolated_in_the_logarithm_and_never_extrapolated(bits, error):
    assert at_bits(POINTS, bits) == (None if error is None else pytest.approx(error))


def test_the_mean_of_several_ranks_has_its_own_curve():
    assert at_bits(POINTS, 1.5, ranks=8) == pytest.approx(0.1)
    assert at_bits(POINTS, 1.5, ranks=32) is None


def test_an_error_that_is_not_finite_is_left_out():
    nowhere = [{"bits": bits, "errors": {"1": math.nan}} for bits in (1.0, 2.0)]
    assert at_bits(nowhere, 1.5) is None


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


def test_each_snapshot_is_one_message_of_what_was_compressed_as_it_is_and_with_unit_rms(run):
    raw, _, first, second = samples([f"grads:{run}"])
    assert [raw.name, first.name, second.name] == ["tiny, step 3", "tiny, step 3, unit RMS", "tiny, step 12, unit RMS"]
    assert (raw.group, first.group, second.group) == ("tiny", "tiny, unit RMS", "tiny, unit RMS")
    assert list(raw.tensors) == ["a", "b"]
    assert raw.values == 3500
    for name, tensor in first.tensors.items():
        assert tensor.square().mean().item() == pytest.approx(1, rel=1e-5)
        assert torch.allclose(tensor / tensor[0], raw.tensors[name] / raw.tensors[name][0], rtol=1e-4)


def test_a_tensor_of_zeros_stays_so_under_unit_rms(tmp_path):
    folder = RunFolder.create(tmp_path / "zeros")
    folder.write_json("config.json", {"min_values": 1})
    folder.save_gradients(0, {"a": torch.zeros(5), "b": torch.ones(5)})
    assert not samples([f"grads:{folder.path}"])[1].tensors["a"].any()
    folder.save_gradients(7, {"a": torch.zeros(5), "b": torch.zeros(5)})
    with pytest.raises(LabError, match="zeros, step 7: there is no value other than 0"):
        samples([f"grads:{folder.path}"])


def test_a_method_that_is_exact_on_a_message_has_an_error_of_0_everywhere(tmp_path):
    sample = Sample(name="ones", group="ones", tensors={"ones": torch.ones(4096)})
    chosen = {"orq": rates("orq")[:2], "signsgd": rates("signsgd")}
    results = write(tmp_path, [measure(sample, chosen)])
    assert {point["errors"]["8"] for points in results["groups"]["ones"].values() for point in points} == {0.0}
    text = markdown(results)
    assert "| 2 | orq | 0 |" in text
    assert "| signsgd | 0.000 |" in text


def test_between_an_error_and_none_nothing_is_interpolated():
    curve = [{"bits": bits, "errors": {"1": error}} for bits, error in ((1.0, 0.5), (2.0, 0.0), (3.0, 0.0))]
    assert [at_bits(curve, bits) for bits in (1.0, 1.5, 2.0, 2.5)] == [pytest.approx(0.5), None, 0.0, 0.0]


def test_bits_and_errors_are_those_of_whole_frames_of_32_ranks(run):
    sample = samples([f"grads:{run}"])[0]
    (found,) = measure(sample, {"orq": [ORQ(levels=5)]})["curves"]["orq"]
    frame = thinwire.encode(sample.tensors, ORQ(levels=5))
    assert found["bits"] == pytest.approx(thinwire.inspect(frame).bits) == 8 * len(frame) / 3500
    message, _ = compose(sample.tensors, ORQ(levels=5))
    decoded = torch.zeros(32, 3500)
    for rank, row in enumerate(decoded):
        accumulate(encode(message, Key(rank=rank)), message.layout, row)
    power = message.flat.square().sum()
    for count in (1, 8, 32):
        lost = decoded.view(-1, count, 3500).mean(1) - message.flat
        assert found["errors"][str(count)] == pytest.approx(float(lost.square().sum(1).mean() / power), rel=1e-4)
    assert found["errors"]["1"] == pytest.approx(thinwire.expected_error(sample.tensors, ORQ(levels=5)), rel=0.05)


def test_nothing_on_normal_values_lies_below_the_limits(normal):
    chosen, curves = normal
    biased, unbiased = LIMITS.values()
    for name, schemes in chosen.items():
        for scheme, point in zip(schemes, curves[name], strict=True):
            least = unbiased if scheme.traits.unbiased else biased
            assert point["errors"]["1"] > least(point["bits"]), scheme


def test_limits_are_those_of_normal_values():
    biased, unbiased = LIMITS.values()
    assert [biased(bits) for bits in (0.5, 1, 2)] == [0.5, 0.25, 0.0625]
    for bits in (0.5, 1, 2):  # scaled by 1 / (1 - D), the best code is unbiased, and its error D / (1 - D)
        assert unbiased(bits) == pytest.approx(biased(bits) / (1 - biased(bits)))


def test_the_mean_of_an_unbiased_method_gets_better_with_every_rank(normal):
    chosen, curves = normal
    unbiased = [name for name, schemes in chosen.items() if schemes[0].traits.unbiased]
    assert {"orq", "qsgd", "optimal"} <= set(unbiased)
    for point in (point for name in unbiased for point in curves[name]):
        # Errors of different values are independent: the mean square of so many is right within some percent.
        for ranks in (8, 32):
            assert point["errors"][str(ranks)] == pytest.approx(point["errors"]["1"] / ranks, rel=0.1)
        assert abs(point["bias"]) < 0.01 * point["errors"]["1"]


def test_the_error_of_rounding_to_the_nearest_level_is_bias(normal):
    _, curves = normal
    for name in ("bingrad-b", "lloydmax", "signsgd"):
        for point in curves[name]:
            assert point["errors"]["32"] == pytest.approx(point["errors"]["1"]) == pytest.approx(point["bias"])
    (sign,) = curves["signsgd"]
    assert sign["errors"]["1"] == pytest.approx(1 - 2 / math.pi, rel=0.01)  # E|x|^2 = 2 / pi


def test_every_method_that_loses_something_is_measured_at_all_rates_that_it_accepts():
    assert set(METHODS) >= {"orq", "optimal", "optimal-tensor", "qsgd", "qsgd-l2", "signsgd", "lloydmax"}
    assert not {"fp32", "none"} & set(METHODS)
    assert rates("orq") == [ORQ(levels=levels) for levels in (3, 5, 9, 17)]
    assert rates("qsgd") == [QSGD(levels=levels) for levels in (3, 5, 7, 9, 13, 17)]
    assert rates("bingrad-b") == [BinGradB()]
    assert rates("optimal-tensor")[0] == from_spec("optimal-tensor-2")
    with pytest.raises(LabError, match="unknown method 'fp32'"):
        choose(["fp32"])


def test_of_several_snapshots_errors_are_averaged_geometrically():
    def message(name, bits, error, bias):
        point = {"scheme": "m", "bits": bits, "errors": {"1": error}, "bias": bias}
        return {"name": name, "group": "g", "curves": {"m": [point]}}

    (point,) = average([message("first", 1.0, 0.1, 0.1), message("second", 1.2, 0.4, 0.2)])["g"]["m"]
    assert (point["bits"], point["errors"]["1"]) == (pytest.approx(1.1), pytest.approx(0.2))
    assert point["bias share"] == pytest.approx(0.75)  # of each message's own error: all of it, and half


def test_ratios_to_eden_are_geometric_means_over_the_messages_of_a_group_and_of_all_groups_of_a_kind():
    def message(group, kind, scale):
        eden = [{"bits": bits, "errors": {"1": 4.0**-bits}} for bits in (1.0, 2.0, 3.0, 4.0)]
        twice = [{"bits": point["bits"], "errors": {"1": scale * point["errors"]["1"]}} for point in eden[:3]]
        single = [{"bits": 1.5, "errors": {"1": scale}}]
        return {"group": group, "kind": kind, "curves": {"eden": eden, "m": twice, "s": single}}

    scales = {("a", "gradients"): (2, 8), ("b", "gradients"): (1, 1), ("a, unit", "unit"): (3,), ("normal", ""): (5,)}
    rows = ratios([message(*place, scale) for place, found in scales.items() for scale in found])
    assert [(row["bits"], row["method"]) for row in rows] == [(1.1, "m"), (2.0, "m"), (3.0, "m"), (None, "s")]
    expected = {"a": 4, "b": 1, "a, unit": 3, "normal": 5, "all gradients": 2}
    for row in rows[:3]:
        assert row["ratios"] == pytest.approx(expected)
    assert rows[3]["ratios"] == pytest.approx({name: value * 4**1.5 for name, value in expected.items()})
    assert ratios([{"group": "a", "kind": "", "curves": {"m": POINTS}}]) == []


def test_ratios_stand_in_the_table_and_the_numbers(run, tmp_path):
    chosen = {"eden": rates("eden"), "orq": rates("orq")[1:3]}
    results = write(tmp_path, [measure(sample, chosen) for sample in samples([f"grads:{run}"])])
    (row,) = (row for row in json.loads((tmp_path / "frontier.json").read_text())["ratios"] if row["bits"] == 3)
    assert list(row["ratios"]) == ["tiny", "tiny, unit RMS"]
    tiny = results["groups"]["tiny"]
    assert row["ratios"]["tiny"] == pytest.approx(at_bits(tiny["orq"], 3) / at_bits(tiny["eden"], 3), rel=1e-3)
    assert f"| 3 | orq | {row['ratios']['tiny']:.4g} |" in markdown(results).split("EDEN's at the same bits")[1]


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


def test_the_command_prints_the_tables_and_writes_numbers_and_a_figure(run, tmp_path):
    out = tmp_path / "frontier"
    result = CliRunner().invoke(
        app, ["frontier", "--data", f"grads:{run}", "--methods", "orq,bingrad-b", "--out", str(out)]
    )
    assert result.exit_code == 0, result.output
    results = json.loads((out / "frontier.json").read_text())
    assert [message["name"] for message in results["messages"]][1:3] == ["tiny, step 12", "tiny, step 3, unit RMS"]
    text = (out / "frontier.md").read_text()
    assert text == markdown(results)
    assert text in result.stdout
    lines = text.splitlines()
    assert lines.count("| Bits | Method | tiny | tiny, unit RMS |") == 3
    assert len([line for line in lines if line.startswith("| 3 | orq | 0.")]) == 3
    (shares,) = (line for line in lines if line.startswith("| bingrad-b |"))
    assert shares == "| bingrad-b | 1.000 | 1.000 |"
    curve = results["groups"]["tiny"]["orq"]
    assert f"| 3 | orq | {at_bits(curve, 3.0):.4g} |" in text
    assert "interpolated linearly in bits" in text
    assert (out / "frontier.svg").read_text().startswith("<?xml")


def test_the_limits_stand_beside_normal_values(normal):
    text = markdown({"groups": average([{"group": "normal", "curves": normal[1]}])})
    assert "| 2 | limit, biased | 0.0625 |" in text
    assert "| 2 | limit, unbiased | 0.06667 |" in text
