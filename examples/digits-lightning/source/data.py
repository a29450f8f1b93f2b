"""Reads one split of the channel `prepare.py` writes."""

from pathlib import Path

import numpy as np
import torch


def load_split(channel: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (images, labels) of the split `train`, `validation` or `test`."""
    with np.load(channel / f"{split}.npz") as arrays:
        return torch.from_numpy(arrays["images"]).float(), torch.from_numpy(arrays["labels"]).long()
