"""A small GPT: what the lab trains on text."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["GPT"]


class _Block(nn.Module):
    """Causal self-attention and two linear layers, each normalised before and added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.attend = nn.Linear(width, 3 * width, bias=False)
        self.project = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width, bias=False)
        self.narrow = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.project(self._attention(self.attend(self.norm1(x))))
        return x + self.narrow(functional.gelu(self.widen(self.norm2(x))))

    def _attention(self, joined: Tensor) -> Tensor:
        """`[n, length, 3 width]` queries, keys and values to `[n, length, width]`."""
        count, length, _ = joined.shape
        query, key, value = joined.view(count, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(count, length, -1)


class GPT(nn.Module):
    """A decoder-only transformer; one matrix embeds characters and reads the last layer out.

    Args:
        vocabulary: number of characters.
        context: most characters at once.
        layers, width, heads: its size.

    References: Radford et al., "Language Models are Unsupervised Multitask Learners" (2019): normalisation before
    each part, and its initial weights. Linear layers have no bias here.
    """

    def __init__(self, vocabulary: int, context: int, *, layers: int = 3, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(_Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                adds = name.endswith(("project.weight", "narrow.weight"))  # 2 a layer add up to the output
                nn.init.normal_(parameter, std=0.02 / (2 * layers) ** 0.5 if adds else 0.02)

    def forward(self, codes: Tensor) -> Tensor:
        """int64 `[n, length <= context]` to logits of each next character, float32 `[n, length, vocabulary]`."""
        x = self.embedding(codes) + self.position(torch.arange(codes.shape[1]))
        return functional.linear(self.norm(self.blocks(x)), self.embedding.weight)
