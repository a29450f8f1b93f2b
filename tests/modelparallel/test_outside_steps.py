"""Statement 29: where one rank has the whole model, it trains without a step function too."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from torch import nn

SHARDED = {"sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 5, "sdp_gradient_clipping": 0.0}


def train(config: dict[str, Any], by_model: bool) -> float:
    """How far the weights are from those of torch alone on the batch of all replicas, after accumulated gradients."""
    import smdistributed.modelparallel.torch as smp

    smp.init({"ddp": True, **config})
    torch.manual_seed(smp.rank())  # the replicas begin with the weights of the first
    model = smp.DistributedModel(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2)))
    reference = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    reference.load_state_dict(copy.deepcopy(model.state_dict()))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    alone = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    for number in range(6):
        whole = torch.randn(8, 4, generator=torch.Generator().manual_seed(number))
        loss = model(whole.chunk(2)[smp.dp_rank()]).pow(2).mean()
        if by_model:
            model.backward(loss)
        else:
            loss.backward()
        reference(whole).pow(2).mean().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
            alone.step()
            alone.zero_grad()
    found, expected = model.state_dict(), reference.state_dict()
    return max(float((found[name] - value).abs().max()) for name, value in expected.items())


@pytest.mark.parametrize(
    ("config", "by_model"), [({}, False), ({"shard_optimizer_state": True}, True), (SHARDED, False)]
)
def test_gradients_are_averaged_when_a_backward_pass_returns(config: dict[str, Any], by_model: bool) -> None:
    assert max(one.report for one in run_ranks(train, 2, config, by_model)) <= 1e-6
