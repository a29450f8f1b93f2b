"""Train a digit classifier on capacity that may be taken away: save after every epoch, and go on from what was saved.

The platform brings back what was in the checkpoint folder, on every host, before it starts the script again.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the back end "smddp"
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    options = parse_options()
    notices: list[int] = []  # SIGTERM is the platform's notice: two minutes from then the host is gone
    signal.signal(signal.SIGTERM, lambda number, _frame: notices.append(number))
    dist.init_process_group("smddp")
    rank = dist.get_rank()
    torch.set_num_threads(1)  # the ranks of a host share its cores
    torch.manual_seed(0)

    model = DistributedDataParallel(network())
    training = load_split(options.train, "train")
    sampler = DistributedSampler(training)
    loader = DataLoader(training, options.batch_size, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), options.learning_rate, momentum=0.9)
    steps = options.epochs * len(loader)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, options.learning_rate, total_steps=steps)
    # All that the next epoch depends on, but for the order of the data: `set_epoch` makes that from seed and epoch.
    state = {"model": model.module, "optimizer": optimizer, "schedule": schedule}
    saved = options.checkpoints / "last.pt"
    first = load(saved, state) if saved.exists() else 0
    say(f"beginning with epoch {first + 1} of {options.epochs}")

    for epoch in range(first, options.epochs):
        began = time.monotonic()
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        say(f"epoch {epoch + 1} loss {loss.item():.4f}")
        if rank == 0:
            save(saved, state, epoch + 1)
        time.sleep(max(0.0, options.seconds_per_epoch - (time.monotonic() - began)))
        stop = torch.tensor(len(notices))
        dist.all_reduce(stop, dist.ReduceOp.MAX)  # ranks get the notice at different moments, and must stop together
        if stop and epoch + 1 < options.epochs:
            say(f"told to stop: saved after epoch {epoch + 1}")
            break
    else:
        if rank == 0:
            finish(model.module, options, {"world_size": dist.get_world_size(), "began_with_epoch": first + 1})
    dist.destroy_process_group()


def save(path: Path, state: dict[str, Any], epochs: int) -> None:
    """Write beside, then rename: whenever the host goes, the file of this name is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_suffix(".tmp")
    torch.save({"epochs": epochs} | {name: part.state_dict() for name, part in state.items()}, draft)
    draft.rename(path)


def load(path: Path, state: dict[str, Any]) -> int:
    """Bring everything back to where it was, and return how many epochs have been done."""
    found = torch.load(path, weights_only=True)
    for name, part in state.items():
        part.load_state_dict(found[name])
    return int(found["epochs"])


@torch.no_grad()
def finish(model: nn.Module, options: argparse.Namespace, metrics: dict[str, Any]) -> None:
    images, labels = load_split(options.train, "test").tensors
    accuracy = float((model(images).argmax(dim=1) == labels).double().mean())
    say(f"test_accuracy {accuracy:.4f}")
    torch.save(model.state_dict(), options.model_dir / "model.pt")
    (options.model_dir / "metrics.json").write_text(json.dumps({"test_accuracy": accuracy} | metrics) + "\n")


def say(line: str) -> None:
    if dist.get_rank() == 0:
        print(line, flush=True)


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def load_split(channel: Path, split: str) -> TensorDataset:
    with np.load(channel / f"{split}.npz") as arrays:
        images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    return TensorDataset(images.flatten(1) / 16.0, labels.long())


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seconds_per_epoch", type=float, default=0.0, help="at least, so that it can be interrupted")
    parser.add_argument("--batch_size", type=int, default=64, help="images a rank takes in one step")
    parser.add_argument("--learning_rate", type=float, default=0.4)
    parser.add_argument("--checkpoints", type=Path, default="/opt/ml/checkpoints")
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "channels/train"))
    parser.add_argument("--model_dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "."))
    return parser.parse_args()


if __name__ == "__main__":
    main()
