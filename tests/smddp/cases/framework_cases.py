"""Lightning, Hugging Face Accelerate and Trainer. Random weights and data: nothing is fetched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from lightning.fabric.plugins.environments.lightning import LightningEnvironment
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from models import net
from registry import Numbers, case, numbers
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
from transformers import Trainer as HuggingFaceTrainer

# Lightning removes them from the environment when a fit is over.
RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def data(rows: int = 96) -> TensorDataset:
    generator = torch.Generator().manual_seed(21)
    inputs = torch.randn(rows, 12, generator=generator)
    return TensorDataset(inputs, inputs[:, :5].tanh())


class Module(LightningModule):
    """Logs a float and a whole number, reduced over the ranks by every way there is."""

    def __init__(self, sharded: bool = False) -> None:
        super().__init__()
        self.net = net(norm=False)
        self.sharded = sharded
        self.logged: list[dict[str, float]] = []

    def configure_model(self) -> None:
        if self.sharded and self.device_mesh is not None:
            for child in (self.net.first, self.net.sometimes, self.net.last):
                fully_shard(child, mesh=self.device_mesh["data_parallel"])
            fully_shard(self.net, mesh=self.device_mesh["data_parallel"])

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True)
        whole = 3 + 4 * self.global_rank
        for how in ("mean", "sum", "max", "min"):
            self.log(f"whole_{how}", whole, sync_dist=True, reduce_fx=how)
            self.log(f"tensor_{how}", torch.tensor(whole), sync_dist=True, reduce_fx=how)
        return loss

    def on_train_epoch_end(self) -> None:
        everyone: Any = self.all_gather(torch.tensor([self.global_rank]))
        assert everyone.flatten().tolist() == list(range(self.trainer.world_size))
        self.logged.append({name: float(value) for name, value in self.trainer.callback_metrics.items()})

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("validation", nn.functional.mse_loss(self.net(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def environment() -> LightningEnvironment:
    """The published recipe."""
    env = LightningEnvironment()
    env.world_size = lambda: SIZE  # type: ignore[method-assign]
    env.global_rank = lambda: RANK  # type: ignore[method-assign]
    return env


def fit(strategy: Any, sharded: bool = False) -> Numbers:
    torch.manual_seed(1)
    model = Module(sharded)
    trainer = Trainer(
        accelerator="cpu",
        strategy=strategy,
        devices=dist.get_world_size(),
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=True,
    )
    trainer.fit(model, DataLoader(data(), batch_size=8), DataLoader(data(32), batch_size=8))
    whole = [value.full_tensor() if isinstance(value, DTensor) else value for value in model.parameters()]
    size = dist.get_world_size()
    last = model.logged[-1]
    # Whole numbers must not be rounded on the way.
    assert last["whole_sum"] == last["tensor_sum"] == sum(3 + 4 * rank for rank in range(size)), last
    assert last["whole_max"] == last["tensor_max"] == 3 + 4 * (size - 1)
    assert last["whole_min"] == last["tensor_min"] == 3
    return numbers([whole, model.logged])


@case()
def lightning_ddp() -> Numbers:
    return fit(DDPStrategy(cluster_environment=environment(), process_group_backend=dist.get_backend()))


@case()
def lightning_ddp_with_options() -> Numbers:
    strategy = DDPStrategy(
        cluster_environment=environment(),
        process_group_backend=dist.get_backend(),
        find_unused_parameters=True,
        gradient_as_bucket_view=True,
    )
    return fit(strategy)


@case()
def lightning_fully_sharded() -> Numbers:
    """Lightning's FSDPStrategy wants GPUs; its strategy for FSDP 2 does not."""
    strategy = ModelParallelStrategy(
        data_parallel_size=dist.get_world_size(),
        tensor_parallel_size=1,
        process_group_backend=dist.get_backend(),
    )
    strategy.cluster_environment = environment()
    return fit(strategy, sharded=True)


@case()
def accelerate() -> Numbers:
    """Accelerate takes the group that the script has made."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    assert accelerator.num_processes == dist.get_world_size()
    torch.manual_seed(1)
    model = net(norm=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data(), batch_size=8, shuffle=True))
    losses = []
    for inputs, target in loader:
        with accelerator.accumulate(model):
            loss = nn.functional.mse_loss(model(inputs), target)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()))
    everyone = accelerator.gather_for_metrics(torch.tensor([accelerator.process_index]))
    reduced = accelerator.reduce(torch.tensor([1.0 + accelerator.process_index]), reduction="mean")
    return numbers([losses, everyone, reduced, accelerator.unwrap_model(model).state_dict()])


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Random words; the label depends on the first."""

    def __len__(self) -> int:
        return 48

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.randint(5, 90, (10,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "attention_mask": torch.ones(10, dtype=torch.long), "labels": words[0] % 2}


@case()
def hugging_face_trainer() -> Numbers:
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, num_labels=2
    )
    model = BertForSequenceClassification(config)
    arguments = TrainingArguments(
        output_dir=str(Path(os.environ["SMDDP_CASES_FOLDER"]) / f"{dist.get_backend()}-trainer"),
        use_cpu=True,
        max_steps=5,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        logging_steps=1,
        save_steps=5,
        report_to=[],
        seed=3,
        disable_tqdm=True,
    )
    assert arguments.world_size == dist.get_world_size()
    trainer = HuggingFaceTrainer(model, arguments, train_dataset=Sentences(), eval_dataset=Sentences())
    trained = trainer.train()
    evaluated = trainer.evaluate()
    return numbers([trained.training_loss, evaluated["eval_loss"], model.state_dict()])
