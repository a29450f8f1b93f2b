"""`register_post_step_hook` as transformers' Trainer uses it: to load an optimizer's state when training resumes."""

from __future__ import annotations

import copy
from typing import Any

from smp_jobs import run_ranks


def resume() -> list[Any]:
    import smdistributed.modelparallel.torch as smp
    import torch
    from torch import nn

    smp.init({"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0})
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(layers.parameters(), lr=0.1, momentum=0.9))
    model = smp.DistributedModel(layers)
    smp.set_partition(layers[1], 1)

    @smp.step
    def train(model: Any, x: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = model(x).square().mean()
        model.backward(loss)
        return loss

    def run(steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            optimizer.zero_grad()
            losses.append(train(model, torch.ones(4, 4)).reduce_mean().item())
            optimizer.step()
        return losses

    run(2)
    # Copies: what local_state_dict returns has the optimizer's own tensors, as a plain optimizer's state_dict does.
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    momentum = copy.deepcopy(optimizer.local_state_dict())
    expected = run(3)
    model.load_state_dict(weights)
    called = []

    def load(hooked: Any, given: Any) -> None:
        called.append((hooked is model, given is optimizer))
        given.load_state_dict(copy.deepcopy(momentum))

    model.register_post_step_hook(load)
    removed = model.register_post_step_hook(lambda _model, _optimizer: called.append((False, False)))
    removed.remove()
    return [expected, run(3), called]


def test_a_state_that_is_loaded_in_the_hook_is_loaded_once() -> None:
    """Steps after the first go on from what they have: a hook that ran again would set them back."""
    for one in run_ranks(resume, 2):
        expected, resumed, called = one.report
        assert resumed == expected
        assert called == [(True, True)]
