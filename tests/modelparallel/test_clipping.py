"""`smp.clip_grad_norm_`: by the norm of the whole model, however it is spread over ranks (C8, statement 16)."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from torch import nn

BASE = '"microbatches": 2, "auto_partition": false, "default_partition": 0'
PIPELINE = f'{{{BASE}, "partitions": 2}}'
REPLICAS = f'{{{BASE}, "partitions": 2, "ddp": true, "shard_optimizer_state": true}}'
TENSOR = f'{{{BASE}, "tensor_parallel_degree": 2, "ddp": true}}'
TENSOR_PIPELINE = f'{{{BASE}, "tensor_parallel_degree": 2, "partitions": 2, "ddp": true}}'
SHARDS = (
    f'{{{BASE}, "sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 9, '
    '"sdp_gradient_clipping": 0, "ddp": true}'
)
# A step each; the last norm is below its limit, so that step is not clipped.
STEPS = ((2.0, 0.1), (float("inf"), 0.01), (3.0, 0.05), (2.0, 1e6))


def build(parts: Any = None) -> nn.Sequential:
    torch.manual_seed(0)
    first = [nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8)]
    if parts is None:
        return nn.Sequential(*first, nn.Linear(8, 4))
    with parts.tensor_parallelism():
        linear = nn.Linear(6, 8)
        with parts.partition(parts.pp_size() - 1):
            last = nn.Linear(8, 4)
    return nn.Sequential(linear, *first[1:], last)


def batches() -> list[torch.Tensor]:
    return [torch.randn(16, 6, generator=torch.Generator().manual_seed(one)) for one in range(len(STEPS))]


def alone() -> tuple[dict[str, torch.Tensor], list[float]]:
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    norms = []
    for batch, (order, limit) in zip(batches(), STEPS, strict=True):
        optimizer.zero_grad()
        (model(batch) * 3).pow(2).mean().backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), limit, order)))
        optimizer.step()
    return model.state_dict(), norms


def clipped() -> tuple[dict[str, torch.Tensor], list[float]]:
    import smdistributed.modelparallel.torch as smp

    smp.init()
    model = smp.DistributedModel(build(smp))
    model.load_state_dict(build().state_dict())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0))

    @smp.step
    def step(batch: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = (model(batch) * 3).pow(2).mean()
        model.backward(loss)
        return loss

    norms = []
    for batch, (order, limit) in zip(batches(), STEPS, strict=True):
        optimizer.zero_grad()
        step(batch.chunk(smp.dp_size())[smp.dp_rank()])
        norms.append(float(smp.clip_grad_norm_(model.parameters(), limit, order)))
        optimizer.step()
    return model.state_dict(), norms


@pytest.mark.parametrize(
    ("size", "config"),
    [(1, "{}"), (2, PIPELINE), (4, REPLICAS), (2, TENSOR), (4, TENSOR_PIPELINE), (2, SHARDS)],
    ids=["alone", "pipeline", "replicas", "tensor", "tensor-pipeline", "shards"],
)
def test_clipping_is_that_of_one_process(size: int, config: str) -> None:
    """Norms of several orders, and the weights after steps of which some are clipped."""
    expected, norms = alone()
    assert all(norm > limit for norm, (_, limit) in zip(norms[:-1], STEPS[:-1], strict=True))
    assert norms[-1] < STEPS[-1][1]
    for one in run_ranks(clipped, size, config=config):
        weights, found = one.report
        assert found == pytest.approx(norms, rel=1e-4)
        for name, value in expected.items():
            torch.testing.assert_close(weights[name], value, rtol=1e-4, atol=1e-6)


def not_finite() -> list[Any]:
    import smdistributed.modelparallel.torch as smp

    smp.init()
    model = smp.DistributedModel(build(smp))

    @smp.step
    def step(batch: torch.Tensor) -> None:
        model.backward(model(batch).mean())

    step(batches()[0])
    for parameter in model.local_parameters():
        if smp.rank() == 1 and parameter.grad is not None:
            parameter.grad[0] = float("nan")
    with pytest.raises(smp.exceptions.SMPValueError) as caught:
        smp.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    norm = smp.clip_grad_norm_(model.parameters(), 1.0)
    spoilt = all(bool(one.grad.isnan().all()) for one in model.local_parameters() if one.grad is not None)
    return [str(caught.value), bool(norm.isnan()), spoilt]


def test_a_norm_that_is_not_finite_is_known_on_all_ranks() -> None:
    """As torch has it: refused if asked, else every gradient of the model is spoilt, not one rank's."""
    for one in run_ranks(not_finite, 2, config=PIPELINE):
        said, norm, spoilt = one.report
        assert said.startswith("smp.clip_grad_norm_: the norm of order 2.0 is nan: find what made")
        assert norm
        assert spoilt
