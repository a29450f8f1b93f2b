"""Models and optimizers cut over the ranks: FSDP 1 and 2, ZeRO."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from models import Net, batches, net, train, weights
from registry import Numbers, case, numbers
from torch.distributed.algorithms.join import Join
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecision, MixedPrecisionPolicy, ShardingStrategy, fully_shard
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

CPU = torch.device("cpu")


def fsdp(strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD, **options: Any) -> FSDP:
    policy = ModuleWrapPolicy({torch.nn.Linear})
    return FSDP(net(norm=False), device_id=CPU, sharding_strategy=strategy, auto_wrap_policy=policy, **options)


def fsdp_trained(strategy: ShardingStrategy = ShardingStrategy.FULL_SHARD, **options: Any) -> Numbers:
    model = fsdp(strategy, **options)
    losses = train(model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01))
    return numbers([losses, model.state_dict()])


@case()
def fsdp1_full_shard() -> Numbers:
    return fsdp_trained()


@case()
def fsdp1_shard_grad_op() -> Numbers:
    return fsdp_trained(ShardingStrategy.SHARD_GRAD_OP)


@case()
def fsdp1_no_shard() -> Numbers:
    return fsdp_trained(ShardingStrategy.NO_SHARD)


@case(ranks=4)
def fsdp1_hybrid_shard() -> Numbers:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    return fsdp_trained(ShardingStrategy.HYBRID_SHARD, device_mesh=mesh)


@case()
def fsdp1_original_parameters() -> Numbers:
    return fsdp_trained(use_orig_params=True, limit_all_gathers=False, forward_prefetch=True)


@case()
def fsdp1_mixed_precision() -> Numbers:
    """Gradients are reduced in bfloat16."""
    kind = torch.bfloat16
    return fsdp_trained(mixed_precision=MixedPrecision(param_dtype=kind, reduce_dtype=kind, buffer_dtype=kind))


@case()
def fsdp1_accumulation_and_clipping() -> Numbers:
    model = fsdp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    norms = []
    for index, batch in enumerate(batches(6)):
        if index % 2 == 0:
            with model.no_sync():
                model(batch).square().mean().backward()
        else:
            model(batch).square().mean().backward()
            norms.append(model.clip_grad_norm_(0.1))
            optimizer.step()
            optimizer.zero_grad()
    return numbers([norms, model.state_dict()])


@case()
def fsdp1_optimizer_state() -> Numbers:
    model = fsdp()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer=optimizer)
    whole = FSDP.optim_state_dict(model, optimizer)
    FSDP.optim_state_dict_to_load(model, optimizer, whole)
    return numbers(whole["state"])


def sharded(model: Net, **options: Any) -> Net:
    for child in (model.first, model.sometimes, model.last):
        fully_shard(child, **options)
    fully_shard(model, **options)
    return model


def whole_weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in model.state_dict().items()
    }


def fsdp2_trained(**options: Any) -> Numbers:
    model = sharded(net(norm=False), **options)
    losses = train(model, optimizer=torch.optim.Adam(model.parameters(), lr=0.01))
    return numbers([losses, whole_weights(model)])


@case()
def fsdp2() -> Numbers:
    return fsdp2_trained(mesh=init_device_mesh("cpu", (dist.get_world_size(),)))


@case()
def fsdp2_without_resharding() -> Numbers:
    return fsdp2_trained(mesh=init_device_mesh("cpu", (dist.get_world_size(),)), reshard_after_forward=False)


@case()
def fsdp2_mixed_precision() -> Numbers:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    return fsdp2_trained(mesh=init_device_mesh("cpu", (dist.get_world_size(),)), mp_policy=policy)


@case()
def fsdp2_reduced_in_bfloat16() -> Numbers:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
    return fsdp2_trained(mesh=init_device_mesh("cpu", (dist.get_world_size(),)), mp_policy=policy)


@case()
def fsdp2_offloaded() -> Numbers:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return fsdp2_trained(mesh=mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))


@case(ranks=4)
def fsdp2_hybrid() -> Numbers:
    return fsdp2_trained(mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


@case()
def fsdp2_accumulation_and_clipping() -> Numbers:
    model: Any = sharded(net(norm=False), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    norms = []
    for index, batch in enumerate(batches(6)):
        model.set_requires_gradient_sync(index % 2 == 1)
        model(batch).square().mean().backward()
        if index % 2 == 1:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            norms.append(norm.full_tensor() if isinstance(norm, DTensor) else norm)
            optimizer.step()
            optimizer.zero_grad()
    return numbers([norms, whole_weights(model)])


def zero(model: torch.nn.Module, **options: Any) -> ZeroRedundancyOptimizer:
    return ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01, **options)


@case()
def zero_redundancy() -> Numbers:
    model = DDP(net(norm=False))
    optimizer = zero(model)
    losses = train(model, optimizer=optimizer)
    optimizer.consolidate_state_dict(0)
    state = optimizer.state_dict()["state"] if dist.get_rank() == 0 else {}
    return numbers([losses, weights(model), state])


@case()
def zero_redundancy_in_buckets() -> Numbers:
    model = DDP(net(norm=False), gradient_as_bucket_view=True)
    return numbers([train(model, optimizer=zero(model, parameters_as_bucket_view=True)), weights(model)])


@case()
def zero_redundancy_with_uneven_inputs() -> Numbers:
    model = DDP(net(norm=False))
    optimizer = zero(model)
    with Join([model, optimizer]):
        for batch in batches(3 + dist.get_rank()):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return numbers(weights(model))
