"""Draw docs/assets/feedback.svg: SGD on a least-squares problem whose gradients travel as frames."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch

import thinwire
from thinwire.feedback import Residuals
from thinwire.schemes import Scheme
from thinwire.types import Key, Message, Segment
from thinwire.wire import accumulate, encode

WORKERS, ROWS, COLUMNS, STEPS, RATE = 2, 64, 20, 400, 0.3


def send(residuals: Residuals, gradient: torch.Tensor, scheme: Scheme, step: int) -> torch.Tensor:
    layout = (Segment(shape=(COLUMNS,), dtype=torch.float32, scheme=scheme),)
    meant = residuals.compensate(Message(layout, [gradient]))
    decoded = torch.zeros(COLUMNS)
    accumulate(encode(meant, Key(step=step)), layout, decoded)
    residuals.keep(meant, decoded)
    residuals.commit()
    return decoded


def distances(scheme: Scheme, feedback: bool) -> list[float]:
    """Distance from the optimum after each step, relative to its norm; the rate falls to zero."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(WORKERS, ROWS, COLUMNS, generator=generator)
    targets = torch.randn(WORKERS, ROWS, generator=generator)
    best = torch.linalg.lstsq(rows.flatten(0, 1), targets.flatten()[:, None]).solution.flatten()
    residuals = [Residuals(feedback) for _ in range(WORKERS)]
    weights, found = torch.zeros(COLUMNS), []
    for step in range(STEPS):
        gradients = ((rows @ weights - targets)[:, None] @ rows).squeeze(1) / ROWS
        sent = [send(owed, gradient, scheme, step) for owed, gradient in zip(residuals, gradients)]
        weights -= RATE * (1 - step / STEPS) * torch.stack(sent).mean(0)
        found.append(float((weights - best).norm() / best.norm()))
    return found


def main() -> None:
    plt.rcParams["svg.hashsalt"] = "thinwire"
    figure, axes = plt.subplots(figsize=(7, 3.6))
    for scheme, colour in ((thinwire.SignSGD(), "tab:blue"), (thinwire.BinGradB(), "tab:orange")):
        for feedback in (False, True):
            label = f"{scheme.label}, {'with' if feedback else 'without'} error feedback"
            axes.semilogy(distances(scheme, feedback), color=colour, ls="-" if feedback else ":", label=label)
    axes.set(xlabel="step", ylabel="distance from the optimum, relative")
    axes.legend(frameon=False)
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
