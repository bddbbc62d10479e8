"""The figures of a comparison. Each takes the results of `compare.collect`, returns a matplotlib Figure."""

from __future__ import annotations

import io
from collections.abc import Container, Iterable, Mapping
from typing import Any

from thinwire.lab.dataset import Metric
from thinwire.lab.extra import require

__all__ = [
    "colours",
    "error_against_bits",
    "error_by_layer",
    "levels_on_histogram",
    "loss_against_steps",
    "metric_against_bytes",
    "svg",
]

_PALETTE = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#cc79a7",
    "#e69f00",
    "#56b4e9",
    "#7a3ea1",
    "#8c6d31",
    "#c0392b",
    "#3f7f5f",
)
_DASHES = ("-", "--", ":")  # for methods beyond the palette's colours
_UNCOMPRESSED = "#222222"
_LIMIT = {"color": "#999999"}
_WIDTH = 9.0  # inches
_STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "thinwire",
}


def colours(methods: Iterable[str]) -> dict[str, str]:
    """Give every method the colour that it has in all figures."""
    coloured = {}
    compressed = 0
    for method in methods:
        if method in ("fp32", "none"):
            coloured[method] = _UNCOMPRESSED
        else:
            coloured[method] = _PALETTE[compressed % len(_PALETTE)]
            compressed += 1
    return coloured


def svg(figure: Any) -> bytes:
    """Return a figure as an SVG image; equal figures give equal bytes."""
    image = io.BytesIO()
    with require("matplotlib").rc_context(_STYLE):
        figure.savefig(image, format="svg", metadata={"Date": None})
    return image.getvalue()


def _axes(height: float, rows: int = 1) -> tuple[Any, Any]:
    """Make a figure that no window system knows of, `rows` axes above each other."""
    matplotlib = require("matplotlib")
    with matplotlib.rc_context(_STYLE):
        figure = require("matplotlib.figure").Figure(figsize=(_WIDTH, height), layout="constrained")
        return figure, figure.subplots(rows, 1, sharex=True, squeeze=False)[:, 0]


def _legend(axes: Any) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0, frameon=False)


def metric_against_bytes(results: Mapping[str, Any], metric: Metric) -> Any:
    """What was tested after every epoch against what one worker had sent by then; error bars over seeds."""
    figure, (axes,) = _axes(4.2)
    shade = colours(results["methods"])
    for method, values in results["methods"].items():
        megabytes = [point["bytes_sent"] / 1e6 for point in values["curve"]]
        tested = [metric.factor * _number(point[metric.name]) for point in values["curve"]]
        axes.plot(megabytes, tested, "-", color=shade[method], linewidth=1.2, alpha=0.6)
        axes.plot(megabytes[:-1], tested[:-1], "o", color=shade[method], markersize=3.5, alpha=0.6)
        axes.errorbar(
            megabytes[-1:],
            tested[-1:],
            yerr=[metric.factor * (values[metric.name]["spread"] or 0.0)],
            fmt="o",
            color=shade[method],
            markersize=8,
            capsize=3,
            label=method,
        )
    any_method = next(iter(results["methods"].values()))
    _mark_ring(axes, any_method)
    axes.set_xscale("log")
    _label_log_scale(axes.xaxis)
    axes.set_xlabel("gradient bytes sent by one worker so far, MB (log scale)")
    axes.set_ylabel(metric.title)
    _legend(axes)
    return figure


def _mark_ring(axes: Any, values: Mapping[str, Any]) -> None:
    workers = values["workers"]
    if workers < 2:
        return
    ring = ring_bytes(values, bytes_per_value=4) / 1e6
    axes.axvline(ring, color=_UNCOMPRESSED, linewidth=1, linestyle=":")
    axes.annotate(
        "whole run in fp32\nby ring all-reduce",
        (ring, 0.03),
        xycoords=("data", "axes fraction"),
        xytext=(-5, 0),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color="#555555",
    )


def ring_bytes(values: Mapping[str, Any], *, bytes_per_value: float) -> float:
    """Return what one worker would send in the whole run if a ring all-reduce averaged plain gradients."""
    workers = values["workers"]
    return 2 * (workers - 1) / workers * bytes_per_value * values["parameters"] * values["steps"]


def _label_log_scale(axis: Any) -> None:
    """Label 1, 2 and 5 of each decade with plain numbers, and keep the other ticks unlabelled."""
    ticker = require("matplotlib.ticker")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(ticker.NullFormatter())


def loss_against_steps(results: Mapping[str, Any]) -> Any:
    """Training loss against steps, as a running mean over a twentieth of the run."""
    figure, (axes,) = _axes(4.2)
    shade = colours(results["methods"])
    for method, values in results["methods"].items():
        losses = values["loss"]
        window = max(1, len(losses) // 20)
        smooth = _running_mean(losses, window)
        axes.plot(range(window, len(losses) + 1), smooth, color=shade[method], linewidth=1.4, label=method)
    axes.set_yscale("log")
    _label_log_scale(axes.yaxis)
    axes.set_xlim(left=0)
    axes.set_xlabel("step")
    axes.set_ylabel("training loss, nats (log scale)")
    _legend(axes)
    return figure


def _number(value: float | None) -> float:
    """A number from JSON, where those that are not finite are null."""
    return float("nan") if value is None else value


def _running_mean(values: list[float | None], window: int) -> list[float]:
    numbers = [_number(value) for value in values]
    return [sum(numbers[i : i + window]) / window for i in range(len(numbers) - window + 1)]


def error_by_layer(results: Mapping[str, Any]) -> Any:
    """Quantization error of the same captured gradients, by layer, for every method that has one."""
    layers = list(results["layers"]["values"])
    figure, (axes,) = _axes(4.8)
    shade = colours(results["methods"])
    for method, errors in results["layers"]["errors"].items():
        drawn = [(layers.index(layer), error) for layer, error in errors.items() if error > 0]
        if drawn:
            places, heights = zip(*drawn, strict=True)
            axes.plot(places, heights, "o-", color=shade[method], markersize=4, linewidth=0.9, label=method)
    axes.set_yscale("log")
    _label_log_scale(axes.yaxis)
    thinned = range(0, len(layers), max(1, len(layers) // 30))
    axes.set_xticks(list(thinned), [layers[i].removesuffix(".weight") for i in thinned])
    axes.tick_params(axis="x", labelrotation=90, labelsize=8)
    axes.set_xlabel("layer, in the model's order")
    axes.set_ylabel("vNMSE of the gradient (log scale)")
    if axes.has_data():
        _legend(axes)
    return figure


def levels_on_histogram(results: Mapping[str, Any]) -> Any:
    """One real block of gradient values and each method's levels, as tall as their share of the values."""
    values, methods = results["levels"]["values"], results["levels"]["methods"]
    figure, rows = _axes(0.6 + 0.95 * len(methods), len(methods))
    shade = colours(results["methods"])
    for axes, (method, drawn) in zip(rows, methods.items()):
        axes.hist(values, bins=101, color="#d5d5d5")
        axes.set_yticks([])
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        shares = axes.twinx()
        shares.set_axis_off()
        shares.set_ylim(0, 1.05)
        shares.vlines(drawn["levels"], 0, 1, color=shade[method], linewidth=1, alpha=0.3)
        shares.vlines(drawn["levels"], 0, drawn["shares"], color=shade[method], linewidth=2)
        shares.plot(drawn["levels"], drawn["shares"], "o", color=shade[method], markersize=4.5)
        beside = {"transform": axes.transAxes, "ha": "right"}
        axes.text(-0.01, 0.5, method, va="bottom", color=shade[method], fontweight="bold", **beside)
        axes.text(-0.01, 0.42, f"vNMSE {drawn['vnmse']:.3g}", va="top", color="#444444", fontsize=9, **beside)
    rows[-1].ticklabel_format(axis="x", style="sci", scilimits=(-2, 3), useMathText=True)
    rows[-1].set_xlabel(f"value of the gradient ({results['levels']['layer']}, first {len(values)} values)")
    return figure


def error_against_bits(results: Mapping[str, Any], limits: Container[str]) -> Any:
    """Error of one rank against measured bits, a panel a group of messages, a line a method; limits are grey."""
    groups = results["groups"]
    columns = min(3, len(groups))
    rows = -(-len(groups) // columns)
    matplotlib = require("matplotlib")
    with matplotlib.rc_context(_STYLE):
        size = (_WIDTH, 1.2 + 3.0 * rows)
        figure = require("matplotlib.figure").Figure(figsize=size, layout="constrained")
        panels = figure.subplots(rows, columns, sharex=True, squeeze=False).flatten()
    measured = list(dict.fromkeys(name for curves in groups.values() for name in curves if name not in limits))
    shade = colours(measured)
    dash = {name: _DASHES[index // len(_PALETTE) % len(_DASHES)] for index, name in enumerate(measured)}
    handles = {}
    for panel, (group, curves) in zip(panels, groups.items()):
        for name, points in curves.items():
            style = _LIMIT if name in limits else {"color": shade[name], "linestyle": dash[name], "marker": "."}
            bits = [point["bits"] for point in points]
            errors = [point["errors"]["1"] or float("nan") for point in points]  # no logarithm shows an error of 0
            (handles[name],) = panel.plot(bits, errors, linewidth=1.1, **style)
        panel.set_yscale("log")
        panel.set_title(group, fontsize=10)
        panel.set_xlabel("bits a value")
    for unused in panels[len(groups) :]:
        unused.set_axis_off()
    panels[0].set_ylabel("vNMSE of one rank (log scale)")
    figure.legend(handles.values(), handles, loc="outside upper center", ncols=6, fontsize=9, frameon=False)
    return figure
