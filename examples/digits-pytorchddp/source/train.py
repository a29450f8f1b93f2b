"""Train a digit classifier with PyTorch's own DDP, on NCCL where there are GPUs and on gloo where there are none.

Nothing here knows where it runs: `torchrun --nproc-per-node 2 train.py --train FOLDER` does the same on a laptop.
"""

import argparse
import contextlib
import json
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

Batches = DataLoader[tuple[torch.Tensor, ...]]


def main() -> None:
    options = parse_options()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(1)  # the ranks of a host share its cores
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()

    torch.manual_seed(0)
    model = DistributedDataParallel(network().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), options.learning_rate)
    training = load_split(options.train, "train")
    sampler = DistributedSampler(training)
    loader = DataLoader(training, options.batch_size, sampler=sampler)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, loader, optimizer, device, options.accumulate)
        if rank == 0:
            print(f"epoch {epoch + 1} train_loss {loss:.4f}", flush=True)

    if rank == 0:
        accuracy = measure(model.module, load_split(options.train, "test"), device)
        print(f"test_accuracy {accuracy:.4f}", flush=True)
        torch.save(model.module.cpu().state_dict(), options.model_dir / "model.pt")
        metrics = {"test_accuracy": accuracy, "world_size": world_size, "backend": dist.get_backend()}
        (options.model_dir / "metrics.json").write_text(json.dumps(metrics) + "\n")
    dist.destroy_process_group()


def train_epoch(
    model: DistributedDataParallel,
    loader: Batches,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    accumulate: int,
) -> float:
    """Step once in `accumulate` batches: gradients add up meanwhile, and ranks exchange only the sum."""
    losses = []
    for number, (images, labels) in enumerate(loader, start=1):
        steps = number % accumulate == 0 or number == len(loader)
        with contextlib.nullcontext() if steps else model.no_sync():
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            (loss / accumulate).backward()
        losses.append(loss.detach())
        if steps:
            optimizer.step()
            optimizer.zero_grad()
    mean = torch.stack(losses).mean()
    dist.all_reduce(mean)
    return mean.item() / dist.get_world_size()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))


def load_split(channel: Path, split: str) -> TensorDataset:
    with np.load(channel / f"{split}.npz") as arrays:
        images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    return TensorDataset(images.flatten(1) / 16.0, labels.long())


@torch.no_grad()
def measure(model: nn.Module, dataset: TensorDataset, device: torch.device) -> float:
    images, labels = dataset.tensors
    return float((model(images.to(device)).argmax(dim=1).cpu() == labels).double().mean())


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=16, help="images a rank takes at once")
    parser.add_argument("--accumulate", type=int, default=2, help="batches before a step")
    parser.add_argument("--learning_rate", type=float, default=0.02)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "channels/train"))
    parser.add_argument("--model_dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "."))
    return parser.parse_args()


if __name__ == "__main__":
    main()
