"""The published Lightning recipe, on the back end named by the first argument; reports the weights."""

from __future__ import annotations

import json
import os
import sys
import warnings

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
import torch
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

warnings.filterwarnings("ignore")


class Regression(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def main() -> None:
    env = LightningEnvironment()
    env.world_size = lambda: int(os.environ["WORLD_SIZE"])  # type: ignore[method-assign]
    env.global_rank = lambda: int(os.environ["RANK"])  # type: ignore[method-assign]
    strategy = DDPStrategy(cluster_environment=env, process_group_backend=sys.argv[1])
    torch.manual_seed(3)
    inputs = torch.randn(256, 8)
    # A worker process: it is forked after the library has started its threads.
    loader = DataLoader(TensorDataset(inputs, inputs.sum(1, keepdim=True)), batch_size=16, num_workers=1)
    model = Regression()
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=int(os.environ["WORLD_SIZE"]),
        max_epochs=3,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, loader)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    print(json.dumps({"weights": weights, "backend": torch.distributed.get_backend(), "steps": trainer.global_step}))


if __name__ == "__main__":
    main()
