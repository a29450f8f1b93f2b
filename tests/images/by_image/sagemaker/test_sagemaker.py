"""What SageMaker and its tools look for in an image: files, commands, labels."""

import docker
import pytest
from containers import Run
from testinfra.host import Host

from shoal.image.versions import Row

pytestmark = pytest.mark.image

LABELS = "com.amazonaws.ml.engines.sagemaker.dlc."


@pytest.mark.parametrize("program", ["train", "mpirun", "sshd"])
def test_programs_of_the_contract_are_ours(host: Host, program: str) -> None:
    """They come first on PATH, and are scripts: Open MPI's and OpenSSH's own are behind them."""
    path = host.check_output("command -v %s", program)
    assert host.check_output("head -c 2 %s", path) == "#!"


def test_folders_of_the_contract(host: Host) -> None:
    for folder in ("code", "input/config", "input/data", "model", "output/data"):
        assert host.file(f"/opt/ml/{folder}").is_directory
    assert host.check_output("find /opt/ml -type f ! -name failure") == ""


def test_the_host_name_shim_is_there_and_works(host: Host) -> None:
    shim = host.check_output("ls /opt/venv/lib/python3*/site-packages/shoal_entrypoint/_hostname*.so")
    asked = host.check_output(
        "LD_PRELOAD=%s SM_CURRENT_HOST=algo-7 python -c 'import socket; print(socket.gethostname())'", shim
    )
    assert asked == "algo-7"


@pytest.mark.parametrize(
    ("given", "becomes"),
    [
        ("-mca btl_tcp_if_include lo -np 2 x", "-mca btl_tcp_if_include lo -np 2 x"),
        ("-mca btl_tcp_if_include ethwe -mca oob_tcp_if_include ethwe,lo x", None),
        ("-mca btl_tcp_if_include ethwe,10.0.0.0/8 x", "-mca btl_tcp_if_include 10.0.0.0/8 x"),
        ("-x NCCL_SOCKET_IFNAME=ethwe -x PATH x", "-x NCCL_SOCKET_IFNAME=lo -x PATH x"),
        ("-x NCCL_SOCKET_IFNAME=l -x GLOO_SOCKET_IFNAME=^docker0 x", None),
        ("x ethwe 'two words' NCCL_SOCKET_IFNAME=ethwe", None),
    ],
)
def test_mpirun_is_given_interfaces_that_exist(host: Host, given: str, becomes: str | None) -> None:
    expected = becomes or given.replace("ethwe,lo", "lo").replace("include ethwe", "include lo").replace("'", "")
    # The same script, with a program that prints its words in the place of Open MPI's; this container has only `lo`.
    said = host.check_output("sed 's#^real=.*#real=/bin/echo#' /usr/local/bin/mpirun | bash -s -- " + given)
    assert said == expected


@pytest.mark.parametrize("options", ["", "--bind-to core"])
def test_mpirun_binds_ranks_only_where_it_is_asked_to(host: Host, options: str) -> None:
    code = "import os; print(len(os.sched_getaffinity(0)))"
    cores = 1 if options else int(host.check_output("python -c %s", code))
    assert host.check_output(f"mpirun --allow-run-as-root {options} -np 1 python -c %s", code) == str(cores)


@pytest.mark.parametrize("module", ["boto3", "paramiko"])
def test_modules_of_the_contract_are_there(run: Run, module: str) -> None:
    done = run(["python", "-c", f"import {module}"])
    assert done.rc == 0, done.err


def test_the_s3_client_works_without_a_home(run: Run) -> None:
    code = "import boto3; print(boto3.client('s3', region_name='eu-west-1').meta.region_name)"
    assert run(["python", "-c", code], user="1000:1000").out == "eu-west-1\n"


def test_labels_of_the_project(client: docker.DockerClient, image: str, row: Row, row_name: str) -> None:
    labels = client.images.get(image).labels
    assert labels["dev.shoal.row"] == row_name
    assert labels["dev.shoal.flavour"] == "sagemaker"
    assert labels["org.opencontainers.image.title"] == "pytorch-training"
    assert labels["org.opencontainers.image.version"] == row.torch
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0"


def test_labels_of_sagemaker(client: docker.DockerClient, image: str, row: Row) -> None:
    """Each says the same as the tag."""
    labels = {name: value for name, value in client.images.get(image).labels.items() if name.startswith(LABELS)}
    theirs = {name.removeprefix(LABELS) for name, value in labels.items() if value == "true"}
    cuda = [f"cu{row.cuda.replace('.', '')}"] if row.cuda else []
    assert theirs == {
        f"framework.pytorch.{row.torch.replace('.', '-')}",
        ".".join(["device", row.device, *cuda]),
        "arch.x86",
        f"python.py{row.python.replace('.', '')}",
        f"os.{row.base.replace('.', '-')}",
        "job.training",
    }
    assert len(labels) == len(theirs) <= 10  # SageMaker reads no more


def test_the_configuration_leaves_the_command_to_the_user(client: docker.DockerClient, image: str) -> None:
    configuration = client.images.get(image).attrs["Config"]
    assert configuration["Entrypoint"] in (None, [])
    assert configuration["Cmd"] == ["bash"]
    assert configuration["WorkingDir"] == "/opt/ml/code"
    assert configuration.get("User") in (None, "")
    assert not configuration.get("Volumes")
    assert not configuration.get("ExposedPorts")
