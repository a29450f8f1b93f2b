"""Tensors over the ranks, and the calls beneath the wrappers: DTensor, functional collectives, checkpoints, objects."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.distributed.checkpoint as dcp
from models import batches, net, sgd, train, weights
from registry import Numbers, case, numbers
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import _coalescing_manager
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)


def ranks() -> int:
    return dist.get_world_size()


@case()
def redistribute() -> Numbers:
    """From every placement to every other; uneven shards too."""
    mesh = init_device_mesh("cpu", (ranks(),))
    source = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5)
    results = []
    for start in (Shard(0), Shard(1), Replicate()):
        tensor = distribute_tensor(source, mesh, [start])
        for end in (Shard(0), Shard(1), Replicate()):
            results.append(tensor.redistribute(placements=[end]).to_local())
    for kind in ("sum", "avg", "max", "min"):
        partial = DTensor.from_local(source * (dist.get_rank() + 1), mesh, [Partial(kind)], run_check=False)
        results += [partial.redistribute(placements=[end]).to_local() for end in (Shard(0), Shard(1), Replicate())]
    return numbers(results)


@case()
def dtensor_arithmetic() -> Numbers:
    mesh = init_device_mesh("cpu", (ranks(),))
    torch.manual_seed(1)
    left, right = torch.randn(6, 8), torch.randn(8, 4)
    a, b = distribute_tensor(left, mesh, [Shard(1)]), distribute_tensor(right, mesh, [Shard(0)])
    product = a @ b
    assert torch.allclose(product.full_tensor(), left @ right, atol=1e-5)
    return numbers([product.full_tensor(), a.softmax(1).full_tensor(), a.norm().full_tensor(), b.mean().full_tensor()])


@case(ranks=4)
def dtensor_on_a_mesh_of_two_dimensions() -> Numbers:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    tensor = distribute_tensor(torch.arange(32.0).reshape(4, 8), mesh, [Shard(0), Shard(1)])
    turned = tensor.redistribute(placements=[Shard(1), Shard(0)])
    return numbers([turned.to_local(), turned.full_tensor(), mesh["model"].get_local_rank()])


@case()
def tensor_parallel() -> Numbers:
    mesh = init_device_mesh("cpu", (ranks(),))
    torch.manual_seed(6)
    model = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 12))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    optimizer = sgd(model)
    losses = []
    for batch in batches(4):
        # Tensor parallel ranks see the same data.
        dist.broadcast(batch, 0)
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return numbers([losses, [value.full_tensor() for value in model.parameters() if isinstance(value, DTensor)]])


@case()
def sequence_parallel() -> Numbers:
    mesh = init_device_mesh("cpu", (ranks(),))
    torch.manual_seed(6)
    model = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 16), nn.Linear(16, 12))
    gather = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    parallelize_module(model, mesh, {"0": SequenceParallel(), "1": gather})
    parallelize_module(model, mesh, {"1": ColwiseParallel(), "2": RowwiseParallel(output_layouts=Shard(1))})
    torch.manual_seed(8)
    inputs = torch.randn(2, 4 * ranks(), 12)
    model(inputs).pow(2).sum().backward()
    gradients = [value.grad for value in model.parameters()]
    return numbers([value.full_tensor() if isinstance(value, DTensor) else value for value in gradients])


@case()
def loss_of_shards() -> Numbers:
    mesh = init_device_mesh("cpu", (ranks(),))
    torch.manual_seed(6)
    logits = distribute_tensor(torch.randn(6, 4 * ranks(), requires_grad=True), mesh, [Shard(1)])
    with loss_parallel():
        loss = nn.functional.cross_entropy(logits, torch.arange(6) % 4)
        loss.backward()
    assert isinstance(logits.grad, DTensor)
    return numbers([loss.full_tensor(), logits.grad.full_tensor()])  # type: ignore[attr-defined]


@case()
def functional_collectives() -> Numbers:
    group = dist.group.WORLD
    own = torch.arange(4.0 * ranks()) + 100 * dist.get_rank()
    results = [functional.all_reduce(own, op, group) for op in ("sum", "avg", "max", "min", "product")]
    results += functional.all_reduce_coalesced([own, own * 2], "sum", group)
    results += [functional.all_gather_tensor(own, 0, group), functional.all_gather_tensor(own[:, None], 1, group)]
    results += functional.all_gather_into_tensor_coalesced([own, own * 2], group)
    results += [functional.reduce_scatter_tensor(own, "sum", 0, group), functional.broadcast(own, 0, group)]
    results += functional.reduce_scatter_tensor_coalesced([own, own * 2], "avg", [0, 0], group)
    results += [functional.all_to_all_single(own, None, None, group)]
    results += [functional.permute_tensor(own, [(one + 1) % ranks() for one in range(ranks())], group)]
    return numbers([functional.wait_tensor(result) for result in results])


@case()
def functional_collectives_with_gradients() -> Numbers:
    group = dist.group.WORLD
    own = (torch.arange(4.0 * ranks()) + dist.get_rank()).requires_grad_()
    gathered = functional.all_gather_tensor_autograd(own, 0, group)
    scattered = functional.reduce_scatter_tensor_autograd(gathered.square(), "sum", 0, group)
    scattered.sum().backward()
    return numbers([gathered, scattered, own.grad])


@case()
def compiled_collectives() -> Numbers:
    group = dist.group.WORLD

    @torch.compile(backend="aot_eager", fullgraph=True)
    def step(values: torch.Tensor) -> torch.Tensor:
        total = functional.all_reduce(values.sin(), "sum", group)
        return functional.all_gather_tensor(total + 1, 0, group).cos()

    return numbers(step(torch.arange(6.0) + dist.get_rank()))


@case()
def coalescing_manager() -> Numbers:
    """gloo has none: there the operations go one by one."""
    device = torch.device("cpu")
    manager = nullcontext() if dist.get_backend() == "gloo" else _coalescing_manager(device=device)
    tensors = [torch.full((3,), float(index + dist.get_rank())) for index in range(4)]
    with manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    return numbers(tensors)


@case()
def differentiable_collectives() -> Numbers:
    import torch.distributed.nn.functional as differentiable

    own = (torch.arange(3.0) + dist.get_rank() + 1).requires_grad_()
    total = differentiable.all_reduce(own * 2)
    everyone = torch.stack(list(differentiable.all_gather(own)))
    (total.square().sum() + everyone.prod()).backward()
    return numbers([total, everyone, own.grad])


@case()
def objects() -> Numbers:
    rank, size = dist.get_rank(), ranks()
    gathered: list[Any] = [None] * size
    dist.all_gather_object(gathered, {"rank": rank, "values": list(range(rank))})
    collected: list[Any] | None = [None] * size if rank == 0 else None
    dist.gather_object((rank, "x" * 1000 * rank), collected)
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, [{"for": one} for one in range(size)] if rank == 0 else None)
    broadcast: list[Any] = [torch.arange(5) if rank == 0 else None, rank]
    dist.broadcast_object_list(broadcast, 0)
    if rank == 0:
        dist.send_object_list([{"a": 1}, 2.5], 1)
    elif rank == 1:
        received: list[Any] = [None, None]
        dist.recv_object_list(received, 0)
        assert received == [{"a": 1}, 2.5]
    assert gathered == [{"rank": one, "values": list(range(one))} for one in range(size)]
    assert scattered == [{"for": rank}]
    assert collected is None or [len(text) for _, text in collected] == [1000 * one for one in range(size)]
    return numbers(broadcast)


@case()
def batched_point_to_point() -> Numbers:
    rank, size = dist.get_rank(), ranks()
    outgoing, incoming = torch.full((5,), float(rank)), torch.empty(5)
    operations = [
        dist.P2POp(dist.isend, outgoing, (rank + 1) % size),
        dist.P2POp(dist.irecv, incoming, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return numbers(incoming)


@case()
def pipeline() -> Numbers:
    torch.manual_seed(9)
    layers = [nn.Sequential(nn.Linear(12, 12), nn.Tanh()) for _ in range(ranks())]
    rank = dist.get_rank()
    stage = PipelineStage(layers[rank], rank, ranks(), torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    torch.manual_seed(10)
    inputs, target = torch.randn(8, 12), torch.randn(8, 12)
    losses: list[torch.Tensor] = []
    if rank == 0:
        schedule.step(inputs)
    elif rank == ranks() - 1:
        schedule.step(target=target, losses=losses)
    else:
        schedule.step()
    return numbers([losses, [value.grad for value in layers[rank].parameters()]])


def folder(name: str) -> str:
    return str(Path(os.environ["SMDDP_CASES_FOLDER"]) / f"{dist.get_backend()}-{name}")


@case()
def distributed_checkpoint() -> Numbers:
    """Saved by FSDP 2 on all ranks, loaded into a model with other weights."""
    mesh = init_device_mesh("cpu", (ranks(),))
    model, fresh = (fully_shard(net(norm=False), mesh=mesh) for _ in range(2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    train(model, optimizer=optimizer)
    saved, saved_optimizer = get_state_dict(model, optimizer)
    dcp.save({"model": saved, "optimizer": saved_optimizer}, checkpoint_id=folder("dcp"))
    dist.barrier()
    other = torch.optim.Adam(fresh.parameters(), lr=0.01)
    loaded, loaded_optimizer = get_state_dict(fresh, other)
    dcp.load({"model": loaded, "optimizer": loaded_optimizer}, checkpoint_id=folder("dcp"))
    set_state_dict(fresh, other, model_state_dict=loaded, optim_state_dict=loaded_optimizer)
    pairs = list(zip(model.parameters(), fresh.parameters(), strict=True))
    different = sum(not torch.equal(a.to_local(), b.to_local()) for a, b in pairs)
    assert functional.all_reduce(torch.tensor(different), "sum", dist.group.WORLD) == 0
    return numbers([value.full_tensor() for value in weights(fresh).values()])


@case()
def asynchronous_checkpoint() -> Numbers:
    """The metadata goes over a gloo group that DCP asks for."""
    group = dist.new_group(backend="gloo")
    state = {"rows": torch.arange(6.0), "step": torch.tensor(3)}
    done: Any = dcp.async_save(state, checkpoint_id=folder("async"), process_group=group)
    done.result()
    loaded = {"rows": torch.zeros(6), "step": torch.tensor(0)}
    dcp.load(loaded, checkpoint_id=folder("async"))
    dist.destroy_process_group(group)
    return numbers(loaded)


@case()
def averaged_models() -> Numbers:
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager

    model = net(norm=False)
    train(model)
    PeriodicModelAverager(period=1).average_parameters(model.parameters())
    return numbers(weights(model))


@case()
def monitored_barrier_beside() -> Numbers:
    group = dist.new_group(backend="gloo")
    dist.monitored_barrier(group)
    dist.destroy_process_group(group)
    return numbers(1)
