"""Draw docs/assets/feedback-training.svg from a comparison's results.json, as docs/error-feedback.md makes it.

.venv/bin/python docs/assets/feedback_training.py runs/feedback/results.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt

WINDOW = 31  # steps of the running mean
COLOURS = {"fp32": "#222222", "signsgd": "tab:blue", "bingrad-b": "tab:orange"}


def draw(results: dict[str, Any]) -> plt.Figure:
    """Training loss by step and test accuracy by epoch, means over the seeds."""
    figure, (losses, tested) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for label, run in results["methods"].items():
        method, fed = label.removesuffix("+ef"), label.endswith("+ef")
        line = {"color": COLOURS[method], "ls": ":" if method != "fp32" and not fed else "-", "lw": 1.4}
        smooth = [sum(run["loss"][i : i + WINDOW]) / WINDOW for i in range(len(run["loss"]) - WINDOW + 1)]
        losses.semilogy(range(WINDOW, len(run["loss"]) + 1), smooth, **line)
        accuracy = [100 * point["test_accuracy"] for point in run["curve"]]
        steps = [run["steps"] * (epoch + 1) / len(accuracy) for epoch in range(len(accuracy))]
        name = f"{method}, {'with' if fed else 'without'} error feedback" if method != "fp32" else method
        tested.plot(steps, accuracy, marker=".", label=name, **line)
    losses.set(xlabel="step", ylabel=f"training loss, mean of {WINDOW} steps")
    tested.set(xlabel="step", ylabel="test accuracy, %", ylim=(30, 100))
    tested.legend(frameon=False, fontsize=8, loc="lower right")
    for axes in (losses, tested):
        axes.grid(alpha=0.3)
    return figure


def main() -> None:
    plt.rcParams["svg.hashsalt"] = "thinwire"
    figure = draw(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    figure.savefig(Path(__file__).with_name("feedback-training.svg"), metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
