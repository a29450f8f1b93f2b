"""`smp.init` and the ranks it gives, under each launcher."""

from __future__ import annotations

from typing import Any

import pytest
from smp_jobs import free_port, run_ranks


def places() -> dict[str, object]:
    import smdistributed.modelparallel.torch as smp

    smp.init()
    return {
        "rank": (smp.rank(), smp.size()),
        "local": (smp.local_rank(), smp.local_size()),
        "pp": (smp.pp_rank(), smp.pp_size()),
        "dp": (smp.dp_rank(), smp.dp_size()),
        "mp": smp.get_mp_group(),
        "all": smp.allgather(smp.rank()),
    }


@pytest.mark.parametrize("launcher", ["torchrun", "mpi", "mpirun"])
def test_every_launcher_gives_the_same_places(launcher: str) -> None:
    ranks = run_ranks(places, 4, launcher=launcher, config='{"partitions": 2, "microbatches": 2, "ddp": true}')
    assert [one.report for one in ranks] == [
        {
            "rank": (rank, 4),
            "local": (rank, 4),
            "pp": (rank % 2, 2),
            "dp": (rank // 2, 2),
            "mp": [rank // 2 * 2, rank // 2 * 2 + 1],
            "all": [0, 1, 2, 3],
        }
        for rank in range(4)
    ]


def load_with_workers() -> list[object]:
    import smdistributed.modelparallel.torch as smp
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    smp.init()
    data = TensorDataset(torch.arange(32.0))
    found = []
    for _ in range(2):
        loader = DataLoader(data, batch_size=8, num_workers=2, multiprocessing_context="fork")
        found.append(sum(batch.sum().item() for (batch,) in loader))
    return [found, smp.allgather(smp.rank())]


def test_loader_workers_fork_after_init() -> None:
    """C13: loaders may have worker processes, though the library has threads by then."""
    for one in run_ranks(load_with_workers, 2, config='{"partitions": 2}'):
        assert one.report == [[496.0, 496.0], [0, 1]]


def port() -> tuple[int, object]:
    import smdistributed.modelparallel.torch as smp
    import torch.distributed as dist

    smp.init()
    store: Any = dist.distributed_c10d._get_default_store()
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    return store.port, smp.allgather(smp.rank())


def test_ddp_port_is_where_ranks_meet() -> None:
    chosen = free_port()
    ranks = run_ranks(port, 2, launcher="mpi", config=f'{{"partitions": 2, "ddp": true, "ddp_port": {chosen}}}')
    assert [one.report for one in ranks] == [(chosen, [0, 1])] * 2


def test_one_process_needs_no_launcher() -> None:
    assert run_ranks(places, 1, env={"RANK": "", "WORLD_SIZE": ""}, config="")[0].report["rank"] == (0, 1)


@pytest.mark.parametrize(("devices", "expected"), [(4, 2), (1, 0)])
def test_init_selects_the_device_of_the_local_rank(
    monkeypatch: pytest.MonkeyPatch, devices: int, expected: int
) -> None:
    """C14: no context is opened on device 0 by ranks that do not own it."""
    import torch
    from smdistributed.modelparallel.torch import device
    from smdistributed.modelparallel.torch.launch import Launch

    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: devices)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    device.select(Launch(2, 4, 2, 4, "127.0.0.1", 1))
    assert chosen == [expected]


def test_more_ranks_than_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from smdistributed.modelparallel.torch import device
    from smdistributed.modelparallel.torch.launch import Launch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ValueError, match="local rank 2 has no GPU of its own"):
        device.select(Launch(2, 4, 2, 4, "127.0.0.1", 1))


def ended(config: dict[str, Any]) -> tuple[bool, bool]:
    import smdistributed.modelparallel.torch as smp
    import torch
    from torch import distributed as dist

    smp.init(config)
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))
    model = smp.DistributedModel(net)
    smp.step(lambda model, x: model.backward(model(x).sum()))(model, torch.ones(2, 4))
    smp.shutdown()
    smp.shutdown()
    return smp.is_initialized(), dist.is_initialized()


@pytest.mark.parametrize("config", [{"partitions": 2, "microbatches": 2}, {"ddp": True}])
def test_shutdown_ends_groups_and_server(config: dict[str, Any]) -> None:
    for rank in run_ranks(ended, 2, config):
        assert rank.report == (False, False)
        assert "Traceback" not in rank.stderr
