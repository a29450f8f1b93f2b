"""The network, as a plain module: `train.py` trains it, `verify.py` loads it without Lightning."""

import torch
from torch import nn


class DigitsNet(nn.Module):
    """A fully connected network for 8 x 8 grey images with values from 0 to 16."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(64, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.layers(images / 16.0)
        return logits


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of images the model names rightly."""
    model.eval()
    return float((model(images).argmax(dim=1) == labels).double().mean())
