"""Write a comparison as one HTML file that needs nothing else."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from thinwire.collectives import check_algorithm
from thinwire.lab import frontier as frontiers
from thinwire.lab import plots
from thinwire.lab.compare import metric_of, table
from thinwire.lab.data import DATASETS
from thinwire.lab.extra import require
from thinwire.lab.folder import read_json

__all__ = ["FRONTIER", "write_report"]

FRONTIER = "frontier"  # the folder beside a report whose error against bits it shows


def write_report(results: Mapping[str, Any], path: Path) -> None:
    """Write the table and the figures of a comparison, and of a `frontier/frontier.json` beside the report if any.

    Args:
        results: from `compare.collect`, or results.json.
        path: of the HTML file.

    Raises:
        LabError: matplotlib or jinja2 is not installed.
    """
    jinja2 = require("jinja2")
    source = resources.files("thinwire.lab").joinpath("templates/report.html").read_text(encoding="utf-8")
    template = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
    columns, *rows = table(results)
    measured = path.parent / FRONTIER / "frontier.json"
    frontier = read_json(measured) if measured.is_file() else None
    any_method = next(iter(results["methods"].values()))
    html = template.render(
        results=results,
        config=results["config"],
        run=any_method,
        algorithm=check_algorithm(results["config"]["algorithm"], None, any_method["workers"]),
        columns=columns,
        rows=rows,
        metric=metric_of(results),
        examples=DATASETS[results["config"]["data"]].example,
        colours=plots.colours(results["methods"]),
        figures={name: data_uri(figure) for name, figure in _figures(results, frontier).items()},
        frontier=frontiers.table(frontier) if frontier else None,
        frontier_note=frontiers.NOTE,
        ring=[plots.ring_bytes(any_method, bytes_per_value=width) / 1e6 for width in (4, 2)],
    )
    partial = path.with_name(path.name + ".partial")
    partial.write_text(html, encoding="utf-8")
    partial.replace(path)


def _figures(results: Mapping[str, Any], frontier: Mapping[str, Any] | None) -> dict[str, Any]:
    figures = {
        "tested": plots.metric_against_bytes(results, metric_of(results)),
        "loss": plots.loss_against_steps(results),
    }
    if "layers" in results:
        figures["layers"] = plots.error_by_layer(results)
        if results["levels"]["methods"]:
            figures["levels"] = plots.levels_on_histogram(results)
    if frontier:
        figures["frontier"] = plots.error_against_bits(frontier, frontiers.LIMITS)
    return figures


def data_uri(figure: Any) -> str:
    """Return a figure as an SVG image inside a data: address."""
    return "data:image/svg+xml;base64," + base64.b64encode(plots.svg(figure)).decode("ascii")
