"""Train a digit classifier with native DDP on the `smddp` back end.

Moving a DDP script to `smddp` takes the import and the name of the back end; the rest is as anywhere. Whatever launched
this process has set RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.
"""

import argparse
import json
import os
from pathlib import Path

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
    dist.init_process_group("smddp")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(1)  # the ranks of a host share its cores, and this network fills none of them

    model = DistributedDataParallel(network().to(device))
    dataset = TensorDataset(*load_split(options.train, "train"))
    sampler = DistributedSampler(dataset, seed=options.seed)  # every rank sees its own shard
    loader = DataLoader(dataset, options.batch_size, sampler=sampler)
    # Linear scaling: k ranks make a batch k times as large. The schedule warms up to k times the rate, then decays.
    peak = world_size * options.learning_rate
    optimizer = torch.optim.SGD(model.parameters(), peak, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=options.epochs * len(loader))
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)  # another order, and so another shard, in every epoch
        loss_sum = torch.zeros((), device=device)
        for images, labels in loader:
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # averages the gradients of all ranks, while it computes the next ones
            optimizer.step()
            schedule.step()
            loss_sum += loss.detach()
        dist.all_reduce(loss_sum)
        if rank == 0:
            print(f"epoch {epoch + 1} train_loss {loss_sum.item() / (world_size * len(loader)):.4f}", flush=True)

    accuracy = test_accuracy(model.module, options.train, device)
    if rank == 0:
        print(f"test_accuracy {accuracy:.4f}", flush=True)
        torch.save(model.module.cpu().state_dict(), options.model_dir / "model.pt")
        metrics = {"test_accuracy": accuracy, "world_size": world_size, "backend": dist.get_backend()}
        (options.model_dir / "metrics.json").write_text(json.dumps(metrics) + "\n")
    dist.destroy_process_group()


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


def load_split(channel: Path, split: str) -> tuple[torch.Tensor, torch.Tensor]:
    with np.load(channel / f"{split}.npz") as arrays:
        return torch.from_numpy(arrays["images"]).flatten(1) / 16.0, torch.from_numpy(arrays["labels"]).long()


@torch.no_grad()
def test_accuracy(model: nn.Module, channel: Path, device: torch.device) -> float:
    """Measure on all ranks, each its share of the images. A DistributedSampler would count some of them twice."""
    images, labels = (part[dist.get_rank() :: dist.get_world_size()] for part in load_split(channel, "test"))
    right = (model(images.to(device)).argmax(dim=1).cpu() == labels).sum()
    counts = torch.tensor([int(right), len(labels)], device=device)
    dist.all_reduce(counts)
    return int(counts[0]) / int(counts[1])


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch_size", type=int, default=32, help="images a rank takes in one step")
    parser.add_argument("--learning_rate", type=float, default=0.1, help="for one rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "channels/train"))
    parser.add_argument("--model_dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "."))
    return parser.parse_args()


if __name__ == "__main__":
    main()
