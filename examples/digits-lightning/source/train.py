"""Train a digit classifier with Lightning on every rank of every host, over the `smddp` back end.

Moving a Lightning script to `smddp` takes the import and the strategy below; the rest is as anywhere. Whatever
launched this process has set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
"""

import argparse
import json
import logging
import os
import warnings
from pathlib import Path

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the back end "smddp"
import torch
from data import load_split
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.plugins.environments import LightningEnvironment  # type: ignore[attr-defined]
from lightning.pytorch.strategies import DDPStrategy
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from model import DigitsNet, accuracy
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    options = parse_options()
    quieten()
    seed_everything(options.seed, verbose=False)
    rank, world_size, local_world_size = (int(os.environ[n]) for n in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    on_gpu = torch.cuda.is_available()
    if not on_gpu:
        torch.set_num_threads(1)  # the ranks of a host share its cores, and this network fills none of them

    env = LightningEnvironment()
    env.world_size = lambda: int(os.environ["WORLD_SIZE"])  # type: ignore[method-assign]
    env.global_rank = lambda: int(os.environ["RANK"])  # type: ignore[method-assign]
    strategy = DDPStrategy(
        cluster_environment=env,
        process_group_backend="smddp",
        accelerator="gpu" if on_gpu else "cpu",  # type: ignore[arg-type] # Lightning takes the name too
    )
    trainer = Trainer(
        strategy=strategy,
        devices=local_world_size,
        num_nodes=world_size // local_world_size,
        max_epochs=options.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    # Lightning gives each loader a DistributedSampler: every rank sees its own shard.
    training = DataLoader(TensorDataset(*load_split(options.train, "train")), options.batch_size, shuffle=True)
    validation = DataLoader(TensorDataset(*load_split(options.train, "validation")), options.batch_size)

    module = DigitsModule(options.learning_rate, world_size)
    trainer.fit(module, training, validation)
    if rank == 0:
        save(module.network.cpu(), options, world_size)
    torch.distributed.destroy_process_group()


class DigitsModule(LightningModule):
    """What to compute on a batch, and how to step."""

    def __init__(self, learning_rate: float, world_size: int) -> None:
        super().__init__()
        self.network = DigitsNet()
        self.learning_rate, self.world_size = learning_rate, world_size

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> torch.Tensor:
        images, labels = batch
        loss = cross_entropy(self.network(images), labels)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch: tuple[torch.Tensor, torch.Tensor], _index: int) -> None:
        images, labels = batch
        right = (self.network(images).argmax(dim=1) == labels).float().mean()
        self.log("val_acc", right, sync_dist=True, batch_size=len(labels))

    def on_train_epoch_end(self) -> None:
        if self.trainer.is_global_zero:
            measured = self.trainer.callback_metrics
            line = f"train_loss {measured['train_loss']:.4f} val_acc {measured['val_acc']:.4f}"
            say(f"epoch {self.current_epoch + 1} {line}")

    def configure_optimizers(self) -> OptimizerLRScheduler:
        """Linear scaling: k ranks make a batch k times as large; k times the learning rate, reached gradually."""
        k, steps = self.world_size, int(self.trainer.estimated_stepping_batches)
        warm_up = max(1, steps // 5)
        optimizer = torch.optim.SGD(self.parameters(), lr=k * self.learning_rate, momentum=0.9, weight_decay=1e-4)
        phases = [LinearLR(optimizer, 1 / k, total_iters=warm_up), CosineAnnealingLR(optimizer, steps - warm_up)]
        schedule = SequentialLR(optimizer, phases, milestones=[warm_up])
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def save(network: DigitsNet, options: argparse.Namespace, world_size: int) -> None:
    """Measure the trained network on the images it never saw, and leave it where the platform collects it."""
    test_accuracy = accuracy(network, *load_split(options.train, "test"))
    say(f"test_accuracy {test_accuracy:.4f}")
    options.model_dir.mkdir(parents=True, exist_ok=True)
    torch.save(network.state_dict(), options.model_dir / "model.pt")
    metrics = {"test_accuracy": test_accuracy, "world_size": world_size, "epochs": options.epochs}
    (options.model_dir / "metrics.json").write_text(json.dumps(metrics) + "\n")


def say(line: str) -> None:
    """Print a line in one write: mpirun tags every write, and unbuffered Python would write the newline by itself."""
    print(f"{line}\n", end="", flush=True)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch_size", type=int, default=16, help="images a rank takes in one step")
    parser.add_argument("--learning_rate", type=float, default=0.02, help="for one rank")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", type=Path, default=os.environ.get("SM_CHANNEL_TRAIN", "channels/train"))
    parser.add_argument("--model_dir", type=Path, default=os.environ.get("SM_MODEL_DIR", "model"))
    return parser.parse_args()


def quieten() -> None:
    """Keep the log to what this script prints: Lightning's tips and its advice on loaders say nothing here."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")


if __name__ == "__main__":
    main()
