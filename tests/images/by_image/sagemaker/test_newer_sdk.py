"""Jobs of SageMaker's Python SDK version 3 (`ModelTrainer`), which leaves `train` out and brings its own drivers: the
drivers themselves, as the SDK's package has them, in containers of the image. As in its local mode, resourceconfig.json
names a network interface that no container has.
"""

import hashlib
import importlib.util
import json
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import docker
import pytest
import requests
from docker.models.containers import Container

pytestmark = pytest.mark.image

SDK = "sagemaker-train==1.27.0"
LIMIT_SECONDS = 120
HOSTS = ["algo-1", "algo-2"]
START = "f=/opt/ml/input/data/sm_drivers/sm_train.sh && chmod +x $f && $f"
SCRIPT = """\
import os, socket, sys
import torch.distributed as dist
if os.path.exists("/opt/ml/input/data/code/fail"):
    sys.exit(7)
if "OMPI_COMM_WORLD_RANK" in os.environ:
    from mpi4py import MPI
    hosts = MPI.COMM_WORLD.allgather(socket.gethostname())
else:
    dist.init_process_group("gloo")
    hosts = [None] * dist.get_world_size()
    dist.all_gather_object(hosts, socket.gethostname())
    dist.barrier()
    dist.destroy_process_group()  # gloo aborts a process that ends while another still talks to it
with open(f"/opt/ml/model/{socket.gethostname()}", "a") as file:
    file.write(f"{hosts} {sys.argv[1:]}\\n")
"""


class Ended(NamedTuple):
    """What a host left."""

    exit_code: int
    log: str
    model: str
    failure: str


Run = Callable[..., list[Ended]]


@pytest.fixture(scope="session")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the SDK's package, unpacked; none of what it depends on is needed."""
    folder = tmp_path_factory.mktemp("sdk")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*pip, "--dest", str(folder), SDK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wheel = next(folder.glob("*.whl"))
    assert (
        hashlib.sha256(wheel.read_bytes()).hexdigest()
        == "b5974e537b6436ebac906de81dd3dd7bc49097d9aed8791649bb631a586682de"
    )
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder / "sagemaker" / "train"


def templates(sdk: Path) -> ModuleType:
    """Return the SDK's shell templates, without importing the SDK."""
    spec = importlib.util.spec_from_file_location("templates", sdk / "templates.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_job(ml: Path, sdk: Path, host: str, hosts: list[str], driver: str, distributed: dict[str, object]) -> None:
    """Write what ModelTrainer puts under /opt/ml for one host."""
    for folder in ("input/config", "input/data/code", "model", "output/data"):
        (ml / folder).mkdir(parents=True)
    config = ml / "input" / "config"
    (config / "hyperparameters.json").write_text(json.dumps({"epochs": "3"}))
    channel = {"TrainingInputMode": "File"}
    (config / "inputdataconfig.json").write_text(json.dumps({"code": channel, "sm_drivers": channel}))
    resource = {
        "current_host": host,
        "hosts": hosts,
        "network_interface_name": "ethwe",
        "current_instance_type": "local",
    }
    (config / "resourceconfig.json").write_text(json.dumps(resource))
    (ml / "input" / "data" / "code" / "train.py").write_text(SCRIPT)
    drivers = ml / "input" / "data" / "sm_drivers"
    subprocess.run(["cp", "-r", str(sdk / "container_drivers"), str(drivers)], check=True)
    (drivers / "sourcecode.json").write_text(json.dumps({"entry_script": "train.py"}))
    (drivers / "distributed.json").write_text(json.dumps(distributed))
    texts = templates(sdk)
    script = texts.TRAIN_SCRIPT_TEMPLATE.format(
        working_dir="cd /opt/ml/input/data/code",
        install_requirements="",
        execute_driver=texts.EXEUCTE_DISTRIBUTED_DRIVER.format(driver_name=driver, driver_script=f"{driver}_driver.py"),
    )
    (drivers / "sm_train.sh").write_text(script)


@pytest.fixture
def run(client: docker.DockerClient, image: str, sdk: Path, tmp_path: Path) -> Iterator[Run]:
    """Return a function that runs a job on hosts of a network of their own and returns how each ended."""
    name = f"shoal-test-{uuid.uuid4().hex[:8]}"
    network = client.networks.create(name)
    started: list[Container] = []

    def go(hosts: list[str], driver: str, files: Sequence[str] = (), **distributed: object) -> list[Ended]:
        for host in hosts:
            write_job(tmp_path / host, sdk, host, hosts, driver, distributed)
            for file in files:
                (tmp_path / host / "input" / "data" / "code" / file).touch()
            started.append(
                client.containers.run(
                    image,
                    ["-c", START],
                    entrypoint=["/bin/bash"],
                    environment={"TRAINING_JOB_NAME": "newer-sdk"},
                    volumes={str(tmp_path / host): {"bind": "/opt/ml", "mode": "rw"}},
                    network=name,
                    hostname=host,
                    name=f"{name}-{host}",
                    networking_config={name: client.api.create_endpoint_config(aliases=[host])},
                    detach=True,
                )
            )
        return [ended(container, tmp_path / host) for container, host in zip(started, hosts, strict=True)]

    yield go
    for container in started:
        container.remove(force=True)
    network.remove()


def ended(container: Container, ml: Path) -> Ended:
    try:
        code = int(container.wait(timeout=LIMIT_SECONDS)["StatusCode"])
    except requests.RequestException:  # its own limit; what has been said so far says why
        pytest.fail(f"{container.name} has not ended in {LIMIT_SECONDS} s: {container.logs(tail=60).decode()}")
    model = "".join(file.read_text() for file in sorted((ml / "model").iterdir()))
    failure = ml / "output" / "failure"
    return Ended(code, container.logs().decode(), model, failure.read_text() if failure.exists() else "")


def test_torchrun_on_two_hosts(run: Run) -> None:
    results = run(HOSTS, "torchrun", process_count_per_node=2)
    assert [one.exit_code for one in results] == [0, 0], results
    everyone = ["algo-1", "algo-1", "algo-2", "algo-2"]
    assert [one.model for one in results] == [f"{everyone} ['--epochs', '3']\n" * 2] * 2


def test_mpi_on_one_host(run: Run) -> None:
    (result,) = run(HOSTS[:1], "mpi", process_count_per_node=2, mpi_additional_options=None)
    assert result.exit_code == 0, result.log
    assert result.model == f"{['algo-1', 'algo-1']} ['--epochs', '3']\n" * 2
    assert "no network interface ethwe here: using eth0" in result.log


def test_mpi_on_two_hosts_logs_in_with_keys_of_this_job(run: Run) -> None:
    # Its driver starts as many ranks in all as it was told for each host: laid out one a host here.
    results = run(HOSTS, "mpi", process_count_per_node=2, mpi_additional_options=["--map-by", "node"])
    assert [one.exit_code for one in results] == [0, 0], results
    assert [one.model for one in results] == [f"{HOSTS} ['--epochs', '3']\n"] * 2


def test_a_failing_script_fails_the_job_with_its_own_exit_code(run: Run) -> None:
    (result,) = run(HOSTS[:1], "mpi", files=["fail"], process_count_per_node=1, mpi_additional_options=None)
    assert result.exit_code == 7, result.log
    assert result.model == ""
