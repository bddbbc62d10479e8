"""Measure error against bits: every method at several rates, on the same data."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import thinwire
from thinwire.errors import LabError
from thinwire.lab.compare import markdown_table
from thinwire.lab.folder import RunFolder, read_json, write_json
from thinwire.lab.plots import error_against_bits, svg
from thinwire.schemes import ORQ, QSGD, Linear, LloydMax, Optimal, Scheme

__all__ = ["CURVES", "SYNTHETIC", "Curve", "Sample", "at_bits", "curves", "markdown", "measure", "samples", "write"]

SYNTHETIC_VALUES = 1 << 20
_LEVELS = (2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 17, 19, 21)
ANCHORS = tuple(ORQ(levels=levels) for levels in (3, 5, 9, 17))  # at whose bits the methods are compared


@dataclass(frozen=True, kw_only=True)
class Curve:
    """A method at several rates.

    Args:
        label: for people.
        schemes: the method, at rising bits per value.
    """

    label: str
    schemes: tuple[Scheme, ...]

    @property
    def title(self) -> str:
        return self.label if all(scheme.traits.unbiased for scheme in self.schemes) else f"{self.label} (biased)"


def _curve(label: str, make: Callable[[int], Scheme], levels: Sequence[int] = _LEVELS) -> Curve:
    return Curve(label=label, schemes=tuple(make(count) for count in levels))


CURVES = {
    "qsgd": _curve("QSGD", lambda levels: QSGD(levels=levels), range(3, 23, 2)),
    "linear": _curve("Linear", lambda levels: Linear(levels=levels)),
    "orq": _curve("ORQ", lambda levels: ORQ(levels=levels), (3, 5, 9, 17, 33)),
    "optimal": _curve("Optimal", lambda levels: Optimal(levels=levels)),
    "optimal-tensor": _curve("Optimal per tensor", lambda levels: Optimal(levels=levels, block_size=None)),
    "lloydmax": _curve("Lloyd-Max", lambda levels: LloydMax(levels=levels)),
}


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Tensors that travel as one message."""

    name: str
    tensors: dict[str, Tensor]

    @property
    def values(self) -> int:
        return sum(tensor.numel() for tensor in self.tensors.values())


SYNTHETIC: dict[str, Callable[[torch.Generator], Tensor]] = {
    "normal": lambda generator: torch.randn(SYNTHETIC_VALUES, generator=generator),
    "laplace": lambda generator: torch.empty(2, SYNTHETIC_VALUES).exponential_(generator=generator).diff(dim=0)[0],
    "lognormal": lambda generator: torch.empty(SYNTHETIC_VALUES).log_normal_(0, 1, generator=generator),
}


def samples(names: Sequence[str]) -> list[Sample]:
    """Make or read the data to measure on.

    Args:
        names: each one of SYNTHETIC (2^20 values, always the same), or "grads:RUN": every snapshot of the gradients
            in a run folder, one message each, of the tensors that the run compressed.

    Raises:
        LabError: an unknown name, or a folder without captured gradients.
    """
    found = []
    for name in names:
        if name in SYNTHETIC:
            values = SYNTHETIC[name](torch.Generator().manual_seed(0))
            found.append(Sample(name=name, tensors={name: values}))
        elif name.startswith("grads:"):
            found += _snapshots(Path(name.removeprefix("grads:")))
        else:
            raise LabError(f"unknown data {name!r}: choose from {', '.join(SYNTHETIC)}, grads:RUN")
    if not found:
        raise LabError("there is no data to measure on")
    return found


def _snapshots(run: Path) -> list[Sample]:
    files = RunFolder(run).gradients()
    if not files or not (run / "config.json").is_file():
        raise LabError(f"{run} is no run folder with captured gradients: thinwire train --out {run} makes one")
    least = read_json(run / "config.json")["min_values"]
    found = []
    for file in files:
        gradients = torch.load(file, weights_only=True)
        travelling = {name: gradient for name, gradient in gradients.items() if gradient.numel() >= least}
        found.append(Sample(name=f"{run.name}, step {int(file.stem.removeprefix('step_'))}", tensors=travelling))
    return found


def curves(names: Sequence[str]) -> dict[str, Curve]:
    """Return the named ones of CURVES.

    Raises:
        LabError: an unknown name, or none.
    """
    if not names:
        raise LabError("there is no method to measure")
    for name in names:
        if name not in CURVES:
            raise LabError(f"unknown method {name!r}: choose from {', '.join(CURVES)}")
    return {name: CURVES[name] for name in names}


def measure(sample: Sample, chosen: Mapping[str, Curve]) -> dict[str, Any]:
    """Measure each method's curve on one message, and compare them at the bits of ANCHORS.

    Returns:
        "name", "values", "curves" (method -> points of "scheme", "bits" = bits of the whole frame / values, "vnmse" =
        expected_error), and "equal_bits": for each anchor its "scheme" and "bits", and method -> "vnmse" there, None
        where its curve does not reach.
    """
    measured = {name: [_point(sample, scheme) for scheme in curve.schemes] for name, curve in chosen.items()}
    equal = []
    for anchor in ANCHORS:
        bits = _bits(sample, anchor)
        errors = {name: at_bits(points, bits) for name, points in measured.items()}
        equal.append({"scheme": anchor.label, "bits": bits, "vnmse": errors})
    return {"name": sample.name, "values": sample.values, "curves": measured, "equal_bits": equal}


def _point(sample: Sample, scheme: Scheme) -> dict[str, Any]:
    error = thinwire.expected_error(sample.tensors, scheme)
    return {"scheme": scheme.label, "bits": _bits(sample, scheme), "vnmse": error}


def _bits(sample: Sample, scheme: Scheme) -> float:
    return 8 * thinwire.encode(sample.tensors, scheme).numel() / sample.values


def at_bits(points: Sequence[Mapping[str, Any]], bits: float) -> float | None:
    """Interpolate a curve: the logarithm of vNMSE, linearly in bits, between the two points on either side.

    Returns:
        vNMSE; None outside the curve, and where it is not finite.
    """
    ordered = sorted(points, key=lambda point: point["bits"])
    reached = [point["bits"] for point in ordered]
    logs = np.log([point["vnmse"] for point in ordered])
    error = float(np.exp(np.interp(bits, reached, logs, left=np.nan, right=np.nan)))
    return error if np.isfinite(error) else None


_NOTE = f"""\
vNMSE at equal measured bits per value. Bits: 8 x the frame's length in bytes / values, everything counted. vNMSE:
expected over the rounding, in closed form. Methods are compared at the bits of {", ".join(a.label for a in ANCHORS)}.
Between a method's two nearest level counts, the logarithm of vNMSE is interpolated linearly in bits; "-" where its
curve does not reach. Biased methods have less error in one message, which does not average out over workers and steps.
"""


def markdown(results: Mapping[str, Any]) -> str:
    """Return the comparison at equal bits in Markdown, with a note on how it was made."""
    titles = ["Data", "Bits", *(curve["title"] for curve in results["methods"].values())]
    rows = []
    for message in results["messages"]:
        for row in message["equal_bits"]:
            errors = (row["vnmse"][name] for name in results["methods"])
            cells = ("-" if error is None else f"{error:.4g}" for error in errors)
            rows.append([message["name"], f"{row['bits']:.3f} ({row['scheme']})", *cells])
    return _NOTE + "\n" + markdown_table(titles, *rows)


def write(
    out: str | os.PathLike[str], chosen: Mapping[str, Curve], messages: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Write frontier.json, frontier.md and frontier.svg into a folder, and return what is in the first."""
    results = {
        "thinwire": thinwire.__version__,
        "methods": {name: {"title": curve.title} for name, curve in chosen.items()},
        "messages": list(messages),
    }
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "frontier.json", results)
    (folder / "frontier.md").write_text(markdown(results), encoding="utf-8")
    (folder / "frontier.svg").write_bytes(svg(error_against_bits(results)))
    return results
