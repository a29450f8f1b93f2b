"""DistributedDataParallel with each of its options.

Not here, because torch itself needs an accelerator for them: `mixed_precision`, `_apply_optimizer_in_backward` and
SyncBatchNorm. The first two fail on gloo and CPU too, in the middle of the backward pass.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from models import batches, net, sgd, train, weights
from registry import Numbers, case, numbers
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.checkpoint import checkpoint


def trained(**options: Any) -> Numbers:
    model = DDP(net(), **options)
    losses = train(model)
    return numbers([weights(model), losses, dict(model.module.named_buffers())])


@case()
def plain() -> Numbers:
    return trained()


@case()
def buffers_not_broadcast() -> Numbers:
    return trained(broadcast_buffers=False)


@case()
def many_small_buckets() -> Numbers:
    return trained(bucket_cap_mb=0.01)


@case()
def gradients_are_views_of_buckets() -> Numbers:
    return trained(gradient_as_bucket_view=True, bucket_cap_mb=0.01)


@case()
def static_graph() -> Numbers:
    return trained(static_graph=True)


@case()
def unused_parameters() -> Numbers:
    """Which rank uses the branch changes from step to step; parameters that nobody used keep their gradient."""
    model = DDP(net(), find_unused_parameters=True)
    rank = dist.get_rank()
    losses = train(model, forward=lambda batch, step: model(batch, (step + rank) % 3 == 0))
    return numbers([weights(model), losses])


@case()
def static_graph_with_unused_parameters() -> Numbers:
    model = DDP(net(), static_graph=True, find_unused_parameters=True)
    return numbers([train(model, forward=lambda batch, _: model(batch, True)), weights(model)])


@case()
def unused_parameters_without_the_option() -> Numbers:
    """torch's error in the second forward pass, which must not leave the group in a bad state."""
    model = DDP(net())
    with pytest.raises(RuntimeError, match="Expected to have finished reduction"):
        train(model, forward=lambda batch, _: model(batch, True))
    return trained()


@case()
def no_sync() -> Numbers:
    model = DDP(net(norm=False))
    optimizer = sgd(model)
    for index, batch in enumerate(batches(9)):
        if index % 3 != 2:
            with model.no_sync():
                model(batch).square().mean().backward()
        else:
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return numbers(weights(model))


@case()
def join_with_uneven_inputs() -> Numbers:
    model = DDP(net(norm=False))
    optimizer = sgd(model)
    with model.join(divide_by_initial_world_size=False):
        for batch in batches(3 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return numbers(weights(model))


@case()
def join_that_raises_on_the_first_to_run_out() -> Numbers:
    model = DDP(net(norm=False))
    done = 0

    def run() -> None:
        nonlocal done
        with model.join(throw_on_early_termination=True):
            for batch in batches(2 + dist.get_rank()):
                model(batch).square().mean().backward()
                done += 1

    with pytest.raises(RuntimeError, match="exhausted"):
        run()
    return numbers(done)


def embedded(*after: nn.Module) -> Numbers:
    torch.manual_seed(5)
    model = DDP(nn.Sequential(nn.EmbeddingBag(40, 6, sparse=True), *after))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.tensor([[step, 7 + dist.get_rank()], [39, 2]])).square().sum().backward()
        optimizer.step()
    return numbers(weights(model))


@case()
def sparse_embeddings() -> Numbers:
    return embedded()


@case()
def sparse_beside_dense() -> Numbers:
    torch.manual_seed(6)
    return embedded(nn.Linear(6, 3))


@case()
def delayed_all_reduce() -> Numbers:
    """Parameters that are reduced in one piece after the backward pass."""
    module = net(norm=False)
    delayed = [(f"sometimes.{name}", value) for name, value in module.sometimes.named_parameters()]
    model = DDP(module, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=module.first.weight)
    optimizer = sgd(model)
    # DDP itself does not wait for this reduction: it relies on the order of a GPU's stream, which a CPU does not have.
    optimizer.register_step_pre_hook(lambda *_: dist.barrier())
    return numbers([train(model, optimizer=optimizer), weights(model)])


@case()
def ignored_parameters() -> Numbers:
    module = net(norm=False)
    DDP._set_params_and_buffers_to_ignore_for_model(module, ["sometimes.weight", "sometimes.bias"])
    model = DDP(module)
    return numbers([train(model), weights(model)])


@case()
def double_precision() -> Numbers:
    model = DDP(net(dtype=torch.float64))
    return numbers([train(model, dtype=torch.float64), weights(model)])


@case()
def bfloat16() -> Numbers:
    model = DDP(net(norm=False, dtype=torch.bfloat16))
    return numbers([train(model, dtype=torch.bfloat16), weights(model)])


@case()
def complex_parameters() -> Numbers:
    torch.manual_seed(3)
    model = DDP(nn.Linear(4, 3, dtype=torch.complex64))
    inputs = torch.randn(5, 4, dtype=torch.complex64) * (dist.get_rank() + 1)
    model(inputs).abs().square().sum().backward()
    return numbers([parameter.grad for parameter in model.parameters()])


class Mixed(nn.Module):
    """Parameters of several types; frozen ones among them."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(12, 8, dtype=torch.float64)
        self.narrow = nn.Linear(8, 8, dtype=torch.bfloat16)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.last = nn.Linear(8, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.narrow(torch.tanh(self.wide(inputs.double())).bfloat16()).float()
        result: torch.Tensor = self.last(torch.tanh(self.frozen(hidden)))
        return result


@case()
def parameters_of_several_types() -> Numbers:
    torch.manual_seed(4)
    model = DDP(Mixed())
    return numbers([train(model), weights(model)])


class Checkpointed(nn.Module):
    """Computes its hidden layers again in the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(norm=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = checkpoint(self.net, inputs, use_reentrant=False)
        return result


@case()
def activation_checkpointing() -> Numbers:
    model = DDP(Checkpointed(), gradient_as_bucket_view=True)
    return numbers([train(model), weights(model)])


class TwoOutputs(nn.Module):
    """Returns a dictionary, of which the loss uses a part."""

    def __init__(self) -> None:
        super().__init__()
        self.net = net(norm=False)
        self.extra = nn.Linear(5, 2)

    def forward(self, inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.net(inputs)
        return {"hidden": hidden, "extra": self.extra(hidden)}


@case()
def outputs_in_a_dictionary() -> Numbers:
    model = DDP(TwoOutputs(), find_unused_parameters=True)
    losses = train(model, forward=lambda batch, step: model(batch)["hidden" if step % 2 else "extra"])
    return numbers([losses, weights(model)])


@case()
def two_models_at_once() -> Numbers:
    """A generator and a discriminator: two reducers, one backward pass through both."""
    first = DDP(net(norm=False))
    torch.manual_seed(2)
    second = DDP(nn.Linear(5, 1))
    optimizers = [sgd(first), sgd(second)]
    for batch in batches(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        second(first(batch)).square().mean().backward()
        for optimizer in optimizers:
            optimizer.step()
    return numbers([weights(first), weights(second)])


@case()
def on_a_group_of_its_own() -> Numbers:
    group = dist.new_group()
    model = DDP(net(norm=False), process_group=group)
    result = numbers([train(model), weights(model)])
    # gloo's end joins its threads with the interpreter locked, where one that is dropping its last work needs it.
    del model
    time.sleep(0.2)
    dist.destroy_process_group(group)
    return result


@case()
def compiled_by_aot_eager() -> Numbers:
    model = DDP(net(norm=False))
    compiled = torch.compile(model, backend="aot_eager")
    return numbers([train(model, forward=lambda batch, _: compiled(batch)), weights(model)])


@case()
def compiled_by_inductor() -> Numbers:
    model = DDP(net(norm=False), bucket_cap_mb=1)
    compiled = torch.compile(model)
    return numbers([train(model, forward=lambda batch, _: compiled(batch)), weights(model)])
