"""Plain transformer modules that do what the documentation says its distributed ones do; written from its text.

Dropout is left out: the oracles run with probability 0. Names of parts, and so of parameters, are the documented ones.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, hidden: int, heads: int, size: int, *, cross: bool = False, pre: bool, post: bool, causal: bool):
        super().__init__()
        self.heads, self.size, self.cross, self.causal = heads, size, cross, causal
        self.query, self.key, self.value = (nn.Linear(hidden, heads * size) for _ in range(3))
        self.dense = nn.Linear(heads * size, hidden)
        self.pre_layernorm = nn.LayerNorm(hidden) if pre else None
        self.layernorm = nn.LayerNorm(hidden) if post else None

    def forward(self, inputs: Any) -> Tensor:
        hidden, source, mask = inputs if self.cross else (inputs[0], None, inputs[1])
        normal = hidden if self.pre_layernorm is None else self.pre_layernorm(hidden)
        source = normal if source is None else source
        query, key, value = (
            self._heads(self.query(normal)),
            self._heads(self.key(source)),
            self._heads(self.value(source)),
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(self.size)
        if self.causal and not self.cross:
            length = scores.shape[-1]
            later = torch.ones(length, length, dtype=torch.bool).triu(1)
            scores = scores.masked_fill(later, torch.finfo(scores.dtype).min)
        context = torch.softmax(scores + (0 if mask is None else mask), -1) @ value
        found = self.dense(context.permute(0, 2, 1, 3).flatten(2))
        return found if self.layernorm is None else self.layernorm(found + hidden)

    def _heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.heads, self.size).permute(0, 2, 1, 3)


class Output(nn.Module):
    def __init__(self, hidden: int, inner: int, *, activation: str, pre: bool, post: bool):
        super().__init__()
        self.activation = activation
        self.dense1, self.dense2 = nn.Linear(hidden, inner), nn.Linear(inner, hidden)
        self.pre_layernorm = nn.LayerNorm(hidden) if pre else None
        self.layernorm = nn.LayerNorm(hidden) if post else None

    def forward(self, hidden: Tensor) -> Tensor:
        found = self.dense1(hidden if self.pre_layernorm is None else self.pre_layernorm(hidden))
        found = self.dense2(F.gelu(found) if self.activation == "gelu" else F.relu(found))
        return found if self.layernorm is None else self.layernorm(hidden + found)


class Layer(nn.Module):
    def __init__(self, sizes: dict[str, int], *, activation: str, cross: bool, pre: bool, post: bool, causal: bool):
        super().__init__()
        hidden, heads, size = sizes["hidden_size"], sizes["num_attention_heads"], sizes["attention_head_size"]
        norms = {"pre": pre, "post": post}
        self.attention = Attention(hidden, heads, size, causal=causal, **norms)
        self.output = Output(hidden, sizes["intermediate_size"], activation=activation, **norms)
        self.cross_attention = Attention(hidden, heads, size, cross=True, causal=causal, **norms) if cross else None

    def forward(self, inputs: Any) -> Any:
        if self.cross_attention is None:
            hidden, mask = inputs
            return self.output(self.attention((hidden, mask))), mask
        hidden, states, mask, cross_mask = inputs
        hidden = self.cross_attention((self.attention((hidden, mask)), states, cross_mask))
        return self.output(hidden), states, mask, cross_mask


class Transformer(nn.Module):
    def __init__(self, layers: int, sizes: dict[str, int], **options: Any) -> None:
        super().__init__()
        self.seq_layers = nn.Sequential(*[Layer(sizes, **options) for _ in range(layers)])

    def forward(self, inputs: Any) -> Any:
        return self.seq_layers(inputs)


class LMHead(nn.Module):
    """Embeddings are added, then the layers, then a head with the weights of the word embedding."""

    def __init__(self, vocabulary: int, positions: int, types: int, layers: int, sizes: dict[str, int], **options: Any):
        super().__init__()
        hidden = sizes["hidden_size"]
        self.word_embedding = nn.Embedding(vocabulary, hidden)
        self.position_embedding = nn.Embedding(positions, hidden)
        self.token_type_embedding = nn.Embedding(types, hidden) if types else None
        self.transformer = Transformer(layers, sizes, **options)
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)
        self.lm_head.weight = self.word_embedding.weight

    def forward(self, inputs: Any) -> Any:
        ids, mask, types, _, *cross, labels = inputs
        hidden = self.word_embedding(ids) + self.position_embedding(torch.arange(ids.shape[1]))
        if self.token_type_embedding is not None:
            hidden = hidden + self.token_type_embedding(types)
        masks = [one[:, None, None, :] * torch.finfo(hidden.dtype).min for one in (mask, *cross[1:])]
        hidden = self.transformer((hidden, *cross[:1], *masks))[0]
        logits = self.lm_head(hidden)
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        return loss, logits
