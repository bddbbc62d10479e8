"""Optimizers by name, each with the options that suit the lab's models."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

__all__ = ["RECIPES", "Recipe"]

_SECOND_BETA = 0.99  # AdamW's average of squares, for runs of some hundred steps


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """An optimizer and its options.

    Args:
        optimizer: one of RECIPES.
        lr: the highest learning rate.
        weight_decay: SGD adds it times the weight to the gradient; AdamW shrinks the weight by lr times it.
        momentum: of SGD; AdamW's first beta.
        warmup: steps in which the rate rises linearly to its schedule.
    """

    optimizer: str
    lr: float
    weight_decay: float
    momentum: float = 0.9
    warmup: int = 1

    def build(self, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        if self.optimizer == "adamw":
            betas = self.momentum, _SECOND_BETA
            return torch.optim.AdamW(parameters, lr=self.lr, betas=betas, weight_decay=self.weight_decay)
        return torch.optim.SGD(parameters, lr=self.lr, momentum=self.momentum, weight_decay=self.weight_decay)


RECIPES = {
    recipe.optimizer: recipe
    for recipe in (
        Recipe(optimizer="sgd", lr=0.1, weight_decay=1e-4),
        Recipe(optimizer="adamw", lr=5e-3, weight_decay=0.1, warmup=50),
    )
}
