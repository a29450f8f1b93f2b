"""Train a digit classifier in one process. `train.py` is this script on several ranks: compare the two."""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

BATCH = 40


def build() -> nn.Module:
    hidden = [layer for _ in range(4) for layer in (nn.Linear(256, 256), nn.Tanh())]
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 256), nn.Tanh(), *hidden, nn.Linear(256, 10))


def train_step(model: Any, images: torch.Tensor, labels: torch.Tensor) -> Any:
    loss = cross_entropy(model(images), labels)
    loss.backward()
    return loss


def count_right(model: Any, images: torch.Tensor, labels: torch.Tensor) -> Any:
    return (model(images).argmax(dim=1) == labels).sum()


def batches(channel: Path, split: str) -> DataLoader[Any]:
    with np.load(channel / f"{split}.npz") as arrays:
        images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    return DataLoader(TensorDataset(images / 16.0, labels.long()), BATCH, shuffle=split == "train", drop_last=True)


def main() -> None:
    options = parse_options()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate, momentum=0.9)
    for epoch in range(options.epochs):
        for images, labels in batches(options.train, "train"):
            optimizer.zero_grad()
            loss = train_step(model, images, labels)
            optimizer.step()
        print(f"epoch {epoch + 1} loss {loss.item():.4f}", flush=True)

    test = batches(options.train, "test")
    with torch.no_grad():
        right = sum(count_right(model, images, labels).item() for images, labels in test)
    print(f"test_accuracy {right / (len(test) * BATCH):.4f}", flush=True)
    torch.save(model.state_dict(), f"{options.model_dir}/model.pt")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--learning-rate", "--learning_rate", type=float, default=0.05)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "channels/train"))
    parser.add_argument("--model-dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "."))
    return parser.parse_known_args()[0]  # a launcher may add arguments of its own, such as --mp_parameters


if __name__ == "__main__":
    main()
