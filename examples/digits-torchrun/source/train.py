"""Train a digit classifier under torchrun, with the optimizer's state spread over the ranks (ZeRO stage 1).

`record` leaves a rank's error where torchrun finds it.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


@record
def main() -> None:
    options = parse_options()
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)

    model = DistributedDataParallel(network().to(device))
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=options.learning_rate)
    training = load_split(options.train, "train")
    sampler = DistributedSampler(training, seed=options.seed)
    loader = DataLoader(training, options.batch_size, sampler=sampler)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1} loss {loss.item():.4f}", flush=True)

    states = torch.tensor([sum(map(torch.numel, states_of(optimizer)))], device=device)
    share = [torch.zeros_like(states) for _ in range(world_size)]
    dist.all_gather(share, states)
    if rank == 0:
        accuracy = measure(model.module, load_split(options.train, "test"), device)
        print(f"test_accuracy {accuracy:.4f}", flush=True)
        torch.save(model.module.cpu().state_dict(), options.model_dir / "model.pt")
        metrics: dict[str, Any] = {"test_accuracy": accuracy, "world_size": world_size}
        metrics["torchrun"] = dist.is_torchelastic_launched()
        metrics["optimizer_values"] = [int(count) for count in share]
        (options.model_dir / "metrics.json").write_text(json.dumps(metrics) + "\n")
    dist.destroy_process_group()


def states_of(optimizer: ZeroRedundancyOptimizer) -> list[torch.Tensor]:
    """Return what this rank keeps for its share of the weights: AdamW's two averages."""
    kept = optimizer.optim.state.values()
    return [state[name] for state in kept for name in ("exp_avg", "exp_avg_sq")]


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


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
    parser.add_argument("--batch_size", type=int, default=32, help="images a rank takes in one step")
    parser.add_argument("--learning_rate", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "channels/train"))
    parser.add_argument("--model_dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "."))
    return parser.parse_args()


if __name__ == "__main__":
    main()
