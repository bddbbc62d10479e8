"""What a handle keeps between steps, as plain tensors and numbers, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from thinwire.errors import StateError

__all__ = ["fitting", "mismatches", "own_key", "pack"]

_FORMAT = 1


def own_key(rank: int) -> str:
    """Residuals differ between ranks; so do their keys, since a distributed checkpoint writes equal keys once."""
    return f"residuals of rank {rank}"


def pack(
    *,
    step: int,
    seed: int,
    loss_scale: float,
    rank: int,
    world_size: int,
    parameters: Mapping[str, str],
    residuals: Mapping[str, Tensor],
) -> dict[str, Any]:
    """Make a state.

    Args:
        step: synchronized backward passes so far.
        loss_scale: under which the residuals were kept.
        parameters: name -> shape, dtype and scheme, in words.
        residuals: name -> 1-D tensor.
    """
    return {
        "format": _FORMAT,
        "step": step,
        "seed": seed,
        "loss_scale": loss_scale,
        "world_size": world_size,
        "parameters": dict(parameters),
        own_key(rank): dict(residuals),
    }


def mismatches(state: Mapping[str, Any], here: Mapping[str, Any], rank: int) -> list[str]:
    """What keeps a state from being resumed exactly, and what is lost by it, in words.

    Args:
        here: the state that this handle would give.

    Raises:
        StateError: it is not a state, or of another format.
    """
    if state.get("format") != _FORMAT or not here.keys() - {own_key(rank)} <= state.keys():
        raise StateError(f"this is not a state of a thinwire handle of format {_FORMAT}: its keys are {list(state)}")
    found = []
    if state["world_size"] != here["world_size"]:
        found.append(f"it is of {state['world_size']} ranks, here are {here['world_size']}: residuals are dropped")
    elif own_key(rank) not in state:
        found.append(f"it is not of rank {rank}: residuals are dropped")
    if state["seed"] != here["seed"]:
        found.append(f"its seed is {state['seed']}, here it is {here['seed']}, which stays")
    for name in {**here["parameters"], **state["parameters"]}:
        there, mine = state["parameters"].get(name, "absent"), here["parameters"].get(name, "absent")
        if there != mine:
            found.append(f"parameter {name} is {there} there and {mine} here")
    kept, wanted = state.get(own_key(rank), {}), here[own_key(rank)]
    found += [f"the residual of {name} has no place here: it is dropped" for name in kept if name not in wanted]
    found += [f"it has no residual of {name}: it begins at zero" for name in wanted if kept and name not in kept]
    return found


def fitting(state: Mapping[str, Any], here: Mapping[str, Any], rank: int) -> dict[str, Tensor]:
    """The residuals of a state that can be used: of this rank in a group of the same size, of the same count."""
    if state["world_size"] != here["world_size"]:
        return {}
    wanted = here[own_key(rank)]
    return {
        name: tensor.to(torch.float32)
        for name, tensor in state.get(own_key(rank), {}).items()
        if name in wanted and tensor.shape == wanted[name].shape
    }
