"""A training script that knows nothing of measuring: DDP on smddp, by the API that the first argument names.

Reports what its gradients weigh, and the bytes that smddp has counted.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

EPOCHS, BATCHES, BATCH, LOAD_SECONDS = 2, 4, 4, 0.005


class Slow(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return BATCHES * BATCH

    def __getitem__(self, number: int) -> torch.Tensor:
        time.sleep(LOAD_SECONDS)
        return torch.full((64,), float(number))


def replicated(model: nn.Module, api: str) -> nn.Module:
    if api == "legacy":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import smdistributed.dataparallel.torch.distributed as old
            from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel
        old.init_process_group()
        return DistributedDataParallel(model)
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

    dist.init_process_group("smddp")
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1)


def evaluate(model: nn.Module) -> None:
    with torch.no_grad():
        for batch in DataLoader(Slow(), BATCH):
            model(batch)


def main() -> None:
    api, path = sys.argv[1:]
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(64, 2000), nn.ReLU(), nn.Linear(2000, 300))
    model = replicated(plain, api)
    mine: Any = {}
    if api == "by-hand":
        from shoal_entrypoint.steps import steps

        mine = {"loader": steps}
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for epoch in range(EPOCHS):
        for batch in mine.get("loader", iter)(DataLoader(Slow(), BATCH, num_workers=epoch)):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
        evaluate(model)
        if dist.get_rank() == 0:
            torch.save(plain.state_dict(), path)
    weight = sum(p.numel() * p.element_size() for p in plain.parameters())
    print(json.dumps({"gradient_bytes": weight, "entrypoint": "shoal_entrypoint" in sys.modules}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
