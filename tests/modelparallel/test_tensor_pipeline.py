"""Tensor, pipeline and data parallelism together, through smp.step, against one process that sees all samples."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from tensor_oracle import start
from tensor_reference import LMHead
from torch import Tensor, nn

SIZES = {"hidden_size": 16, "num_attention_heads": 4, "attention_head_size": 4, "intermediate_size": 24}
LENGTH, VOCABULARY, MICROBATCHES, PER_RANK = 5, 11, 2, 4


def plain_model() -> nn.Module:
    return LMHead(VOCABULARY, LENGTH, 0, 4, SIZES, activation="gelu", cross=False, causal=True, pre=False, post=True)


def split_model(smp: Any) -> nn.Module:
    model: nn.Module = smp.nn.DistributedTransformerLMHead(
        num_layers=4,
        vocab_size=VOCABULARY,
        num_positions=LENGTH,
        causal_mask_size=LENGTH,
        attention_dropout_prob=0.0,
        hidden_dropout_prob=0.0,
        **SIZES,
    )
    return model


def trained(config: dict[str, Any], manual: bool) -> dict[str, Any]:
    smp = start(2, partitions=2, microbatches=MICROBATCHES, auto_partition=not manual, default_partition=0, **config)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(5)
    plain = plain_model()
    torch.manual_seed(5)
    model = smp.DistributedModel(split_model(smp))
    if manual:
        for index, layer in enumerate(model.get_module().transformer.seq_layers.children()):
            smp.set_partition(layer, index // 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    reference = torch.optim.SGD(plain.parameters(), lr=0.3, momentum=0.9)

    @smp.step
    def step(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        loss, logits = model((ids, mask, None, None, ids))
        model.backward(loss)
        return loss, logits

    prescaled = config.get("prescaled_batch", False)
    replicas = smp.rdp_size() if prescaled else smp.dp_size()
    mine = smp.rdp_rank() if prescaled else smp.dp_rank()
    own = slice(PER_RANK * mine, PER_RANK * (mine + 1))
    g = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(3):
        ids = torch.randint(0, VOCABULARY, (PER_RANK * replicas, LENGTH), generator=g)
        mask = torch.zeros(PER_RANK * replicas, LENGTH)
        optimizer.zero_grad()
        _loss, logits = step(ids[own], mask[own])
        optimizer.step()
        reference.zero_grad()
        wanted, outputs = plain((ids, mask, None, None, ids))
        wanted.backward()
        reference.step()
        losses.append(float((logits.concat().detach() - outputs[own].detach()).abs().max()))
    full = model.state_dict()
    error = max(float((full[key] - value).abs().max()) for key, value in plain.state_dict().items())
    here = {name.split(".")[2] for name, _ in model.local_named_parameters() if ".seq_layers." in name}
    return {"logits": max(losses), "weights": error, "layers": sorted(here), "pp": smp.pp_rank()}


@pytest.mark.parametrize(
    ("ranks", "config", "manual"),
    [
        (4, {"optimize": "memory"}, False),
        (8, {"optimize": "speed"}, True),
        (8, {"optimize": "memory", "prescaled_batch": True, "pipeline": "simple"}, True),
    ],
)
def test_three_parallelisms_train_as_one_process(ranks: int, config: dict[str, Any], manual: bool) -> None:
    """Statements 4, 37 and 38 where layers lie on two pipeline ranks, are split over two, and have two replicas."""
    reports = [rank.report for rank in run_ranks(trained, ranks, config, manual, limit=200)]
    for report in reports:
        # The loss is taken in float32, as Hugging Face does.
        assert report["logits"] < 1e-5
        assert report["weights"] < 1e-5
        if manual:
            assert report["layers"] == (["0", "1"] if report["pp"] == 0 else ["2", "3"])
