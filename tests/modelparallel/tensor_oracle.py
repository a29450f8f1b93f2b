"""Compares a distributed module with its plain counterpart on one process: weights, outputs and all gradients.

Every rank has the plain module too, and runs it on the samples of all data-parallel ranks. What the gradient of a
distributed parameter must be after the averaging that smp does (over RDP_GROUP for slices, over DP_GROUP for others) is
then the gradient of the mean over all ranks' losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

Make = Callable[[], nn.Module]
Sample = Callable[[torch.Generator], Any]


def start(degree: int, **more: object) -> Any:
    import smdistributed.modelparallel.torch as smp

    smp.init({"tensor_parallel_degree": degree, "ddp": True, **more})
    return smp


def averaged_full_gradient(parameter: Tensor) -> Tensor:
    """What smp's averaging makes of this parameter's gradient, then merged over the tensor-parallel group."""
    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel.torch import tp
    from smdistributed.modelparallel.torch.tp import shards

    assert parameter.grad is not None
    sliced = tp.is_distributed(parameter)
    group = smp.get_rdp_process_group() if sliced else smp.get_dp_process_group()
    size = smp.rdp_size() if sliced else smp.dp_size()
    total = parameter.grad.clone()
    dist.all_reduce(total, group=group)
    return shards.merge(total / size, tp.shard_dim(parameter))


def tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, (tuple, list)):
        return [one for item in value for one in tensors(item)]
    return []


def loss_of(output: Any) -> Tensor:
    """A scalar that weighs every element of every output that has a gradient differently."""
    total = torch.zeros((), dtype=torch.float64)
    for one in tensors(output):
        if one.requires_grad:
            weights = torch.linspace(-1, 2, one.numel(), dtype=torch.float64).reshape(one.shape)
            total = total + (one.double() * weights).sum() + one.double().pow(2).sum()
    return total


def compare(plain: Make, split: Make, sample: Sample, *, rtol: float = 1e-9, atol: float = 1e-10) -> dict[str, Any]:
    """Raises AssertionError for any difference; returns the shapes of the distributed module's own parameters."""
    import smdistributed.modelparallel.torch as smp
    from smdistributed.modelparallel.torch import tp
    from smdistributed.modelparallel.torch.tp import shards

    torch.manual_seed(7)
    reference = plain()
    # Ranks that seed themselves differently must still agree on the full weights: those of tensor-parallel rank 0.
    torch.manual_seed(7 + smp.tp_rank())
    module = split()
    full = shards.full_state_dict(module)
    assert full.keys() == reference.state_dict().keys()
    for name, value in reference.state_dict().items():
        torch.testing.assert_close(full[name], value, rtol=0, atol=0, msg=f"weights: {name}")

    replicas = smp.rdp_size() if smp.state.cfg.prescaled_batch else smp.dp_size()
    mine = smp.rdp_rank() if smp.state.cfg.prescaled_batch else smp.dp_rank()
    samples = [sample(torch.Generator().manual_seed(100 + index)) for index in range(replicas)]
    outputs = [reference(*one) for one in samples]
    sum(loss_of(one) for one in outputs).div(replicas).backward()  # type: ignore[union-attr]

    own = sample(torch.Generator().manual_seed(100 + mine))
    output = module(*own)
    _close(tensors(output), tensors(outputs[mine]), rtol, atol, "outputs")
    loss_of(output).backward()
    inputs = [one.grad for one in tensors(own) if one.requires_grad]
    wanted = [one.grad * replicas for one in tensors(samples[mine]) if one.requires_grad and one.grad is not None]
    _close(inputs, wanted, rtol, atol, "input gradients")
    gradients = dict(reference.named_parameters())
    for name, parameter in module.named_parameters():
        found, expected = averaged_full_gradient(parameter), gradients[name].grad
        assert expected is not None, name
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol, msg=lambda text, name=name: f"{name}: {text}")
    return {name: (tuple(p.shape), tp.shard_dim(p)) for name, p in module.named_parameters()}


def _close(found: Sequence[Any], wanted: Sequence[Any], rtol: float, atol: float, what: str) -> None:
    assert len(found) == len(wanted), what
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=rtol, atol=atol, msg=lambda text: f"{what}: {text}")
