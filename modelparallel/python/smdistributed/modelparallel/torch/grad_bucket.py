"""A bucket of gradients: a flat buffer that is reduced as one, and its face towards communication hooks."""

from __future__ import annotations

import time
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import nn

from . import marks
from .state import state
from .topology import CommGroup


class Bucket:
    """Some parameters of one dtype, device and group.

    Attributes:
        parameters: in the order in which their gradients are expected: the last layers first.
        buffer: flat, of all their gradients.
        missing: how many gradients have not yet grown as often as in the last step.
        shadowed: this replica has no batch left, and adds zeros.
        late: one grew after the buffer was filled.
    """

    def __init__(self, index: int, parameters: list[nn.Parameter], kind: CommGroup) -> None:
        self.index = index
        self.parameters = parameters
        self.kind = kind
        self.device = parameters[0].device
        self.buffer = torch.empty(0)
        self.launched = False
        self.late = False
        self.shadowed = False
        self.missing = len(parameters)
        self.work: dist.Work | None = None
        self.future: torch.futures.Future[Any] | None = None

    def reset(self, expected: dict[int, int]) -> None:
        """Begin a step in which gradients should grow as often as `expected` says, by the parameter's id."""
        self.launched = self.late = False
        self.work = self.future = None
        counted = [expected.get(id(parameter), 0) for parameter in self.parameters]
        # Nothing is known before the first step: then no bucket is sent before the end.
        self.missing = sum(1 for count in counted if count) if any(counted) else len(counted) + 1

    def fill(self) -> None:
        """Copy the gradients into the buffer; a parameter without one counts as zeros."""
        self.launched, self.late = True, False
        with torch.no_grad():
            if self.shadowed:
                size = sum(parameter.numel() for parameter in self.parameters)
                self.buffer = torch.zeros(size, dtype=self.parameters[0].dtype, device=self.device)
            else:
                self.buffer = torch.cat([_dense_gradient(parameter).reshape(-1) for parameter in self.parameters])

    def wait(self) -> None:
        """Wait for the reduction that is under way."""
        if self.work is not None:
            wait_for(self.work, self.buffer)
            self.work = None
        if self.future is not None:
            poll(self.future.done)
            result: Any = self.future.wait()
            self.buffer = result[0] if isinstance(result, (list, tuple)) else result
            self.future = None

    def finish(self, used: list[bool]) -> None:
        """Copy the reduced gradients back, those of parameters that some replica used."""
        self.wait()
        offset = 0
        with torch.no_grad():
            for parameter, exists in zip(self.parameters, used):
                size = parameter.numel()
                reduced = self.buffer[offset : offset + size].view_as(parameter)
                offset += size
                if not exists:
                    continue
                if parameter.grad is None or parameter.grad.is_sparse:
                    parameter.grad = reduced.clone()
                else:
                    parameter.grad.copy_(reduced)
        self.buffer = torch.empty(0)


def _dense_gradient(parameter: nn.Parameter) -> torch.Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    return parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad


def wait_for(work: dist.Work, tensor: torch.Tensor) -> None:
    """Wait for a collective, and give up when a replica fails: it would wait for ever, or for its own long time limit.

    Args:
        work: the collective.
        tensor: what it is about.

    Raises:
        SMPError: what happened to the other replica.
    """
    try:
        poll(work.is_completed)
    except BaseException:
        _given_up.append(tensor)
        raise
    work.wait()


# Kept for good. Else the thread that still works on them were the last to know them, and to drop a tensor it needs
# Python's lock: up to torch 2.3 at least the group that waits for that thread at exit holds it.
_given_up: list[torch.Tensor] = []


def poll(done: Callable[[], bool]) -> None:
    """Return when `done()`; raises as `Relay.check` does. It looks after microseconds first, then ever rarer."""
    began = time.monotonic()
    pause = 5e-5
    while not done():
        state.server.relay.check()
        time.sleep(pause)
        pause = min(pause * 1.3, 2e-3)
    if marks.counters is not None:
        marks.counters.add("all_reduce", seconds=time.monotonic() - began)


def make_buckets(parameters: list[nn.Parameter], bucket_bytes: int, kind: CommGroup) -> list[Bucket]:
    """Group parameters into buckets of about `bucket_bytes`, the last declared first: their gradients come first."""
    buckets: list[list[nn.Parameter]] = []
    open_bucket: dict[tuple[torch.dtype, torch.device], tuple[list[nn.Parameter], int]] = {}
    for parameter in reversed(parameters):
        key = (parameter.dtype, parameter.device)
        size = parameter.numel() * parameter.element_size()
        members, filled = open_bucket.get(key, ([], 0))
        if not members or filled + size > bucket_bytes:
            members, filled = [], 0
            buckets.append(members)
        members.append(parameter)
        open_bucket[key] = (members, filled + size)
    return [Bucket(index, members, kind) for index, members in enumerate(buckets)]


class GradBucket:
    """What a communication hook is given: the methods of torch.distributed.GradBucket, which Python cannot make."""

    def __init__(self, bucket: Bucket, all_buckets: list[Bucket]) -> None:
        self._bucket = bucket
        self._last = bucket is all_buckets[-1]

    def index(self) -> int:
        """Return the bucket's number."""
        return self._bucket.index

    def buffer(self) -> torch.Tensor:
        """Return the flat tensor of the bucket's gradients."""
        return self._bucket.buffer

    def set_buffer(self, buffer: torch.Tensor) -> None:
        """Replace the flat tensor; of the same number of elements."""
        self._bucket.buffer = buffer

    def gradients(self) -> list[torch.Tensor]:
        """Return the gradients as views of the flat tensor."""
        views, offset = [], 0
        for parameter in self._bucket.parameters:
            views.append(self._bucket.buffer[offset : offset + parameter.numel()].view_as(parameter))
            offset += parameter.numel()
        return views

    def parameters(self) -> list[torch.Tensor]:
        """Return the parameters whose gradients it holds."""
        return list(self._bucket.parameters)

    def is_last(self) -> bool:
        """Whether no bucket comes after it in this step."""
        return self._last
