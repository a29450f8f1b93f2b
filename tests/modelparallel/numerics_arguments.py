"""A model whose modules take tensors between ranks that are more than memory in order, and change them in place."""

from __future__ import annotations

from typing import Any

import torch
from numerics import Case
from torch import nn
from torch.nn import functional


class Changing(nn.Module):
    """Begins with an in-place activation, as the blocks of many published convolutional models do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.LeakyReLU(0.2, inplace=True), nn.Linear(4, 4))

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> tuple[torch.Tensor, ...]:
        mask[0] = 0
        return self.layers(x).chunk(2, dim=-1)


class Complex(nn.Module):
    """Takes tensors that are the conjugate, or the negative, of what their memory holds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, conjugate: torch.Tensor, negative: torch.Tensor, adjacent: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(adjacent, self.linear((conjugate * 2j).real + negative))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 2)
        self.changing, self.complex = Changing(), Complex()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, mask = self.first(x), torch.ones(4, 1)
        left, right = self.changing(h, mask)
        both = torch.cat([left, right], 1) + h * mask  # of h and mask what the module has made of them
        functional.relu(both, inplace=True)
        z = torch.fft.fft(both)
        y = self.complex(z.conj(), z.conj().imag, torch.eye(4).to_sparse())
        y += 1
        return self.last.forward(y)


def build() -> nn.Module:
    torch.manual_seed(3)
    return Net()


def batch(number: int) -> dict[str, torch.Tensor]:
    return {"x": torch.randn(8, 4, generator=torch.Generator().manual_seed(number))}


def loss(output: torch.Tensor, _batch: Any) -> torch.Tensor:
    return output.pow(2).mean()


ARGUMENTS = Case(build, batch, loss, {"changing": 1, "complex": 1, "last": 1}, steps=5, microbatches=2)
