"""Models whose training is compared: a chain on real digits, and one of everything that a chain is not."""

from __future__ import annotations

import functools
from typing import Any

import torch
from numerics import Batch, Case
from torch import nn
from torch.nn import functional

TOKENS = 40


@functools.lru_cache(maxsize=1)
def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """scikit-learn's handwritten digits: images [1797, 1, 8, 8] from 0 to 1, and their classes."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = torch.randperm(len(bunch.target), generator=torch.Generator().manual_seed(0))
    images = torch.tensor(bunch.images, dtype=torch.float32).unsqueeze(1) / 16
    return images[order], torch.tensor(bunch.target)[order]


def build_digits_cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *[nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.Flatten()],
        *[nn.Linear(256, 32), nn.Tanh(), nn.Linear(32, 10)],
    )


def digits_batch(step: int) -> Batch:
    images, classes = digits()
    which = slice(32 * step, 32 * step + 32)
    return {"input": images[which], "classes": classes[which]}


class Classified(nn.Module):
    """A chain with its classes beside it: they reach the loss and not the chain."""

    def __init__(self) -> None:
        super().__init__()
        self.chain = build_digits_cnn()

    def forward(self, input: torch.Tensor, classes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:  # noqa: A002
        return self.chain(input), classes


def classes_loss(output: Any, _batch: Batch) -> torch.Tensor:
    return functional.cross_entropy(*output)


DIGITS = Case(Classified, digits_batch, classes_loss, lr=0.2)


class Mixed(nn.Module):
    """A module whose inner module lies elsewhere; takes and returns more than tensors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.third = nn.Linear(width, width)

    def forward(self, x: torch.Tensor, skip: dict[str, torch.Tensor], scale: float = 1.0) -> dict[str, Any]:
        hidden = self.second(functional.gelu(self.first(x))) * scale + skip["residual"]
        return {"hidden": self.third(hidden), "more": (hidden.square().mean(), "name", hidden.argmax(-1))}


class Tangled(nn.Module):
    """Tied weights, a module used twice, experts that the data choose, and crossing placements (statements 24, 26)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.entry = nn.Linear(width, width)
        self.mixed = Mixed(width)
        self.twice = nn.Linear(width, width)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, TOKENS, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.embedding(tokens)
        entry = self.entry(x)
        mixed = self.mixed(entry, skip={"residual": x}, scale=0.5)
        hidden = self.again(mixed["hidden"]) + entry
        chosen = int(tokens.sum()) % 4
        for offset in range(1 + chosen % 2):
            hidden = hidden + self.experts[(chosen + offset) % 4](hidden)
        return {"logits": self.head(self.norm(hidden)), "extra": mixed["more"][0]}

    def again(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.twice(functional.relu(self.twice(hidden)))  # type: ignore[no-any-return]


class TangledOnce(Tangled):
    """The same, but that no module is used twice in a micro-batch."""

    def again(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.twice(hidden)  # type: ignore[no-any-return]


def build_tangled() -> nn.Module:
    torch.manual_seed(0)
    return Tangled()


def build_tangled_once() -> nn.Module:
    torch.manual_seed(0)
    return TangledOnce()


def tokens_batch(step: int) -> Batch:
    generator = torch.Generator().manual_seed(step)
    return {"tokens": torch.randint(0, TOKENS, (16, 7), generator=generator)}


def next_token_loss(output: Any, batch: Batch) -> torch.Tensor:
    logits, targets = output["logits"][:, :-1], batch["tokens"][:, 1:]
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten()) + 0.01 * output["extra"]  # type: ignore[no-any-return]


CROSSING = {"mixed": 1, "mixed.second": 0, "twice": 1, "experts.1": 1, "experts.2": 1, "norm": 1}
TANGLED = Case(build_tangled, tokens_batch, next_token_loss, CROSSING)
TANGLED_ONCE = Case(build_tangled_once, tokens_batch, next_token_loss, CROSSING)
