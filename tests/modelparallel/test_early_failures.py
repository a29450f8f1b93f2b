"""A rank that dies before the first step is done: while the job comes together, and while the model is partitioned.

Not earlier: who waits for a rank at the rendezvous of torch.distributed is ended by the launcher that lost it.
"""

from __future__ import annotations

import importlib
import os
import signal
from typing import Any

import pytest
import torch
from smp_jobs import run_ranks
from torch import nn

TWO = '{"partitions": 2, "microbatches": 2}'
REPLICAS = '{"partitions": 2, "microbatches": 2, "ddp": true}'
# Where a rank is killed: before it calls this function of the package.
PLACES = {
    "server": ("init", "_start_server"),
    "connections": ("server", "_connect"),
    "decision": ("prepare", "_decide"),
    "trace": ("prepare", "_plan"),
    "placing": ("prepare", "_materialise"),
    "sharing": ("prepare", "broadcast_replicas"),
}


def killed(place: str, victim: int) -> tuple[str, str]:
    """Die as `victim` at this place; else return what init and a first step raise."""
    import smdistributed.modelparallel.torch as smp

    module, name = PLACES[place]
    if int(os.environ["RANK"]) == victim:
        owner = importlib.import_module(f"{smp.__name__}.{module}")
        setattr(owner, name, lambda *_args, **_kwargs: os.kill(os.getpid(), signal.SIGKILL))
    try:
        smp.init()
        model = smp.DistributedModel(nn.Sequential(*(nn.Linear(4, 4) for _ in range(4))))

        @smp.step
        def train(x: torch.Tensor) -> Any:
            loss = model(x).mean()
            model.backward(loss)
            return loss

        train(torch.ones(4, 4))
        smp.barrier()
    except BaseException as error:
        return type(error).__name__, str(error)
    return "nothing", ""


@pytest.mark.parametrize(
    ("place", "victim", "size", "config"),
    [
        ("server", 0, 2, TWO),
        ("connections", 1, 2, TWO),
        ("decision", 1, 2, TWO),
        ("trace", 0, 2, TWO),
        ("placing", 1, 2, TWO),
        ("sharing", 3, 4, REPLICAS),
    ],
)
def test_a_rank_that_dies_early_is_told_in_one_sentence(place: str, victim: int, size: int, config: str) -> None:
    ranks = run_ranks(killed, size, place, victim, config=config, may_fail=[victim], limit=60)
    assert ranks[victim].returncode == -9
    for one in ranks:
        if one.rank != victim:
            kind, text = one.report
            assert kind == "PeerLostError", text
            assert "\n" not in text
