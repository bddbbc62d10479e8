"""Draw docs/assets/optimal.svg: the chain and its polygons, and the windows that the bound leaves to each level.

.venv/bin/python docs/assets/optimal.py
"""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

VALUES, LEVELS, COARSE, FINE = 400, 5, 6, 48
INK, POLYGON, OUTER, COLOURS = "#222222", "#0072b2", "#d55e00", ("#009e73", "#cc79a7", "#e69f00")
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 10.5,
    "svg.fonttype": "path",
    "svg.hashsalt": "thinwire",
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def chain(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """h(t) = chord - G(t) for sorted x, by definition."""
    count = np.maximum(0, t[:, None] - x).sum(1)
    return np.maximum(0, x[-1] - x).sum() * (t - x[0]) / (x[-1] - x[0]) - count


def outer(x: np.ndarray, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """Kinks of the chain of block means, for blocks of equal width."""
    edges = np.searchsorted(x, np.linspace(x[0], x[-1], blocks + 1)[1:-1])
    parts = [part for part in np.split(x, edges) if len(part)]
    means = np.array([part.mean() for part in parts])
    weighted = np.repeat(means, [len(part) for part in parts])
    slope = (x[-1] - weighted).sum() / (x[-1] - x[0])
    p = np.concatenate([x[:1], means, x[-1:]])
    return p, slope * (p - x[0]) - np.maximum(0, p[:, None] - weighted).sum(1)


def through(p: np.ndarray, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Largest gain of LEVELS levels with level k at kink j, `[LEVELS, kinks]`; and the kinks of the best path."""
    gain = np.subtract.outer(p, p).T * np.add.outer(h, h)
    gain[np.tril_indices(len(p), -1)] = -np.inf
    forth, back = (
        [np.where(np.arange(len(p)) == 0, 0, -np.inf)],
        [np.where(np.arange(len(p)) == len(p) - 1, 0, -np.inf)],
    )
    for _ in range(LEVELS - 1):
        forth.append((forth[-1][:, None] + gain).max(0))
        back.append((back[-1] + gain).max(1))
    total = np.array(forth) + np.array(back[::-1])
    return total, total.argmax(1)


def draw_chain(axes: Axes, x: np.ndarray) -> None:
    """The chain of the data, the best polygon under it, the chain of block means over it."""
    t = np.unique(x)
    h = chain(x, t)
    best = through(t, h)[1]
    p, above = outer(x, COARSE)
    axes.fill_between(t, h, np.interp(t, t[best], h[best]), color=POLYGON, alpha=0.3, linewidth=0)
    axes.plot(p, above, color=OUTER, linewidth=1.4, marker="o", markersize=4.5, label=f"chain of {COARSE} block means")
    axes.plot(t, h, color=INK, linewidth=1.8, label="chain of the data, $h$")
    axes.plot(t[best], h[best], color=POLYGON, linewidth=1.8, marker="s", markersize=5, label=f"best {LEVELS} levels")
    axes.vlines(t[best][1:-1], 0, h[best][1:-1], color=POLYGON, linewidth=0.8, linestyle=":")
    axes.set_ylim(0, above.max() * 1.08)
    axes.set_yticks([])
    axes.legend(frameon=False, loc="upper left", handlelength=1.8)
    axes.text(0.985, 0.93, "shaded: half the cost $f$", transform=axes.transAxes, ha="right", color=POLYGON)


def draw_windows(axes: Axes, x: np.ndarray) -> None:
    """How much less than the bound a path through each kink can gain, per level; windows are where that is little."""
    p, h = outer(x, FINE)
    total = through(p, h)[0]
    t = np.unique(x)
    best, exact = through(t, chain(x, t))[1], through(t, chain(x, t))[0].max()
    limit = (total.max() - exact) / exact
    for k, colour in zip(range(1, LEVELS - 1), COLOURS):
        short = (total.max() - total[k]) / exact
        kept = np.flatnonzero(short <= limit)
        axes.axvspan(p[max(kept[0] - 2, 0)], p[min(kept[-1] + 2, len(p) - 1)], color=colour, alpha=0.18, linewidth=0)
        axes.plot(p, short * 100, color=colour, linewidth=1.2, marker="o", markersize=3)
        axes.axvline(t[best[k]], color=POLYGON, linewidth=0.8, linestyle=":")
        box = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
        axes.text(t[best[k]], 1.9, f"level {k}", ha="center", color=colour, fontweight="bold", bbox=box)
    axes.axhline(limit * 100, color=INK, linewidth=0.9)
    axes.text(x[0], limit * 100 + 0.05, "limit: the levels found", ha="left", va="top", color=INK)
    axes.set_ylim(2.0, -0.1)
    axes.set_ylabel(f"short of the bound, %\n({FINE} blocks)")
    axes.set_xlabel("value")


def main() -> None:
    x = np.sort(np.random.default_rng(5).standard_normal(VALUES))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 6.2), layout="constrained")
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1.25, 1))
        draw_chain(above, x)
        draw_windows(below, x)
        figure.savefig(Path(__file__).with_suffix(".svg"), metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
