"""Optimizers of models with tensor parallelism: slices count once in norms, and as wholes where whole norms count."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from torch import nn

CONFIG = '{"ddp": true, "tensor_parallel_degree": 2, "microbatches": 2%s}'
SHARDED = ', "shard_optimizer_state": true'


def build() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 4))


def make(kind: str, model: nn.Module) -> torch.optim.Optimizer:
    from smdistributed.modelparallel.torch import optimizers

    kinds: dict[str, Any] = {
        "adamw": torch.optim.AdamW,
        "lamb": optimizers.FusedLAMB,
        "novograd": optimizers.FusedNovoGrad,
    }
    optimizer: torch.optim.Optimizer = kinds[kind](model.parameters(), lr=0.02, weight_decay=0.1)
    return optimizer


def batches(count: int) -> list[torch.Tensor]:
    return [torch.randn(16, 6, generator=torch.Generator().manual_seed(one)) for one in range(count)]


def alone(kind: str) -> tuple[dict[str, torch.Tensor], list[float]]:
    model = build()
    optimizer = make(kind, model)
    norms = []
    for batch in batches(3):
        optimizer.zero_grad()
        (model(batch) * 3).pow(2).mean().backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), float("inf"))))
        optimizer.step()
    return model.state_dict(), norms


def trained(kind: str) -> dict[str, Any]:
    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel.torch.optimizer.norms import global_norm

    smp.init()
    with smp.tensor_parallelism():
        plain = build()
    model = smp.DistributedModel(plain)
    model.load_state_dict(build().state_dict())
    optimizer = smp.DistributedOptimizer(make(kind, model))

    @smp.step
    def step(batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (model(batch) * 3).pow(2).mean()
        model.backward(loss)
        return loss

    norms = []
    for batch in batches(3):
        optimizer.zero_grad()
        step(batch.chunk(smp.dp_size())[smp.dp_rank()])
        norms.append(global_norm(model.local_parameters()))
        optimizer.step()
    try:
        optimizer.state_dict()
        refusal = ""
    except smp.exceptions.SMPUnsupportedError as error:
        refusal = str(error)
    return {
        "weights": model.state_dict(),
        "norms": norms,
        "slices": sum(smp.tp.is_distributed(one) for one in model.local_parameters()),
        "refusal": refusal,
        "local": optimizer.local_state_dict(),
        "shapes": [tuple(one.shape) for one in model.local_parameters()],
    }


@pytest.mark.parametrize(
    ("kind", "size", "extra"), [("lamb", 2, ""), ("novograd", 2, ""), ("adamw", 4, SHARDED), ("lamb", 4, SHARDED)]
)
def test_slices_train_as_wholes(kind: str, size: int, extra: str) -> None:
    """Statements 16, 37 and 39: norms are of the whole model, states of this rank's slices."""
    expected, norms = alone(kind)
    for one in run_ranks(trained, size, kind, config=CONFIG % extra):
        report = one.report
        assert report["slices"] == 2
        assert report["norms"] == pytest.approx(norms, rel=1e-4)
        for name, value in expected.items():
            assert torch.allclose(report["weights"][name], value, rtol=1e-3, atol=1e-5), name
        assert report["refusal"].startswith("optimizer.state_dict() would mix the tensor parallel ranks' slices")
        # Whole again, where replicas have shares.
        moments = {number: tuple(state["exp_avg"].shape) for number, state in report["local"]["state"].items()}
        assert moments == dict(enumerate(report["shapes"]))
