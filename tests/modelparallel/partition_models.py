"""Models for the tests of placement: each small, each with one thing that makes placing it hard."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from torch import nn


def chain(sizes: list[int]) -> nn.Sequential:
    """Linear layers in a row, of a width each."""
    return nn.Sequential(*(nn.Linear(one, other) for one, other in itertools.pairwise(sizes)))


class Tied(nn.Module):
    """An embedding whose weight is the last layer's too, blocks between them."""

    def __init__(self, width: int = 8, blocks: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, width)
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(blocks))
        self.head = nn.Linear(width, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return {"logits": self.head(hidden)}


class Borrowing(nn.Module):
    """Reads the weight of a module that it never calls, and calls another with it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.second = nn.Linear(6, 6)
        self.borrowed = nn.Linear(6, 6)
        self.last = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.second(self.first(x))
        return self.last(nn.functional.linear(hidden, self.borrowed.weight))  # type: ignore[no-any-return]


class Routed(nn.Module):
    """Experts of which one runs, a module that is never used, and one that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(5, 5)
        self.late = nn.Linear(5, 5)
        self.again = nn.Linear(5, 5)
        self.experts = nn.ModuleList(nn.Linear(5, 5) for _ in range(3))
        self.noise = nn.Dropout(0.5)
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, str]:
        hidden = self.norm(self.noise(self.again(self.again(x))))
        hidden = self.experts[1](hidden)
        return self.late(hidden), "done"


class RandomTree(nn.Module):
    """A tree of random shape; calls its children in a random order, some of them twice, some with their sibling."""

    def __init__(self, rng: random.Random, depth: int) -> None:
        super().__init__()
        count = rng.randint(1, 4)
        for index in range(count):
            nested = depth > 0 and rng.random() < 0.5
            kinds: list[Any] = [nn.Linear(4, 4), nn.ReLU(), nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())]
            self.add_module(f"m{index}", RandomTree(rng, depth - 1) if nested else rng.choice(kinds))
        if rng.random() < 0.3:
            self.bias = nn.Parameter(torch.zeros(4))
        self.calls = [f"m{rng.randrange(count)}" for _ in range(rng.randint(1, 5))]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.calls:
            x = getattr(self, name)(x)
        return x + self.bias if hasattr(self, "bias") else x


def random_model(seed: int) -> RandomTree:
    """A RandomTree, some of whose linear layers share their weight."""
    rng = random.Random(seed)
    model = RandomTree(rng, depth=3)
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    for module in linear:
        if rng.random() < 0.15:
            module.weight = rng.choice(linear).weight
    return model


TRANSFORMERS = ("GPT2LMHeadModel", "BertForMaskedLM", "T5ForConditionalGeneration", "LlamaForCausalLM")


def transformer(name: str, layers: int = 2) -> nn.Module:
    """A tiny Hugging Face model of this class, without dropout; skips the test where transformers is not installed."""
    transformers = pytest.importorskip("transformers")
    common: dict[str, Any] = {"vocab_size": 40, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    if name == "GPT2LMHeadModel":
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        settings = transformers.GPT2Config(n_embd=16, n_layer=layers, n_head=2, n_positions=20, **dropout, **common)
    elif name == "T5ForConditionalGeneration":
        shape = {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": layers, "num_heads": 2, "dropout_rate": 0.0}
        settings = transformers.T5Config(decoder_start_token_id=0, **shape, **common)
    else:
        shape = {"hidden_size": 16, "num_hidden_layers": layers, "num_attention_heads": 2, "intermediate_size": 16}
        if name == "BertForMaskedLM":
            common.update(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
        settings = (transformers.BertConfig if name == "BertForMaskedLM" else transformers.LlamaConfig)(
            **shape, **common
        )
    return getattr(transformers, name)(settings)  # type: ignore[no-any-return]
