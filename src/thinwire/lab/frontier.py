"""Measure error against bits: every method at every rate that it has, on the same data."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import thinwire
from thinwire.errors import LabError, SchemeError
from thinwire.lab.compare import markdown_table
from thinwire.lab.folder import RunFolder, read_json, write_json
from thinwire.lab.plots import error_against_bits, svg
from thinwire.schemes import NAMES, Scheme, from_spec, partition
from thinwire.types import Key, Message
from thinwire.wire import compose, encode

__all__ = [
    "BITS",
    "EDEN",
    "LIMITS",
    "METHODS",
    "NOTE",
    "RANKS",
    "SYNTHETIC",
    "Sample",
    "at_bits",
    "average",
    "choose",
    "markdown",
    "measure",
    "rates",
    "ratios",
    "samples",
    "table",
    "write",
]

SYNTHETIC_VALUES = 1 << 20
METHODS = tuple(name for name in NAMES if not from_spec(name).traits.exact)
RANKS = (1, 8, 32)  # over which the mean's error is measured; each divides the last
EDEN = "eden"  # what others' errors are divided by
BITS = (1.1, 2.0, 3.0, 4.0)  # at which methods are compared; those of 1 bit need up to 0.06 for scales and headers
_RATES = {  # a method has one of these options, or one rate
    "levels": (2, 3, 4, 5, 7, 9, 13, 17),
    "bits": (0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5),
}
LIMITS: dict[str, Callable[[float], float]] = {
    "limit, biased": lambda bits: 2 ** (-2 * bits),
    "limit, unbiased": lambda bits: 1 / (2 ** (2 * bits) - 1),
}
"""Least vNMSE of one rank's independent normal values: Shannon's, and that of the same code scaled to be unbiased."""

_Points = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Tensors that travel as one message.

    Args:
        name: for people.
        group: what it is an example of; errors are averaged over a group.
        kind: of groups whose ratios to EDEN are also averaged over all of them; "" = this group alone.
        tensors: by name.
        normal: whether the values are independent draws of N(0, 1), for which LIMITS hold.

    Raises:
        LabError: all values are zero, or there are none: no error is a fraction of nothing.
    """

    name: str
    group: str
    kind: str = ""
    tensors: dict[str, Tensor]
    normal: bool = False

    def __post_init__(self) -> None:
        if not any(tensor.any() for tensor in self.tensors.values()):
            raise LabError(f"{self.name}: there is no value other than 0 to measure errors against: leave it out")

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
            in a run folder, one message each, of the tensors that the run compressed; once as they are, and once with
            every tensor divided by its root mean square.

    Raises:
        LabError: an unknown name, a folder without captured gradients, or a snapshot of zeros.
    """
    found = []
    for name in names:
        if name in SYNTHETIC:
            values = SYNTHETIC[name](torch.Generator().manual_seed(0))
            found.append(Sample(name=name, group=name, tensors={name: values}, normal=name == "normal"))
        elif name.startswith("grads:"):
            found += _snapshots(Path(name.removeprefix("grads:")))
        else:
            raise LabError(f"unknown data {name!r}: choose from {', '.join(SYNTHETIC)}, grads:RUN")
    if not found:
        raise LabError("there is no data to measure on")
    return found


def _snapshots(run: Path) -> Iterator[Sample]:
    files = RunFolder(run).gradients()
    if not files or not (run / "config.json").is_file():
        raise LabError(f"{run} is no run folder with captured gradients: thinwire train --out {run} makes one")
    least = read_json(run / "config.json")["min_values"]
    for change, vary in (("", torch.clone), (", unit RMS", _unit_rms)):
        for file in files:
            gradients = torch.load(file, weights_only=True)
            travelling = {name: vary(gradient) for name, gradient in gradients.items() if gradient.numel() >= least}
            step = int(file.stem.removeprefix("step_"))
            yield Sample(
                name=f"{run.name}, step {step}{change}",
                group=run.name + change,
                kind="gradients" + change,
                tensors=travelling,
            )


def _unit_rms(tensor: Tensor) -> Tensor:
    scale = tensor.double().square().mean().sqrt().float()
    return tensor / scale if scale > 0 else tensor


def choose(names: Sequence[str]) -> dict[str, list[Scheme]]:
    """Return each named method at its rates.

    Raises:
        LabError: an unknown name, or none.
    """
    if not names:
        raise LabError("there is no method to measure")
    for name in names:
        if name not in METHODS:
            raise LabError(f"unknown method {name!r}: choose from {', '.join(METHODS)}")
    return {name: rates(name) for name in names}


def rates(name: str) -> list[Scheme]:
    """Return a method at all rates that it accepts; one scheme if it has no choice of levels or bits."""
    options = from_spec(name).options()
    option = next((option for option in _RATES if option in options), None)
    if option is None:
        return [from_spec(name)]
    return list(_accepted(name, option, _RATES[option]))


def _accepted(name: str, option: str, values: Iterable[float]) -> Iterator[Scheme]:
    for value in values:
        try:
            yield from_spec(name, **{option: value})
        except SchemeError:  # the method says which it has
            continue


def measure(sample: Sample, chosen: Mapping[str, Sequence[Scheme]]) -> dict[str, Any]:
    """Encode and decode one message by every method, as 32 ranks that hold the same tensors.

    Returns:
        "name", "group", "kind", "values", and "curves": method -> points, as `_point`; of normal values also LIMITS.
    """
    curves = {name: [_point(sample, scheme) for scheme in schemes] for name, schemes in chosen.items()}
    if sample.normal:
        curves |= {
            name: [_ideal(bits, limit) for bits in np.arange(0.25, 5.25, 0.25)] for name, limit in LIMITS.items()
        }
    about = {"name": sample.name, "group": sample.group, "kind": sample.kind, "values": sample.values}
    return {**about, "curves": curves}


def _point(sample: Sample, scheme: Scheme) -> dict[str, Any]:
    """Measure one scheme.

    Returns:
        "scheme"; "bits" = 8 x a frame's length in bytes / values; "errors": n -> the squared error of the mean of n
        ranks / the squared norm, a mean over 32 / n disjoint sets of ranks; "bias": the squared norm of the error's
        expectation / that of the values, an unbiased estimate: it may be a little below 0.
    """
    message, shape = compose(sample.tensors, scheme)
    power = float(message.flat.double().square().sum())
    sums = {count: torch.zeros(message.numel) for count in RANKS}
    found: dict[int, list[float]] = {count: [] for count in RANKS}
    for rank, decoded in enumerate(_received(message)):
        for count, total in sums.items():
            total += decoded
            if (rank + 1) % count == 0:
                lost = total.div_(count).sub_(message.flat)
                found[count].append(float(torch.linalg.vector_norm(lost, dtype=torch.float64)) ** 2 / power)
                total.zero_()
    errors = {str(count): statistics.fmean(values) for count, values in found.items()}
    one, many = errors[str(RANKS[0])], errors[str(RANKS[-1])]
    return {
        "scheme": scheme.label,
        "bits": 8 * encode(message, Key(), shape).numel() / sample.values,
        "errors": errors,
        "bias": (RANKS[-1] * many - one) / (RANKS[-1] - 1),
    }


def _received(message: Message) -> Iterator[Tensor]:
    """What each rank's frame decodes to, float32 `[values]`; a plan depends on no key, and is made once for all."""
    groups = partition(message.layout)[1]
    plans = [group.scheme.plan(message, group) for group in groups]
    for rank in range(RANKS[-1]):
        decoded = torch.zeros(message.numel)
        for group, plan in zip(groups, plans):
            parts = group.scheme.encode(message, group, plan, Key(rank=rank))
            octets = [part.reshape(-1).view(torch.uint8) for part in parts]
            group.scheme.decode(octets, group, Key(rank=rank), decoded, add=False)
        yield decoded


def _ideal(bits: float, limit: Callable[[float], float]) -> dict[str, Any]:
    return {"scheme": "", "bits": bits, "errors": {"1": limit(bits)}}


def average(messages: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """Average the messages of each group: geometric means of errors, arithmetic ones of bits and of the bias' share.

    Returns:
        group -> method -> points.
    """
    groups = {}
    for group, members in groupby(messages, key=lambda message: str(message["group"])):
        same = [message["curves"] for message in members]
        groups[group] = {
            name: [_mean(points) for points in zip(*(curves[name] for curves in same))] for name in same[0]
        }
    return groups


def _mean(points: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counts = points[0]["errors"]
    mean = {
        "scheme": points[0]["scheme"],
        "bits": statistics.fmean(point["bits"] for point in points),
        "errors": {n: _geometric_mean([point["errors"][n] for point in points]) for n in counts},
    }
    if "bias" in points[0]:
        shares = (point["bias"] / point["errors"]["1"] if point["errors"]["1"] else 0.0 for point in points)
        mean["bias share"] = statistics.fmean(shares)
    return mean


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, values))) if all(values) else 0.0


def at_bits(points: _Points, bits: float, ranks: int = 1) -> float | None:
    """Interpolate a curve: the logarithm of the error, linearly in bits, between the two points on either side.

    Returns:
        The squared error of the mean of so many ranks; None outside the curve, where it is not finite, and between
        a point with an error and one without.
    """
    known = [(point["bits"], point["errors"].get(str(ranks))) for point in points]
    ordered = sorted((bits, error) for bits, error in known if error is not None)
    if not ordered:
        return None
    reached, errors = zip(*ordered)
    linear = np.interp(bits, reached, errors, left=np.nan, right=np.nan)
    with np.errstate(divide="ignore"):
        error = float(np.exp(np.interp(bits, reached, np.log(errors))))
    return error if np.isfinite(linear) and (error > 0 or linear == 0) else None


def ratios(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Divide each method's error of one rank by EDEN's at equal bits; nothing if EDEN was not measured.

    Returns:
        A row a method and BITS, then one a method of one rate: "bits" (None = its own), "method", and "ratios": group
        -> geometric mean over its messages, None where a curve ends; likewise "all KIND" over groups of one kind.
    """
    if not all(EDEN in message["curves"] for message in messages):
        return []
    columns = _by(messages, "group")
    for kind, members in _by(messages, "kind").items():
        if kind and len(_by(members, "group")) > 1:
            columns[f"all {kind}"] = members
    names = dict.fromkeys(name for message in messages for name in message["curves"] if name != EDEN)
    rows = [
        {"bits": bits, "method": name, "ratios": {title: _ratio(of, name, bits) for title, of in columns.items()}}
        for bits in (*BITS, None)
        for name in names
    ]
    return [row for row in rows if any(ratio is not None for ratio in row["ratios"].values())]


def _by(messages: Sequence[Mapping[str, Any]], what: str) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for message in messages:
        found.setdefault(message[what], []).append(message)
    return found


def _ratio(messages: Sequence[Mapping[str, Any]], name: str, bits: float | None) -> float | None:
    found = []
    for curves in (message["curves"] for message in messages):
        points = curves.get(name, ())
        if bits is None and len(points) != 1:
            return None
        at = points[0]["bits"] if bits is None else bits
        error, edens = at_bits(points, at), at_bits(curves[EDEN], at)
        if error is None or not edens:
            return None
        found.append(error / edens)
    return _geometric_mean(found)


NOTE = f"""\
Bits: 8 x a frame's length in bytes / values, everything counted. Error: |mean of n ranks' frames - x|^2 / |x|^2, where
all ranks hold the same x and draw their own random numbers; of one rank, a mean over {RANKS[-1]} of them. Between a
method's two nearest rates, the logarithm of the error is interpolated linearly in bits; "-" where its curve does not
reach. A method of one rate has its own bits in brackets. Of several snapshots, geometric means. Bias: the largest part
of one rank's squared error, over a method's rates, that does not average out over ranks.
"""


def markdown(results: Mapping[str, Any]) -> str:
    """Return errors at equal bits, a table for each number of ranks, ratios to EDEN's, and the bias, in Markdown."""
    groups = results["groups"]
    text = NOTE
    for ranks in RANKS:
        text += f"\nMean of {ranks} ranks:\n\n" if ranks > 1 else "\nOne rank:\n\n"
        text += markdown_table(*table(results, ranks))
    if results.get("ratios"):
        text += "\nOne rank's error / EDEN's at the same bits:\n\n" + markdown_table(*_ratio_table(results["ratios"]))
    return text + "\nBias:\n\n" + markdown_table(["Method", *groups], *_biases(groups))


def table(results: Mapping[str, Any], ranks: int = 1) -> list[list[str]]:
    """Return the errors of the mean of so many ranks at equal bits as texts: titles, and a row a method and BITS."""
    groups = results["groups"]
    rows = [row for bits in BITS for row in _rows(groups, bits, ranks)]
    return [["Bits", "Method", *groups], *rows, *_single_rate(groups, ranks)]


def _ratio_table(rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    bits = ["its own" if row["bits"] is None else f"{row['bits']:g}" for row in rows]
    texts = [[at, row["method"], *map(_shown, row["ratios"].values())] for at, row in zip(bits, rows)]
    return [["Bits", "Method", *rows[0]["ratios"]], *texts]


def _names(groups: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(name for curves in groups.values() for name in curves))


def _rows(groups: Mapping[str, Any], bits: float, ranks: int) -> Iterator[list[str]]:
    for name in _names(groups):
        found = [at_bits(curves.get(name, ()), bits, ranks) for curves in groups.values()]
        if any(error is not None for error in found):
            yield [f"{bits:g}", name, *map(_shown, found)]


def _shown(error: float | None) -> str:
    return "-" if error is None else f"{error:.4g}"


def _single_rate(groups: Mapping[str, Any], ranks: int) -> Iterator[list[str]]:
    for name in _names(groups):
        if all(len(curves.get(name, [])) == 1 for curves in groups.values()):
            points = [curves[name][0] for curves in groups.values()]
            yield ["its own", name, *(f"{_shown(p['errors'][str(ranks)])} ({p['bits']:.3f})" for p in points)]


def _biases(groups: Mapping[str, Any]) -> Iterator[list[str]]:
    for name in (name for name in _names(groups) if name not in LIMITS):
        shares = [max(point["bias share"] for point in curves[name]) for curves in groups.values()]
        yield [name, *(f"{max(share, 0):.3f}" for share in shares)]


def write(out: str | os.PathLike[str], messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write frontier.json, frontier.md and frontier.svg into a folder, and return what is in the first."""
    results = {
        "thinwire": thinwire.__version__,
        "messages": list(messages),
        "groups": average(messages),
        "ratios": ratios(messages),
    }
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "frontier.json", results)
    (folder / "frontier.md").write_text(markdown(results), encoding="utf-8")
    (folder / "frontier.svg").write_bytes(svg(error_against_bits(results, LIMITS)))
    return results
