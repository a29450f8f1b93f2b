"""`smp.DistributedOptimizer`: the script's optimizer, with a state that is spread over ranks."""

from __future__ import annotations

from typing import Any, Iterator, Mapping

import torch
import torch.distributed as dist
from torch import nn

from .. import checks, fp16, sharding
from ..exceptions import SMPUnsupportedError
from ..refusals import refuse_inside_step
from ..state import state
from . import norms, ownership, state_dicts
from .parts import Parts
from .state_dicts import StateDict


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    static_loss_scale: float | None = 1.0,
    dynamic_loss_scale: bool = False,
    **dynamic_loss_args: Any,
) -> Any:
    """Make an optimizer fit for a distributed model.

    In float32 the same object is returned, so what holds it, as a learning rate scheduler, stays right; its state_dict,
    load_state_dict and zero_grad then know of partitions, and local_state_dict is new. With fp16 or bf16 in the
    configuration an Fp16Optimizer around it is returned.

    optimizer: of the model's parameters; without tensor parallelism it may have been built before smp.DistributedModel.
    static_loss_scale: what losses are multiplied by in fp16. dynamic_loss_scale: begin high and halve on overflow.
    dynamic_loss_args: init_scale 2**32, scale_factor 2.0, scale_window 1000, min_scale 1, delayed_shift 1,
    consecutive_hysteresis False; as keywords or as one dictionary under the name dynamic_loss_args.

    Raises SMPValueError for no optimizer, for parameters that are not the model's, or for wrong loss arguments,
    SMPUnsupportedError for an optimizer of apex.
    """
    state.require()
    _check(optimizer)
    if isinstance(optimizer, (Partitioned, fp16.Fp16Optimizer)):
        return optimizer
    dynamic = checks.flag("smp.DistributedOptimizer", "dynamic_loss_scale", dynamic_loss_scale) and not state.cfg.bf16
    scale = fp16.loss_scale(static_loss_scale, dynamic, _loss_arguments(dynamic_loss_args))
    ownership.check_trained(parameter for group in optimizer.param_groups for parameter in group["params"])
    partitioned = _adopt(optimizer)
    half = state.cfg.fp16 or state.cfg.bf16
    state.optimizer = fp16.Fp16Optimizer(partitioned, scale) if half else partitioned
    return state.optimizer


def _loss_arguments(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments by keyword, and those in a dictionary under the name that clients give them together."""
    together = given.pop("dynamic_loss_args", None) or {}
    if not isinstance(together, Mapping):
        checks.refuse("smp.DistributedOptimizer", "dynamic_loss_args", together, "a dictionary")
    return {**together, **given}


def _check(optimizer: Any) -> None:
    kind = type(optimizer)
    if kind.__module__.startswith("apex."):
        raise SMPUnsupportedError(
            f"smp.DistributedOptimizer was given {kind.__module__}.{kind.__name__}: use the one of that name in "
            "smp.optimizers, or a torch.optim optimizer"
        )
    if not isinstance(optimizer, (torch.optim.Optimizer, fp16.Fp16Optimizer)):
        checks.refuse("smp.DistributedOptimizer", "optimizer", optimizer, "a torch.optim.Optimizer")


def _adopt(optimizer: torch.optim.Optimizer) -> Partitioned:
    kind = type(optimizer)
    # The class and not attributes of the object: `isinstance` stays true, and `super()` works.
    optimizer.__class__ = type(kind.__name__, (Partitioned, kind), {"__module__": kind.__module__})
    assert isinstance(optimizer, Partitioned)
    optimizer.begin()
    return optimizer


class Partitioned(torch.optim.Optimizer):
    """What DistributedOptimizer adds to the class of an optimizer. Never created itself."""

    _parts: Parts | None
    _pending: StateDict | None
    _global_grad_norm: float
    # transformers' Trainer gives accelerate the optimizer, whose wrapper would hide local_state_dict from the Trainer.
    _is_accelerate_prepared = True
    step_was_skipped = False

    def begin(self) -> None:
        """Called once, when the optimizer becomes one of these."""
        self._parts = None
        self._pending = None
        self._masters = bool(state.cfg.fp16 or state.cfg.bf16)
        self._global_grad_norm = 0.0
        if not self._masters:
            # Hooks and not an override: learning rate schedulers keep the step that they found.
            self.register_step_pre_hook(_before_step)
            self.register_step_post_hook(_after_step)

    def parts(self) -> Parts:
        """What is updated on this rank.

        Raises SMPUnsupportedError before the first step of a model in several partitions.
        """
        if self._parts is None:
            if not ownership.is_placed():
                raise SMPUnsupportedError(
                    "the optimizer is used before the model is partitioned: call the smp.step function once before, or "
                    "do this in a function given to model.register_post_partition_hook"
                )
            self._parts = Parts(self, sharded=state.cfg.shard_optimizer_state, masters=self._masters)
            if self._masters and state.model is not None:
                state.model.module.register_load_state_dict_post_hook(self._weights_loaded)
            if self._pending is not None:
                pending, self._pending = self._pending, None
                self._load(pending)
        return self._parts

    def _weights_loaded(self, _module: nn.Module, _keys: Any) -> None:
        assert self._parts is not None
        self._parts.refresh_masters()

    def zero_grad(self, set_to_none: bool | None = None) -> None:
        """Clear the gradients of all of the model's parameters that this optimizer has."""
        refuse_inside_step("optimizer.zero_grad is called", "it would clear what other micro-batches have added")
        if set_to_none is None:
            set_to_none = getattr(self, "_set_grad_none", True)  # those of smp.optimizers have a default of their own
        if self._parts is not None:
            for source in self._parts.sources():
                _clear(source, set_to_none)
        super().zero_grad(set_to_none)

    def model_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters that the optimizer was built with, whatever part of them it updates here."""
        if self._parts is not None:
            return self._parts.sources()
        return (parameter for group in self.param_groups for parameter in group["params"])

    def gradients_of_replica(self) -> list[torch.Tensor]:
        """The model's parameters of this rank with their whole gradients: of what a global norm is taken."""
        return list(self.parts().owned())

    # What published clients of sharded data parallelism read, by the names that DeepSpeed gave it.

    @property
    def ds_param_shard_group(self) -> dist.ProcessGroup | None:
        """The ranks that together have all shards of the model; None without sharded data parallelism."""
        return sharding.shard_group()

    @property
    def fp32_partitioned_groups_flat(self) -> list[torch.Tensor]:
        """This rank's parts of the parameters, by group, in one dimension: a copy that each step brings up to date.

        Raises SMPUnsupportedError without sharded data parallelism.
        """
        if sharding.shard_group() is None:
            raise SMPUnsupportedError("fp32_partitioned_groups_flat needs sharded_data_parallel_degree of at least 2")
        return self.parts().flat_groups()

    def local_state_dict(self, gather_if_shard: bool = True) -> StateDict:
        """Return this rank's part of the state, and `_smp_is_partial`: True.

        gather_if_shard: with shard_optimizer_state, make it whole from the replicas' pieces; all of them must call.
        """
        local = state_dicts.of_parts(self, self.parts())
        return state_dicts.whole(local, self.parts()) if gather_if_shard else local

    def state_dict(self) -> StateDict:
        """Return the state of all parameters; all ranks of a replica must call it (with sharded state: all ranks).

        Before the first step it is what it is of a new optimizer. Raises SMPUnsupportedError with tensor parallelism.
        """
        if not ownership.is_placed():
            found: StateDict = super().state_dict()
            return found
        local = self.local_state_dict()
        if state.model is None or (state.topology.pp == 1 and state.topology.tp == 1):
            return {name: value for name, value in local.items() if name != state_dicts.PARTIAL}
        return state_dicts.full(local)

    def load_state_dict(self, state_dict: StateDict, gather_if_shard: bool = True) -> None:
        """Load a state: of this class, whole or partial, or of a plain optimizer.

        Before the model is partitioned only the groups' options (learning rate, ...) are loaded, the rest when it is
        (statement 35). Partial ones are merged over the ranks of a replica: all must call.
        gather_if_shard: as given when it was saved; what it is can be seen, so it is not looked at.

        Raises SMPValueError for a state of another optimizer.
        """
        del gather_if_shard
        if ownership.is_placed():
            self.parts()
            self._load(state_dict)
            return
        state_dicts.check_groups(state_dict, [len(group["params"]) for group in self.param_groups])
        for group, saved in zip(self.param_groups, state_dict["param_groups"]):
            group.update({name: value for name, value in saved.items() if name != "params"})
        self._pending = state_dict
        if state.model is not None:
            state.model.register_post_partition_hook(lambda _model, _optimizer: self.parts())

    def _load(self, given: StateDict) -> None:
        assert self._parts is not None
        super().load_state_dict(state_dicts.for_parts(self, self._parts, given))


def _before_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    assert isinstance(optimizer, Partitioned)
    refuse_inside_step("optimizer.step is called", "gradients are complete when the step function has returned")
    optimizer.parts().take_gradients()
    limit = norms.step_clipping()
    if limit:
        optimizer._global_grad_norm = norms.global_norm(optimizer.parts().owned())
        optimizer.parts().clip(limit, optimizer._global_grad_norm)


def _after_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    assert isinstance(optimizer, Partitioned)
    optimizer.parts().give_values()


def _clear(parameter: nn.Parameter, set_to_none: bool) -> None:
    if parameter.grad is None:
        return
    if set_to_none:
        parameter.grad = None
    else:
        parameter.grad.detach_().zero_()
