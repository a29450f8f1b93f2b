"""DDP's communication hooks: what they send in place of plain sums, and in which thread.

Hooks whose callbacks call collectives themselves (PowerSGD) run in several buckets too. gloo cannot: callbacks of one
bucket and the backward pass before the next issue collectives from two threads, which nothing orders alike on all
ranks. There each bucket waits until the one before is done.

Not here, because they fail on gloo too: the quantization hooks (IndexError on the CPU), batched PowerSGD (its own
assertion in torch 2.13), ZeRO overlapped with DDP (refused by name for gloo).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from models import batches, net, sgd, train, weights
from registry import Numbers, case, numbers
from torch.distributed.algorithms.ddp_comm_hooks import (
    debugging_hooks,
    default_hooks,
    optimizer_overlap_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.distributed.algorithms.model_averaging import averagers, hierarchical_model_averager
from torch.distributed.optim import PostLocalSGDOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817

Future = torch.futures.Future[torch.Tensor]


ONE_BUCKET = 25.0


def hooked(state: Any, hook: Any, bucket_cap_mb: float = 0.01, **options: Any) -> Numbers:
    model = DDP(net(norm=False), bucket_cap_mb=bucket_cap_mb, **options)
    model.register_comm_hook(state, hook)
    return numbers([train(model, 6), weights(model)])


@case()
def all_reduce_hook() -> Numbers:
    return hooked(None, default_hooks.allreduce_hook)


@case()
def fp16_compress() -> Numbers:
    return hooked(None, default_hooks.fp16_compress_hook)


@case()
def fp16_compress_with_views() -> Numbers:
    return hooked(None, default_hooks.fp16_compress_hook, gradient_as_bucket_view=True)


@case()
def bf16_compress() -> Numbers:
    """torch refuses it by name on anything but NCCL and XCCL."""
    return hooked(None, default_hooks.bf16_compress_hook)


@case()
def bf16_compress_by_another_name() -> Numbers:
    """The same, not recognised: a custom hook that sends bfloat16."""

    hook: Any = lambda group, bucket: default_hooks.bf16_compress_hook(group, bucket)  # noqa: E731
    return hooked(None, hook)


def power_state(**options: Any) -> powerSGD_hook.PowerSGDState:
    return powerSGD_hook.PowerSGDState(None, start_powerSGD_iter=2, **options)


@case()
def power_sgd() -> Numbers:
    """Its callbacks wait for collectives which they issue themselves."""
    return hooked(power_state(matrix_approximation_rank=1), powerSGD_hook.powerSGD_hook, ONE_BUCKET)


@case()
def power_sgd_of_rank_4_without_warm_start() -> Numbers:
    state = power_state(matrix_approximation_rank=4, warm_start=False, batch_tensors_with_same_shape=True)
    return hooked(state, powerSGD_hook.powerSGD_hook, ONE_BUCKET)


@case()
def power_sgd_in_fp16() -> Numbers:
    return hooked(power_state(), default_hooks.fp16_compress_wrapper(powerSGD_hook.powerSGD_hook), ONE_BUCKET)


@case()
def power_sgd_in_several_buckets() -> Numbers:
    def finished(future: Future) -> Future:
        future.wait()
        return future

    one_by_one: Any = lambda state, bucket: finished(powerSGD_hook.powerSGD_hook(state, bucket))  # noqa: E731
    hook = one_by_one if dist.get_backend() == "gloo" else powerSGD_hook.powerSGD_hook
    return hooked(power_state(matrix_approximation_rank=2), hook)


@case()
def noop() -> Numbers:
    return hooked(None, debugging_hooks.noop_hook)


@case()
def post_local_sgd() -> Numbers:
    model = DDP(net(norm=False))
    subgroup, _ = dist.new_subgroups(1)
    state = post_localSGD_hook.PostLocalSGDState(process_group=None, subgroup=subgroup, start_localSGD_iter=2)
    model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    averager = averagers.PeriodicModelAverager(period=2, warmup_steps=2)
    optimizer = PostLocalSGDOptimizer(optim=sgd(model), averager=averager)
    return numbers([train(model, 6, optimizer), weights(model)])


@case(ranks=4)
def hierarchical_averaging() -> Numbers:
    from collections import OrderedDict

    model = net(norm=False)
    periods = OrderedDict([(1, 2), (2, 4)])
    averager = hierarchical_model_averager.HierarchicalModelAverager(period_group_size_dict=periods)
    optimizer = sgd(model)
    for batch in batches(4):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        averager.average_parameters(model.parameters())
    return numbers(weights(model))


@case()
def optimizer_overlap() -> Numbers:
    from torch.distributed.optim.functional_sgd import _FunctionalSGD

    model = DDP(net(norm=False), bucket_cap_mb=0.01)
    state = optimizer_overlap_hooks._OptimizerHookState(_FunctionalSGD([], lr=0.05, _allow_empty_param_list=True))
    hook = optimizer_overlap_hooks._hook_then_optimizer(default_hooks.allreduce_hook, state)
    model.register_comm_hook(None, hook)
    for batch in batches(4):
        model(batch).square().mean().backward()
    return numbers(weights(model))


@case()
def custom_with_a_chain_of_callbacks() -> Numbers:
    """All-reduce, then all-gather in the callback, then one more all-reduce in the callback's callback."""

    def hook(group: Any, bucket: Any) -> Any:
        size = group.size()
        buffer = bucket.buffer()
        padded = torch.nn.functional.pad(buffer / size, (0, -len(buffer) % size))
        summed = dist.all_reduce(padded, group=group, async_op=True).get_future()

        def gather(future: Future) -> torch.Tensor:
            whole: torch.Tensor = torch.empty_like(padded)
            shard = future.value()[0].chunk(size)[group.rank()]
            dist.all_gather_into_tensor(whole, shard, group=group)
            return whole[: len(buffer)]

        def check(future: Future) -> torch.Tensor:
            total = future.value().sum().reshape(1)
            mine = total.clone()
            dist.all_reduce(total, group=group)
            assert torch.allclose(total, mine * size)
            result: torch.Tensor = buffer.copy_(future.value())
            return result

        return summed.then(gather).then(check)

    # DDP would read them, and knows only evaluated ones.
    hook.__annotations__.clear()
    return hooked(dist.group.WORLD, hook, ONE_BUCKET)
