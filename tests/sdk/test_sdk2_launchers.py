"""SDK v2's local mode: each `distribution=` that a machine without GPUs can run, on two hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sdk_process import Fit, ranks
from user_scripts import PLAIN, RANKS, Source

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.timeout(600)]

SMDDP = "import smdistributed.dataparallel.torch.torch_smddp"
TWO_A_HOST = {"sagemaker_mpi_num_of_processes_per_host": 2}
# gloo's threads drop tensors that Python knows, which takes the interpreter: one that has not come to it when the
# interpreter ends aborts the process (pytorch/pytorch#190489), on machines with more to do than cores.
GLOO = "import atexit, time\natexit.register(time.sleep, 1)"


def where(hosts: int, local: int) -> list[tuple[str, str]]:
    """Host and local rank of each rank."""
    return [(str(rank // local + 1), str(rank % local)) for rank in range(hosts * local)]


def test_smddp_with_the_options_of_the_documentation(fit2: Fit, source: Source) -> None:
    folder = source(**{"train.py": RANKS.format(first=SMDDP, backend="smddp")})
    options = {"enabled": True, "custom_mpi_options": "-verbose -x NCCL_DEBUG=VERSION -x EXTRA=given"}
    ended = fit2(
        entry_point="train.py",
        source_dir=str(folder),
        instance_count=2,
        distribution={"smdistributed": {"dataparallel": options}},
        hyperparameters={"lr": 1e-5, **TWO_A_HOST},
    )
    assert not ended.error, ended.log
    assert ended.value["hyperparameters"]["sagemaker_distributed_dataparallel_enabled"] == "true"
    found = ranks(ended)
    assert [(one["host"], one["local_rank"]) for one in found] == where(2, 2)
    assert all((one["world"], one["lr"], one["same"], one["extra"]) == (4, 1e-5, True, "given") for one in found)


def test_pytorchddp_runs_a_script_that_knows_nothing_of_smddp(fit2: Fit, source: Source) -> None:
    folder = source(**{"train.py": RANKS.format(first=GLOO, backend="gloo")})
    ended = fit2(
        entry_point="train.py",
        source_dir=str(folder),
        instance_count=2,
        distribution={"pytorchddp": {"enabled": "true"}},  # a string, as the documentation writes it
        hyperparameters={"lr": 0.1},
    )
    assert not ended.error, ended.log
    assert ended.value["hyperparameters"]["sagemaker_distributed_dataparallel_enabled"] == '"true"'
    found = ranks(ended)
    assert [(one["host"], one["local_rank"]) for one in found] == where(2, 1)
    assert all(one["same"] for one in found)


def test_torch_distributed(fit2: Fit, source: Source) -> None:
    folder = source(**{"train.py": RANKS.format(first=SMDDP, backend="smddp")})
    ended = fit2(
        entry_point="train.py",
        source_dir=str(folder),
        instance_count=2,
        distribution={"torch_distributed": {"enabled": True}},
        hyperparameters={"lr": 0.1},
    )
    assert not ended.error, ended.log
    found = ranks(ended)
    assert [(one["host"], one["local_rank"]) for one in found] == where(2, 1)
    assert all(one["same"] for one in found)


def test_mpi(fit2: Fit, source: Source) -> None:
    script = """
import json, os, pathlib
from mpi4py import MPI
everyone = MPI.COMM_WORLD.allgather((os.environ["SM_CURRENT_HOST"].split("-")[1], os.environ["LOCAL_RANK"]))
pathlib.Path(os.environ["SM_MODEL_DIR"], f"rank-{MPI.COMM_WORLD.rank}").write_text(json.dumps(everyone))
"""
    ended = fit2(
        entry_point="train.py",
        source_dir=str(source(**{"train.py": script})),
        instance_count=2,
        distribution={"mpi": {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "--display-map"}},
    )
    assert not ended.error, ended.log
    assert [json.loads(text) for text in ended.model.values()] == [[list(one) for one in where(2, 2)]] * 4
    assert "JOB MAP" in ended.log


def test_servers_and_workers(fit2: Fit, source: Source) -> None:
    script = """
import os, pathlib
role = os.environ["ROLE_NAME"] + "-" + os.environ["ROLE_RANK"]
pathlib.Path(os.environ["SM_MODEL_DIR"], role).write_text(os.environ["RANK"] + " of " + os.environ["WORLD_SIZE"])
"""
    ended = fit2(
        entry_point="train.py",
        source_dir=str(source(**{"train.py": script})),
        instance_count=2,
        distribution={"parameter_server": {"enabled": True}},
    )
    assert not ended.error, ended.log
    assert ended.model == {"ps-0": "0 of 3", "worker-0": "1 of 3", "worker-1": "2 of 3"}


@pytest.mark.parametrize(
    "launcher",
    [{"mpi": {"enabled": True, "processes_per_host": 1}}, {"torch_distributed": {"enabled": True}}],
    ids=lambda launcher: str(*launcher),
)
def test_a_model_in_two_parts_on_two_hosts(fit2: Fit, source: Source, launcher: dict[str, Any]) -> None:
    script = """
import json, os, pathlib, sys
import smdistributed.modelparallel.torch as smp
import torch
smp.init()
model = smp.DistributedModel(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)))
optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
@smp.step
def step(model, inputs):
    loss = model(inputs).square().mean()
    model.backward(loss)
    return loss
torch.manual_seed(0)
inputs, losses = torch.randn(8, 4), []
for _ in range(3):
    optimizer.zero_grad()
    losses.append(step(model, inputs).reduce_mean().item())
    optimizer.step()
result = {"parts": smp.pp_size(), "micro": smp.num_microbatches(), "fell": losses[0] > losses[-1] > 0,
          "argument": "--mp_parameters" in sys.argv}
pathlib.Path(os.environ["SM_MODEL_DIR"], f"rank-{smp.rank()}").write_text(json.dumps(result))
smp.barrier()
"""
    model_parallel = {"enabled": True, "parameters": {"partitions": 2, "microbatches": 4}}
    ended = fit2(
        entry_point="train.py",
        source_dir=str(source(**{"train.py": script})),
        instance_count=2,
        distribution={"smdistributed": {"modelparallel": model_parallel}, **launcher},
    )
    assert not ended.error, ended.log
    assert ranks(ended) == [{"parts": 2, "micro": 4, "fell": True, "argument": True}] * 2


def test_no_distribution_runs_the_script_once_on_each_host(fit2: Fit, source: Source, tmp_path: Path) -> None:
    """Compose stops all when a first container ends; here none does before its script has ended on every host."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "digits.csv").write_text("1,2\n")
    ended = fit2(
        entry_point="train.py",
        source_dir=str(source(**{"train.py": PLAIN.format(sleep="5 if number == 1 else 0", then="")})),
        instance_count=2,
        hyperparameters={"flag": True, "words": "two words", "list": [1, 2], "nothing": None, "a": 1},
        environment={"GREETING": "hello there"},
        container_config={"shm_size": "128m"},
        inputs={"train": f"file://{tmp_path / 'data'}"},
    )
    assert not ended.error, ended.log
    one, two = (json.loads(ended.model[f"host-{number}"]) for number in (1, 2))
    assert one == two
    assert one.pop("job").startswith("sdk2-")
    hosts = json.loads(one.pop("hosts"))
    assert [host.rpartition("-")[0] for host in hosts] == ["algo-1", "algo-2"]
    assert one == {
        "argv": ["-a", "1", "--flag", "True", "--list", "[1, 2]", "--nothing", "", "--words", "two words"],
        "greeting": "hello there",
        "data": ["digits.csv"],
        "shm_mb": 128,
    }
    # The SDK puts the whole of /opt/ml/output there, the service only what is in data/.
    measured = {name for name in ended.output if name.startswith("profiler/system/incremental/")}
    assert {name.split(".")[1] for name in measured} == {"algo-1", "algo-2"}
    environments = {f"profiler/environment/algo-{number}.json" for number in (1, 2)}
    assert set(ended.output) - measured - environments == {"data/seen-by-1", "data/seen-by-2", "success"}
    assert environments <= set(ended.output)
