"""`smp.DistributedModel`: the user's model, its modules on several ranks, called as before."""

from __future__ import annotations

import contextlib
from collections import OrderedDict
from typing import Any, Callable, Iterator, Mapping, Sequence, Union

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from . import checks, model_state
from .exceptions import SMPUnsupportedError, SMPValueError
from .join import joined
from .outside import OutsideSteps
from .placed import PlacedModule
from .prepare import prepare
from .reducer import CommHook, Reducer
from .refusals import check_model
from .server.server import task_of
from .server.tasks import Phase, current
from .state import state
from .tp import distribute

Tensors = Union[torch.Tensor, Sequence[torch.Tensor]]
Hook = Callable[["DistributedModel", Any], None]


class DistributedModel(PlacedModule):
    """Wrap the one model of a script; the first call of a step function partitions it.

    Args:
        module: the model; it need not be on a device.
        trace_device: accepted; the trace runs where the parameters are.
        trace_execution_times: measure modules rather than count their operations.
        overlapping_allreduce: average gradients over replicas while the backward pass still runs.
        backward_passes_per_step: average only after so many steps with a backward (gradient accumulation).
        average_grads_across_microbatches: `.grad` is the mean over micro-batches; False: the sum.
        bucket_cap_mb: gradients are averaged in buckets of about so many MiB.
        trace_memory_usage: measure what autograd keeps rather than estimate it.
        broadcast_buffers: replicas start with the buffers of the first.
        gradient_as_bucket_view: accepted: gradients keep their own memory.
        find_unused_parameters: accepted: parameters without a gradient are always found.

    Raises:
        SMPValueError: not an nn.Module.
        SMPUnsupportedError: a second model, or one that cannot be distributed.
    """

    def __init__(
        self,
        module: nn.Module,
        trace_device: str = "gpu",
        trace_execution_times: bool = False,
        overlapping_allreduce: bool = True,
        backward_passes_per_step: int = 1,
        average_grads_across_microbatches: bool = True,
        bucket_cap_mb: int = 25,
        trace_memory_usage: bool = False,
        broadcast_buffers: bool = True,
        gradient_as_bucket_view: bool = False,
        find_unused_parameters: bool = False,
    ) -> None:
        super().__init__()
        state.require()
        check_model(module)
        options = {name: value for name, value in locals().items() if name not in ("self", "module", "__class__")}
        _check_options(**options)
        if state.model is not None:
            raise SMPUnsupportedError("smp.DistributedModel was called before: a script has one distributed model")
        self.module = distribute(module)  # also of degree 1: clients look for the modules that it makes
        self.trace_execution_times = trace_execution_times
        self.trace_memory_usage = trace_memory_usage
        self.broadcast_buffers = broadcast_buffers
        self.overlapping_allreduce = overlapping_allreduce
        self.backward_passes_per_step = backward_passes_per_step
        self.average_grads_across_microbatches = average_grads_across_microbatches
        self.bucket_bytes = int(bucket_cap_mb * 1024 * 1024)
        # OrderedDict: a handle refers to it weakly, which a dict does not allow.
        self._post_partition: OrderedDict[int, Hook] = OrderedDict()
        self._post_step: OrderedDict[int, Hook] = OrderedDict()
        self.reducer: Reducer | None = None
        self._on_reducer: list[Callable[[Reducer], None]] = []
        self._backward_ran = False
        self._hooked = False
        self._held = False
        self._outside = OutsideSteps(self)
        state.model = self
        if state.server.settings.pp_size == 1:
            prepare(self, None)

    def placed(self, owner: dict[str, int]) -> None:
        """Note the partition, and run what waits for it; called once, by prepare."""
        self._owner = owner
        self.reducer = Reducer.of(self)
        if self.reducer is not None:
            for settle in self._on_reducer:
                settle(self.reducer)
        _after_partition(self)
        for hook in list(self._post_partition.values()):
            hook(self, state.optimizer)

    # -- running

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the model on one micro-batch, inside a step function; returns what the module returns, on every rank.

        Raises:
            SMPUnsupportedError: outside a step (where one rank holds the whole model, that is allowed).
        """
        task = current()
        if state.server.settings.pp_size == 1 or (task is not None and task.tracing):
            output = self.module(*args, **kwargs)
            if task is None:
                self._outside.watch(output)
            return output
        task = task_of("the model is called")
        task.passes += 1
        if not state.server.drives:
            return state.server.await_output(task)
        task.inside = True
        try:
            output = self.module(*args, **kwargs)
        finally:
            task.inside = False
        state.server.publish(task, output)
        return output

    def backward(self, tensors: Tensors, grad_tensors: Tensors | None = None) -> None:
        """Take the place of `tensor.backward`; every rank calls it, in the step function.

        Where one rank has the whole model, it may be called outside too, as may `tensor.backward` itself.

        Args:
            tensors: what the gradients are of; scalars, unless `grad_tensors` has their gradients.
            grad_tensors: a tensor for each of `tensors`, of its shape; None inside stands for ones.

        Raises:
            SMPUnsupportedError: outside a step, with a pipeline.
            SMPValueError: not tensors.
        """
        alone = current() is None and state.server.settings.pp_size == 1
        task = None if alone else task_of("model.backward is called")
        outputs = _listed(tensors, "tensors")
        given = [None] * len(outputs) if grad_tensors is None else _listed(grad_tensors, "grad_tensors")
        if len(given) != len(outputs):
            raise SMPValueError(
                f"model.backward: {len(outputs)} tensors and {len(given)} grad_tensors: give one for each"
            )
        if task is None:
            scale = 1.0 if state.loss_scale is None else state.loss_scale()
            torch.autograd.backward(
                outputs, [_root_gradient(output, gradient, scale) for output, gradient in zip(outputs, given)]
            )
            return
        self._backward_ran = True
        if task.tracing or not state.server.drives:
            return
        task.phase = Phase.BACKWARD
        if state.server.settings.pp_size > 1 and state.cfg.pipeline == "simple":
            state.server.running.hold_backward(task)
        scale = self._scale()
        gradients = [_root_gradient(output, gradient, scale) for output, gradient in zip(outputs, given)]
        task.inside = True
        torch.autograd.backward(outputs, gradients)
        task.inside = False

    def _scale(self) -> float:
        average = self.average_grads_across_microbatches and not self._hooked
        scale = 1.0 / state.cfg.microbatches if average else 1.0
        return scale if state.loss_scale is None else scale * state.loss_scale()

    def begin_step(self) -> None:
        """Called by the step function before its bodies run."""
        self._backward_ran = False
        if self.reducer is not None:
            self.reducer.begin_step(self._held)

    def begin_backward(self) -> None:
        """Called in place of begin_step by a backward pass outside of steps."""
        self.begin_step()
        self._backward_ran = True

    def end_step(self) -> None:
        """Called by the step function when all bodies have run: complete the gradients, run the hooks."""
        if self._backward_ran:
            if self.reducer is not None:
                self.reducer.end_step()
            for function in state.after_backward:
                function()
        hooks = list(self._post_step.values())
        self._post_step.clear()
        for hook in hooks:
            hook(self, state.optimizer)

    # -- hooks

    def register_post_partition_hook(self, hook: Hook) -> RemovableHandle:
        """Run `hook(model, optimizer)` once the model is partitioned: in the first step, before its first forward."""
        checks.function("model.register_post_partition_hook", "hook", hook)
        handle = RemovableHandle(self._post_partition)
        if self.partitioned:
            hook(self, state.optimizer)
        else:
            self._post_partition[handle.id] = hook
        return handle

    def register_post_step_hook(self, hook: Hook) -> RemovableHandle:
        """Run `hook(model, optimizer)` once, at the end of the next step: there an optimizer's state can be loaded.

        Clients load the state of a checkpoint in it, which must not come back after later steps.
        """
        checks.function("model.register_post_step_hook", "hook", hook)
        handle = RemovableHandle(self._post_step)
        self._post_step[handle.id] = hook
        return handle

    def register_comm_hook(self, hook_state: Any, hook: CommHook) -> None:
        """Let `hook(hook_state, bucket)` reduce the gradients instead of an all-reduce.

        Args:
            hook_state: given to the hook.
            hook: as for torch's DistributedDataParallel; its bucket has the methods of torch.distributed.GradBucket. It
                averages over the replicas and over the micro-batches: the gradients are sums over them.

        Raises:
            SMPUnsupportedError: without ddp, without overlapping_allreduce, or a second hook.
            SMPValueError: no function.
        """
        checks.function("model.register_comm_hook", "hook", hook)
        if not state.cfg.ddp or not self.overlapping_allreduce:
            raise SMPUnsupportedError("register_comm_hook needs ddp: true and overlapping_allreduce=True")
        if self._hooked:
            raise SMPUnsupportedError("register_comm_hook was called before: a model has one communication hook")
        self._hooked = True
        self.on_reducer(lambda reducer: reducer.set_hook(hook_state, hook))

    _register_comm_hook = register_comm_hook

    def on_reducer(self, settle: Callable[[Reducer], None]) -> None:
        """Call `settle` with what averages gradients, now or once there is one."""
        if self.reducer is not None:
            settle(self.reducer)
        else:
            self._on_reducer.append(settle)

    def join(self, divide_by_initial_world_size: bool = True) -> contextlib.AbstractContextManager[None]:
        """Return a context in which replicas may run different numbers of steps (with ddp only).

        Args:
            divide_by_initial_world_size: gradients are divided by the number of replicas, also of those that are done.

        Raises:
            SMPUnsupportedError: without ddp.
        """
        if not state.cfg.ddp:
            raise SMPUnsupportedError("model.join needs ddp: true: there are no replicas to wait for")
        return joined(self, checks.flag("model.join", "divide_by_initial_world_size", divide_by_initial_world_size))

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context whose steps leave gradients as they are on each replica; the first step after it averages them.

        As that of torch's DistributedDataParallel: for gradient accumulation, where backward_passes_per_step does not
        fit. Nothing is lost without it: gradients that were averaged already stay the same when they are again.
        """
        before, self._held = self._held, True
        try:
            yield
        finally:
            self._held = before

    # -- state

    def local_state_dict(self, *_args: Any, **_kwargs: Any) -> dict[str, Any]:
        """Return this rank's part of the state, and `_smp_is_partial`: True.

        Raises:
            SMPUnsupportedError: before the first step.
        """
        return model_state.local_state_dict(self)

    def state_dict(  # type: ignore[override]
        self, *_args: Any, gather_to_rank0: bool = False, **_kwargs: Any
    ) -> dict[str, Any]:
        """Return the whole state, with the keys of the plain module; all ranks of a replica must call it.

        Args:
            _args, _kwargs: as of nn.Module.state_dict; ignored.
            gather_to_rank0: only mp rank 0 gets it; the others an empty dict.
        """
        return model_state.state_dict(self, checks.flag("model.state_dict", "gather_to_rank0", gather_to_rank0))

    def load_state_dict(  # type: ignore[override]
        self, state_dict: dict[str, Any], strict: bool = True, same_partition_load: bool = False, **_kwargs: Any
    ) -> Any:
        """Load a state: whole or partial, of this class or of a plain module, before or after the first step.

        Args:
            state_dict: partial ones (with `_smp_is_partial`) are merged over the ranks of a replica: all must call.
            strict: keys must be exactly the model's.
            same_partition_load: a partial state is of the same partition: nothing is exchanged.
            _kwargs: as of nn.Module.load_state_dict; ignored.

        Raises:
            RuntimeError: keys or shapes do not fit, as nn.Module.load_state_dict says it.
            SMPValueError: no dictionary.
        """
        where = "model.load_state_dict"
        if not isinstance(state_dict, Mapping):
            checks.refuse(where, "state_dict", state_dict, "a dictionary of tensors by name")
        strict = checks.flag(where, "strict", strict)
        same_partition_load = checks.flag(where, "same_partition_load", same_partition_load)
        return model_state.load_state_dict(self, state_dict, strict, same_partition_load)

    # -- devices: the library moves each part to its rank's device

    def to(self, *args: Any, **kwargs: Any) -> DistributedModel:
        """Convert the dtype if one is given; a device is ignored: each part is moved to its own rank's device."""
        _device, dtype, _, _ = torch._C._nn._parse_to(*args, **kwargs)
        if dtype is not None:
            self.module.to(dtype=dtype)
        return self

    def cuda(self, _device: Any = None) -> DistributedModel:
        """Do nothing: each part is moved to its own rank's device."""
        return self

    def cpu(self) -> DistributedModel:
        """Collect the whole model on every rank, in host memory: for use after training (all ranks call it)."""
        model_state.gather_to_cpu(self)
        return self


def _check_options(
    trace_device: str, trace_execution_times: bool, backward_passes_per_step: int, bucket_cap_mb: float, **flags: bool
) -> None:
    where = "smp.DistributedModel"
    for name, value in {"trace_execution_times": trace_execution_times, **flags}.items():
        checks.flag(where, name, value)
    checks.whole(where, "backward_passes_per_step", backward_passes_per_step, least=1)
    checks.positive(where, "bucket_cap_mb", bucket_cap_mb)
    if trace_device not in ("gpu", "cpu"):
        checks.refuse(where, "trace_device", trace_device, "'gpu' or 'cpu'")
    if trace_device == "cpu" and trace_execution_times and torch.cuda.is_available():
        raise SMPValueError("trace_execution_times with trace_device='cpu' would measure the wrong device: use 'gpu'")


def _after_partition(model: DistributedModel) -> None:
    from . import activation

    activation.after_partition(model)


def _listed(tensors: Tensors, what: str) -> list[Any]:
    several = isinstance(tensors, Sequence) and not isinstance(tensors, str)
    listed: list[Any] = list(tensors) if several else [tensors]
    allowed = (torch.Tensor, type(None)) if what == "grad_tensors" else (torch.Tensor,)
    for tensor in listed:
        if not isinstance(tensor, allowed):
            checks.refuse("model.backward", f"one of {what}", tensor, "a tensor")
    if not listed:
        checks.refuse("model.backward", what, tensors, "a tensor, or a list of at least one")
    return listed


def _root_gradient(output: torch.Tensor, gradient: torch.Tensor | None, scale: float) -> torch.Tensor | None:
    if gradient is not None:
        return gradient if scale == 1.0 else gradient * scale
    if output.numel() != 1:
        raise SMPValueError(
            f"model.backward: a tensor of shape {list(output.shape)} needs its gradient: "
            "reduce it to a scalar, or give grad_tensors"
        )
    return torch.full_like(output, scale, requires_grad=False)
