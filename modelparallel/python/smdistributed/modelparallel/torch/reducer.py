"""Average gradients over the replicas of a model: bucketed all-reduce, overlapped with the backward pass.

torch's own reducer needs each parameter's hook to fire once a backward; here a parameter's gradient grows once for each
micro-batch, and once more for each re-use of its module. So a bucket is sent when every one of its gradients has grown
as often as in the last step; one that grows again afterwards is found at the end, by all replicas, and its bucket sent
anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

import torch
import torch.distributed as dist
from torch import nn

from . import marks
from .exceptions import SMPUnsupportedError
from .grad_bucket import Bucket, GradBucket, make_buckets, wait_for
from .state import state
from .topology import CommGroup

if TYPE_CHECKING:
    from .model import DistributedModel

CommHook = Callable[[Any, GradBucket], "torch.futures.Future[Any]"]


class Reducer:
    """Averages the gradients of this rank's parameters over the ranks that hold the same ones."""

    def __init__(
        self, parameters: dict[CommGroup, list[nn.Parameter]], bucket_bytes: int, overlap: bool, every: int
    ) -> None:
        self._every = every
        self._overlap = overlap
        self._steps = 0
        self._buckets: list[Bucket] = []
        for kind, members in parameters.items():
            if len(state.groups.members[kind]) > 1:
                self._buckets += make_buckets(members, bucket_bytes, kind)
        self._counts: dict[int, int] = {}
        self._expected: dict[int, int] = {}
        self._bucket_of: dict[int, Bucket] = {}
        self._next = 0
        self._syncing = False
        self._held = False
        self._hook: tuple[Any, CommHook] | None = None
        self._joining = False
        self._running = 0
        self._divide_by_all = True
        self._joined_steps = 0
        for bucket in self._buckets:
            for parameter in bucket.parameters:
                self._bucket_of[id(parameter)] = bucket
                if overlap and hasattr(parameter, "register_post_accumulate_grad_hook"):
                    parameter.register_post_accumulate_grad_hook(self._grown)  # type: ignore[no-untyped-call]

    @staticmethod
    def of(model: DistributedModel) -> Reducer | None:
        """Return the reducer of a partitioned model; None where no parameter has a replica."""
        if state.cfg.sharded_data_parallel_degree > 1:
            return None  # the sharding library reduces as it goes
        found: dict[CommGroup, list[nn.Parameter]] = {}
        for kind, tensors in model.replicated_tensors(buffers=False).items():
            found[kind] = [t for t in tensors if isinstance(t, nn.Parameter) and t.requires_grad]
        reducer = Reducer(found, model.bucket_bytes, model.overlapping_allreduce, model.backward_passes_per_step)
        return reducer if len(state.groups.members[CommGroup.DP_GROUP]) > 1 else None

    @property
    def hooked(self) -> bool:
        """Whether a communication hook averages, over micro-batches too."""
        return self._hook is not None

    def set_hook(self, hook_state: Any, hook: CommHook) -> None:
        """Let `hook(hook_state, bucket)` reduce buckets; its future's value is the bucket's new buffer."""
        self._hook = (hook_state, hook)

    def join(self, divide_by_all: bool) -> None:
        """Begin a block in which replicas may take different numbers of steps.

        Args:
            divide_by_all: averages count replicas that are done as zeros; False: they count those that still run.

        Raises:
            SMPUnsupportedError: a communication hook averages, or every n-th step does.
        """
        if self.hooked or self._every > 1:
            raise SMPUnsupportedError("model.join with a communication hook, or with backward_passes_per_step over 1")
        self._joining, self._divide_by_all, self._joined_steps = True, divide_by_all, 0

    def leave(self) -> int:
        """End the block: shadow the others' steps until all have ended it. Returns how many steps this replica took."""
        while self._running_replicas(own=0):
            for bucket in self._buckets:
                bucket.reset({})
            self._next = 0
            with state.server.relay.explaining():
                self._complete(shadow=True)
        self._joining = False
        return self._joined_steps

    def _running_replicas(self, own: int) -> int:
        device = self._buckets[0].device if self._buckets else state.server.settings.device
        count = torch.tensor([own], dtype=torch.int32, device=device)
        wait_for(dist.all_reduce(count, group=state.groups.process[CommGroup.DP_GROUP], async_op=True), count)
        self._running = int(count)
        return self._running

    def begin_step(self, held: bool = False) -> None:
        """Forget the last step's counts; whether this step's gradients are averaged is known here: not if `held`."""
        self._counts = {}
        self._next = 0
        # In a joined block it is known only at the end of a step who else takes it: nothing is sent before.
        self._syncing = (self._steps + 1) % self._every == 0 and not self._joining and not held
        self._held = held
        for bucket in self._buckets:
            bucket.reset(self._expected)

    def end_step(self) -> None:
        """Complete the averages; every replica calls this after a step with a backward."""
        self._steps += 1
        syncing, self._expected = self._syncing or (self._joining and not self._held), self._counts
        self._syncing = False
        if not syncing:
            return
        with state.server.relay.explaining():
            if self._joining:
                self._joined_steps += 1
                self._running_replicas(own=1)
            self._complete()

    def _complete(self, shadow: bool = False) -> None:
        if shadow:
            for bucket in self._buckets:
                bucket.shadowed = True
        while self._next < len(self._buckets):
            self._launch(self._buckets[self._next])
            self._next += 1
        used, again = self._agree()
        for bucket, repeat in zip(self._buckets, again):
            if repeat:
                bucket.wait()
                self._launch(bucket)
        for bucket, flags in zip(self._buckets, used):
            bucket.finish([False] * len(flags) if shadow else flags)
            bucket.shadowed = False

    def _grown(self, parameter: torch.Tensor) -> None:
        """Count an accumulation; called by autograd in the thread of a task, one at a time."""
        key = id(parameter)
        self._counts[key] = count = self._counts.get(key, 0) + 1
        if not self._syncing:
            return
        bucket = self._bucket_of[key]
        if bucket.launched:
            bucket.late = True
        elif count == self._expected.get(key):
            bucket.missing -= 1
            # In the order of the buckets: the collectives of a group must come in one order on all replicas.
            while self._next < len(self._buckets) and self._buckets[self._next].missing == 0:
                self._launch(self._buckets[self._next])
                self._next += 1

    def _launch(self, bucket: Bucket) -> None:
        bucket.fill()
        group = state.groups.process[bucket.kind]
        if self._hook is not None:
            bucket.future = self._hook[1](self._hook[0], GradBucket(bucket, self._buckets))
            return
        counted = len(state.groups.members[bucket.kind])
        if self._joining and not self._divide_by_all:
            counted = self._running
        bucket.buffer.div_(counted)
        bucket.work = dist.all_reduce(bucket.buffer, group=group, async_op=True)
        marks.sends("all_reduce", bucket.buffer.numel() * bucket.buffer.element_size())

    def _agree(self) -> tuple[list[list[bool]], list[bool]]:
        """Return, agreed by all replicas: which gradients exist anywhere, which buckets grew after they were sent."""
        used: list[list[bool]] = []
        again: list[bool] = []
        by_kind: dict[CommGroup, torch.Tensor] = {}
        for kind in dict.fromkeys(bucket.kind for bucket in self._buckets):
            own = [b for b in self._buckets if b.kind is kind]
            flags = [[int(p.grad is not None and not b.shadowed) for p in b.parameters] + [int(b.late)] for b in own]
            flat = torch.tensor([flag for row in flags for flag in row], dtype=torch.int32, device=own[0].device)
            group = state.groups.process[kind]
            wait_for(dist.all_reduce(flat, op=dist.ReduceOp.MAX, group=group, async_op=True), flat)
            by_kind[kind] = flat.cpu()
        offset = dict.fromkeys(by_kind, 0)
        for bucket in self._buckets:
            begin = offset[bucket.kind]
            end = begin + len(bucket.parameters)
            row = by_kind[bucket.kind][begin : end + 1].bool().tolist()
            offset[bucket.kind] = end + 1
            used.append(row[:-1])
            again.append(row[-1])
        return used, again
