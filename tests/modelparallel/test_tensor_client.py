"""The published GPT-2 client in small: one context, layers placed by hand and checkpointed, a full checkpoint
translated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from tensor_oracle import start
from torch import Tensor

pytest.importorskip("transformers")


def configuration() -> Any:
    from transformers import GPT2Config

    return GPT2Config(
        vocab_size=19,
        n_positions=8,
        n_embd=16,
        n_layer=4,
        n_head=4,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        use_cache=False,
    )


def client(folder: str, optimize: str) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM, set_seed

    smp = start(
        2, pipeline_parallel_degree=2, microbatches=2, auto_partition=False, default_partition=0, optimize=optimize
    )
    set_seed(7)
    with smp.model_creation(
        tensor_parallelism=True, dtype=torch.float32, fused_softmax=True, fused_bias_gelu=True, attention_in_fp32=True
    ):
        model = AutoModelForCausalLM.from_config(configuration())
    set_seed(7 + smp.tp_rank())
    model = smp.DistributedModel(model, trace_device="gpu", backward_passes_per_step=1)
    layers = model.get_module().transformer.seq_layers
    for index, layer in enumerate(layers.children()):
        smp.set_partition(layer, index // 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    smp.set_activation_checkpointing(layers, strategy="each")
    optimizer = smp.DistributedOptimizer(optimizer)

    @smp.step
    def train_step(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
        loss = model(input_ids=ids, attention_mask=mask, labels=ids)["loss"]
        model.backward(loss)
        return loss

    g = torch.Generator().manual_seed(smp.dp_rank())
    ids = torch.randint(0, 19, (4, 8), generator=g)
    mask = torch.ones_like(ids)
    mask[: smp.dp_rank(), 6:] = 0
    losses = []
    for _ in range(8):
        optimizer.zero_grad(set_to_none=True)
        losses.append(float(train_step(model, ids, mask).reduce_mean().detach()))
        optimizer.step()
    smp.save_checkpoint(folder, tag="full.pt", partial=False, model=model, user_content={"steps": 8})
    smp.barrier()
    with torch.no_grad():
        model.eval()
        evaluated = smp.step(lambda model, ids, mask: model(input_ids=ids, attention_mask=mask, labels=ids)["loss"])
        last = float(evaluated(model, ids, mask).reduce_mean())
    return {"losses": losses, "last": last, "ids": ids, "mask": mask}


@pytest.mark.parametrize("optimize", ["speed", "memory"])
def test_the_published_gpt2_client_trains_and_its_full_checkpoint_is_a_plain_model(
    tmp_path: Path, optimize: str
) -> None:
    """Statements 36 and 37 with placement by hand and checkpointed layers; the translated file loads strictly."""
    from transformers import GPT2LMHeadModel

    ranks = [rank.report for rank in run_ranks(client, 4, str(tmp_path), optimize, limit=200)]
    saved = torch.load(tmp_path / "full.pt", weights_only=False)
    plain = GPT2LMHeadModel(configuration())
    plain.load_state_dict(saved.get("model", saved))
    plain.eval()
    for report in ranks:
        assert report["losses"][-1] < report["losses"][0] - 0.3
        parts = [slice(0, 2), slice(2, 4)]
        losses = [
            plain(input_ids=report["ids"][one], attention_mask=report["mask"][one], labels=report["ids"][one]).loss
            for one in parts
        ]
        assert float(sum(losses) / 2) == pytest.approx(report["last"], abs=1e-4)
