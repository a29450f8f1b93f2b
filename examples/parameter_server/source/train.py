"""Train a small network with a parameter server: workers fetch the weights and send gradients, each at its own pace.

`train` starts this script once for each process of the job. ROLE_NAME and ROLE_RANK say which one it is; RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT are what init_rpc reads.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed.rpc as rpc
from torch import nn

CLASSES, FEATURES = 10, 32
ROLE, INDEX = os.environ["ROLE_NAME"], int(os.environ["ROLE_RANK"])


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))


def samples(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points around ten fixed centres, and which centre each belongs to."""
    centres = torch.randn(CLASSES, FEATURES, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(CLASSES, (count,), generator=generator)
    return centres[labels] + 1.5 * torch.randn(count, FEATURES, generator=generator), labels


def accuracy(model: nn.Module) -> float:
    inputs, labels = samples(4000, seed=2)
    with torch.no_grad():
        return float((model(inputs).argmax(1) == labels).float().mean())


class Server:
    """The weights. Gradients are applied in the order in which they come: nobody waits for anybody."""

    def __init__(self, learning_rate: float) -> None:
        self.model = network()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=learning_rate)
        self.updates = 0

    def weights(self) -> list[torch.Tensor]:
        return [parameter.detach() for parameter in self.model.parameters()]

    def update(self, gradients: list[torch.Tensor]) -> list[torch.Tensor]:
        for parameter, gradient in zip(self.model.parameters(), gradients, strict=True):
            parameter.grad = gradient
        self.optimizer.step()
        self.updates += 1
        return self.weights()


server: Server | None = None


def weights() -> list[torch.Tensor]:
    """Called by workers, in the server's process."""
    assert server is not None
    return server.weights()


def update(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    """Called by workers, in the server's process."""
    assert server is not None
    return server.update(gradients)


def work(steps: int, batch_size: int) -> None:
    model = network()
    current = rpc.rpc_sync("ps0", weights)
    for step in range(1, steps + 1):
        with torch.no_grad():
            for parameter, value in zip(model.parameters(), current, strict=True):
                parameter.copy_(value)
        inputs, labels = samples(batch_size, seed=1000 + step * int(os.environ["ROLE_WORLD_SIZE"]) + INDEX)
        loss = nn.functional.cross_entropy(model(inputs), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        current = rpc.rpc_sync("ps0", update, args=(list(gradients),))
        if step % 100 == 0:
            print(f"worker {INDEX}: step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    global server
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400, help="gradients that each worker sends")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--learning_rate", type=float, default=0.05)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if ROLE == "ps":
        server = Server(options.learning_rate)
        print(f"before: accuracy {accuracy(server.model):.4f}", flush=True)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    rpc.init_rpc(f"{ROLE}{INDEX}", rank=rank, world_size=world_size)
    if ROLE == "worker":
        work(options.steps, options.batch_size)
    rpc.shutdown()  # waits until every process has come here; until then the server answers
    if server is not None:
        print(f"after {server.updates} updates: accuracy {accuracy(server.model):.4f}", flush=True)
        torch.save(server.model.state_dict(), Path(os.environ["SM_MODEL_DIR"]) / "model.pt")


if __name__ == "__main__":
    main()
