"""Draw docs/assets/levels.svg: nine levels of three methods over one block of a real gradient.

make demo
.venv/bin/python docs/assets/levels.py runs/demo/fp32/seed-0/gradients/step_000063.pt
"""

import sys
from pathlib import Path

import matplotlib
import torch
from matplotlib.figure import Figure

import thinwire

LAYER, BLOCK = "stage3.0.conv2.weight", 2048
METHODS = {
    "QSGD": (thinwire.QSGD(levels=9), "evenly spaced", "#8a8f98"),
    "Linear": (thinwire.Linear(levels=9), "equal mass", "#0072b2"),
    "ORQ": (thinwire.ORQ(levels=9), "optimal condition", "#d55e00"),
}
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 11,
    "svg.fonttype": "path",
    "svg.hashsalt": "thinwire",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
}


def draw(values: torch.Tensor) -> Figure:
    """One panel a method; bars are the block's histogram (square-root scale), lines the levels."""
    figure = Figure(figsize=(9, 4.4), layout="constrained")
    for axes, (name, (scheme, idea, colour)) in zip(figure.subplots(len(METHODS), 1, sharex=True), METHODS.items()):
        axes.hist(values.numpy(), bins=121, histtype="stepfilled", color="#d9dce1")
        axes.set_yscale("function", functions=(lambda y: y**0.5, lambda y: y**2))
        axes.set_yticks([])
        for level in seen_levels(values, scheme):
            axes.axvline(level, color=colour, linewidth=1.8)
        error = thinwire.expected_error(values, scheme)
        beside = {"transform": axes.transAxes, "ha": "right", "clip_on": False}
        axes.text(-0.015, 0.68, f"{name}, 9 levels", va="center", color=colour, fontweight="bold", **beside)
        axes.text(-0.015, 0.44, idea, va="center", color="#555555", **beside)
        axes.text(-0.015, 0.20, f"error {error:.2f}", va="center", color="#222222", **beside)
    axes.ticklabel_format(axis="x", style="sci", scilimits=(-2, 3), useMathText=True)
    axes.set_xlabel("value of the gradient")
    return figure


def seen_levels(values: torch.Tensor, scheme: thinwire.ORQ) -> list[float]:
    """The levels that a receiver sees: every one is used in a block of this many values, or lies at an end."""
    rows, lengths = values.reshape(1, -1), torch.tensor([len(values)])
    return sorted(set(scheme.expand(scheme.solve(rows, lengths))[0].tolist()))


def main() -> None:
    captured = torch.load(sys.argv[1], weights_only=True)
    with matplotlib.rc_context(STYLE):
        figure = draw(captured[LAYER].reshape(-1)[:BLOCK].to(torch.float32))
        figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
