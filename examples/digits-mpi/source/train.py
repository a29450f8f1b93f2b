"""Train a digit classifier with MPI alone: mpi4py averages the gradients, torch.distributed is not used.

For code that has spoken MPI all along. `mpirun -np 4 python train.py --train FOLDER` does the same without a job.
"""

import argparse
import json
import os
from pathlib import Path

import numpy as np
import torch
from mpi4py import MPI
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

WORLD = MPI.COMM_WORLD


def main() -> None:
    options = parse_options()
    rank, size = WORLD.Get_rank(), WORLD.Get_size()
    hosts = sorted(set(WORLD.allgather(MPI.Get_processor_name())))
    if rank == 0:
        print(f"{size} ranks on {' '.join(hosts)}, NCCL_DEBUG={os.environ.get('NCCL_DEBUG')}", flush=True)
    torch.set_num_threads(1)  # the ranks of a host share its cores
    torch.manual_seed(options.seed)

    model = network()
    broadcast(model)
    optimizer = torch.optim.SGD(model.parameters(), options.learning_rate, momentum=0.9)
    training = load_split(options.train, "train")
    sampler = DistributedSampler(training, num_replicas=size, rank=rank, seed=options.seed)
    loader = DataLoader(training, options.batch_size, sampler=sampler)
    for epoch in range(options.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            average_gradients(model)
            optimizer.step()
        mean = WORLD.allreduce(loss.item()) / size
        if rank == 0:
            print(f"epoch {epoch + 1} loss {mean:.4f}", flush=True)

    images, labels = (part[rank::size] for part in load_split(options.train, "test").tensors)  # a share for each rank
    with torch.no_grad():
        right = int((model(images).argmax(dim=1) == labels).sum())
    accuracy = WORLD.allreduce(right) / WORLD.allreduce(len(labels))
    if rank == 0:
        print(f"test_accuracy {accuracy:.4f}", flush=True)
        torch.save(model.state_dict(), options.model_dir / "model.pt")
        metrics = {"test_accuracy": accuracy, "world_size": size, "hosts": hosts}
        (options.model_dir / "metrics.json").write_text(json.dumps(metrics) + "\n")


def broadcast(model: nn.Module) -> None:
    """Let every rank begin with the weights of rank 0."""
    weights = parameters_to_vector(model.parameters()).detach()
    WORLD.Bcast(weights.numpy(), root=0)
    vector_to_parameters(weights, model.parameters())


def average_gradients(model: nn.Module) -> None:
    """Replace the gradients by their mean over all ranks: all in one vector, so one message a step."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = parameters_to_vector(gradients)
    WORLD.Allreduce(MPI.IN_PLACE, flat.numpy())
    flat /= WORLD.Get_size()
    for gradient, mean in zip(gradients, flat.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(mean.view_as(gradient))


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def load_split(channel: Path, split: str) -> TensorDataset:
    with np.load(channel / f"{split}.npz") as arrays:
        images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    return TensorDataset(images.flatten(1) / 16.0, labels.long())


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch_size", type=int, default=32, help="images a rank takes in one step")
    parser.add_argument("--learning_rate", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "channels/train"))
    parser.add_argument("--model_dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "."))
    return parser.parse_args()


if __name__ == "__main__":
    main()
