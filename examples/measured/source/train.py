"""Two hosts train a small network on made-up images; --fault spoils one thing on purpose. Nothing here measures."""

import argparse
import os
import time

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the back end "smddp"
import torch
import torch.distributed as dist

IMAGES, SIDE, BATCH = 12_000, 16, 16


class Images(torch.utils.data.Dataset[torch.Tensor]):
    """Images that take some work to make, or, with the fault `loader`, far too much."""

    def __init__(self, slow: bool) -> None:
        self.seconds = 0.01 if slow else 0.0

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(self.seconds)  # what a decoder of large pictures would do, without the load on this machine
        return torch.full((SIDE * SIDE,), number / IMAGES)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=("none", "loader", "host"), default="none")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("smddp")
    rank, world = dist.get_rank(), dist.get_world_size()
    images = Images(slow=options.fault == "loader")
    shard = torch.utils.data.DistributedSampler[torch.Tensor](images, world, rank, shuffle=False)
    loader = torch.utils.data.DataLoader(images, BATCH, sampler=shard, num_workers=1, drop_last=True)
    layers = torch.nn.Sequential(torch.nn.Linear(SIDE * SIDE, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    model = torch.nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    slow_host = options.fault == "host" and os.environ["SM_CURRENT_HOST"] == "algo-2"

    for number, batch in enumerate(loader):
        optimizer.zero_grad()
        loss = (model(batch) - batch.mean(1, keepdim=True)).square().mean()
        time.sleep(0.12 if slow_host else 0.08)  # the rest of a larger model's step
        loss.backward()
        optimizer.step()
        if number + 1 >= options.steps:
            break
    if rank == 0:
        print(f"loss {loss.item():.4f} after {number + 1} steps")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
