"""A script of transformers' Trainer with GPT-2: trains, evaluates, saves; test_trainer.py runs it on transformers 4.57.

trainer_client.py FOLDER BATCH RESUME: leaves FOLDER/losses.RANK: losses and gradient norms by step, and the evaluation.
"""

from __future__ import annotations

import json
import os
import sys
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

TOKENS = 64


class CpuArguments(TrainingArguments):  # type: ignore[misc]
    """The Trainer knows smp on CUDA only: this takes the place of its two calls that select the device."""

    @cached_property
    def _setup_devices(self) -> torch.device:
        self._n_gpu = 1
        self.distributed_state = None
        return torch.device("cpu")


def rows(count: int, generator: torch.Generator) -> list[dict[str, torch.Tensor]]:
    starts = torch.randint(0, TOKENS, (count,), generator=generator).tolist()
    tokens = [(start + 3 * torch.arange(16)) % TOKENS for start in starts]
    return [{"input_ids": each, "labels": each.clone()} for each in tokens]


def main() -> None:
    folder, batch, resume = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "resume"
    sizes = {"per_device_train_batch_size": batch, "per_device_eval_batch_size": batch, "max_steps": 8, "save_steps": 4}
    rest: dict[str, Any] = {"logging_steps": 1, "learning_rate": 1e-3, "report_to": [], "seed": 3}
    arguments = CpuArguments(output_dir=str(folder), disable_tqdm=True, **sizes, **rest)
    set_seed(0)
    dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    shape = {"vocab_size": TOKENS, "n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, **dropout, use_cache=False))
    generator = torch.Generator().manual_seed(1)
    data = {"train_dataset": rows(96, generator), "eval_dataset": rows(32, generator)}
    trainer = Trainer(model=model, args=arguments, **data)
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4") if resume else None)
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    found = {"losses": [entry["loss"] for entry in steps], "norms": [entry["grad_norm"] for entry in steps]}
    found["evaluation"] = trainer.evaluate()["eval_loss"]
    (folder / f"losses.{os.environ['OMPI_COMM_WORLD_RANK']}").write_text(json.dumps(found))
    trainer.save_model(str(folder / "final"))


if __name__ == "__main__":
    main()
