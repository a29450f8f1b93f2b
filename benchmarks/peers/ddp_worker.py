"""A rank of a training job under DistributedDataParallel.

    ddp_worker.py smddp|gloo|mpi NETWORK

Commands (see ``harness/job.py``): ``check ROUNDOFF`` runs a step and compares its gradients with a mean in double
precision, ``steps SYNC COUNT`` times steps with (1) or without (0) synchronisation.
"""

# Annotations are evaluated: DDP looks at those of a communication hook and refuses strings.
import contextlib
import os
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from channel import cpu_seconds, leave, serve
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from harness.ddp import NETWORKS, Network


class _Slept(torch.autograd.Function):
    """Sleeps as long as a layer would compute; hands each parameter the gradient it is given."""

    @staticmethod
    def forward(ctx: Any, values: torch.Tensor, layer: "SleepingLayer", *_parameters: torch.Tensor) -> torch.Tensor:
        ctx.layer = layer
        time.sleep(layer.forward_seconds)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        time.sleep(ctx.layer.backward_seconds)
        return (*gradients, None, *ctx.layer.gradients)


class SleepingLayer(nn.Module):
    """A layer of the right size whose computation costs time and no processor."""

    def __init__(self, network: Network, index: int) -> None:
        super().__init__()
        shapes = network.layers[index]
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
        self.gradients = [torch.randn(shape) for shape in shapes]
        self.forward_seconds = network.share(network.forward_seconds, index)
        self.backward_seconds = network.share(network.backward_seconds, index)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = _Slept.apply(values, self, *self.weights)  # type: ignore[no-untyped-call]
        return result


def build(network: Network) -> tuple[nn.Module, torch.Tensor]:
    """The model and a batch for it."""
    if network.backward_seconds:
        return nn.Sequential(*(SleepingLayer(network, index) for index in range(len(network.layers)))), torch.zeros(1)
    layers: list[nn.Module] = []
    for weight, *_ in network.layers:
        layers += [nn.Linear(weight[1], weight[0]), nn.ReLU()]
    return nn.Sequential(*layers[:-1]), torch.randn(network.batch, network.layers[0][0][1])


def by_mpi(model: DistributedDataParallel) -> None:
    """Reduce each bucket by MPI_Allreduce on a thread of its own: what a training script would do without an MPI back
    end in torch."""
    from mpi4py import MPI

    world, crew = MPI.COMM_WORLD, ThreadPoolExecutor(1)

    def reduce(buffer: torch.Tensor, future: torch.futures.Future[torch.Tensor]) -> None:
        world.Allreduce(MPI.IN_PLACE, buffer.numpy(), op=MPI.SUM)
        future.set_result(buffer)

    def hook(_state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        crew.submit(reduce, bucket.buffer().div_(dist.get_world_size()), future)
        return future

    model.register_comm_hook(None, hook)


class Trainer:
    """One model on one back end."""

    def __init__(self, library: str, network: Network) -> None:
        if library == "smddp":
            import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
        dist.init_process_group("smddp" if library == "smddp" else "gloo")
        self.reference = dist.new_group(backend="gloo")
        torch.manual_seed(0)
        model, _ = build(network)
        torch.manual_seed(1 + dist.get_rank())  # Each rank has data of its own.
        _, self.batch = build(network)
        for layer in model.children():
            if isinstance(layer, SleepingLayer):
                layer.gradients = [torch.randn_like(gradient) for gradient in layer.gradients]
        self.model = DistributedDataParallel(
            model, bucket_cap_mb=network.bucket_megabytes, gradient_as_bucket_view=True
        )
        if library == "mpi":
            by_mpi(self.model)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.0)
        # A slept network does without: each host has cores of its own for it, and eight hosts' optimizers on two cores
        # took 23 to 35 ms of a step, one host's 4 to 7.
        self.updates = network.backward_seconds == 0

    def step(self, *, synchronised: bool) -> float:
        """Seconds of forward, backward and the optimizer, if it runs; gradients stay until the next call."""
        self.optimizer.zero_grad(set_to_none=False)
        dist.barrier(self.reference)
        start = time.perf_counter()
        with _nothing() if synchronised else self.model.no_sync():
            self.model(self.batch).pow(2).mean().backward()
        if self.updates:
            self.optimizer.step()
        return time.perf_counter() - start

    def gradients(self) -> torch.Tensor:
        found = [parameter.grad for parameter in self.model.parameters()]
        return torch.cat([gradient.double().flatten() for gradient in found if gradient is not None])

    def check(self, roundoff: float) -> str:
        """``ok WRONG``: how many gradients are further from the mean than rounding explains."""
        self.step(synchronised=False)
        own = self.gradients()
        mean, magnitude = own.clone(), own.abs()
        for tensor in (mean, magnitude):
            dist.all_reduce(tensor, group=self.reference)
        ranks = dist.get_world_size()
        # The mean rounds once more than the sum; computed gradients may differ in their last places between runs.
        allowed = (ranks + 2) * roundoff * magnitude / ranks + 1e-9
        wrong = 0
        for _ in range(2):  # DDP arranges its buckets anew after the first step.
            self.step(synchronised=True)
            wrong += int(((self.gradients() - mean / ranks).abs() > allowed).sum())
        return f"ok {wrong}"

    def steps(self, synchronised: bool, count: int) -> str:
        cpu = cpu_seconds()
        times = [self.step(synchronised=synchronised) for _ in range(count)]
        return f"ok 0 {(cpu_seconds() - cpu) / count:.9g} " + " ".join(f"{seconds:.9g}" for seconds in times)


@contextlib.contextmanager
def _nothing() -> Iterator[None]:
    yield


def main() -> None:
    library, network = sys.argv[1], NETWORKS[sys.argv[2]]
    if library == "mpi":
        os.environ.update(
            {"RANK": os.environ["OMPI_COMM_WORLD_RANK"], "WORLD_SIZE": os.environ["OMPI_COMM_WORLD_SIZE"]}
        )
    torch.set_num_threads(1)
    trainer = Trainer(library, network)

    def handle(verb: str, words: list[str]) -> str:
        return trainer.check(float(words[0])) if verb == "check" else trainer.steps(words[0] == "1", int(words[1]))

    serve(dist.get_rank(), handle)
    dist.destroy_process_group()
    if library == "mpi":
        from mpi4py import MPI

        MPI.Finalize()
    leave()


if __name__ == "__main__":
    main()
