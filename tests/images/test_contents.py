"""What is in the image, and what must not be. Runs inside a container of it."""

import docker
import pytest
from testinfra.host import Host

from shoal.image.versions import Row

pytestmark = pytest.mark.image


def python(host: Host, code: str) -> str:
    done = host.run("python -c %s", code)
    assert done.rc == 0, done.stderr
    return str(done.stdout).strip()


def test_every_package_s_requirements_are_met(host: Host) -> None:
    done = host.run("pip check")
    assert done.rc == 0, done.stdout


def test_versions_are_the_row_s(host: Host, row: Row) -> None:
    code = "import torch, lightning, mpi4py; print(torch.__version__, lightning.__version__, mpi4py.__version__)"
    assert python(host, code).split() == [f"{row.torch}+cpu", row.lightning, row.mpi4py]


def test_both_names_of_lightning_are_the_same_version(host: Host) -> None:
    code = "import lightning, pytorch_lightning as pl; print(lightning.__version__ == pl.__version__)"
    assert python(host, code) == "True"


def test_smddp_is_a_back_end(host: Host) -> None:
    code = (
        "import torch.distributed as dist, smdistributed.dataparallel.torch.torch_smddp; "
        "print('smddp' in dist.Backend.backend_list)"
    )
    assert python(host, code) == "True"


def test_smddp_links_only_what_the_image_has(host: Host) -> None:
    library = python(host, "import torch, smdistributed.dataparallel._C as c; print(c.__file__)")
    lines = host.check_output("ldd %s", library).splitlines()
    # torch's own libraries are found because torch is loaded first; nothing else may be missing.
    missing = [line for line in lines if "not found" in line and "libtorch" not in line and "libc10" not in line]
    assert missing == []


@pytest.mark.parametrize("program", ["train", "mpirun", "torchrun", "smddprun", "sshd", "ssh", "bash", "pip"])
def test_programs_of_the_contract_are_on_path(host: Host, program: str) -> None:
    assert host.run("command -v %s", program).rc == 0


@pytest.mark.parametrize("program", ["gcc", "g++", "cc", "c++", "make", "cmake", "ninja", "ld"])
def test_no_compiler(host: Host, program: str) -> None:
    assert host.run("command -v %s", program).rc != 0


def test_no_private_key_anywhere(host: Host) -> None:
    found = host.run(
        "grep -rlE --binary-files=text -e '-----BEGIN ([A-Z]+ )?PRIVATE KEY-----' /etc /root /home /opt/ml /var/lib"
    )
    assert found.stdout == ""
    assert host.run("ls /root/.ssh").rc != 0


def test_no_caches_are_left(host: Host) -> None:
    for folder in ("/root/.cache", "/var/cache/apt/archives", "/var/lib/apt/lists", "/tmp", "/build"):
        done = host.run("find %s -type f ! -name lock ! -name 'lock*'", folder)
        assert done.stdout == "", folder


def test_folders_of_the_contract(host: Host) -> None:
    for folder in ("code", "input/config", "input/data", "model", "output/data"):
        assert host.file(f"/opt/ml/{folder}").is_directory


def test_train_without_a_job_fails_with_one_line(host: Host) -> None:
    done = host.run("train")
    assert done.rc != 0
    assert "Traceback" not in done.stderr
    assert "/opt/ml/input/config/hyperparameters.json: not found" in host.file("/opt/ml/output/failure").content_string


def test_the_host_name_shim_is_there_and_works(host: Host) -> None:
    shim = host.check_output("ls /opt/venv/lib/python3*/site-packages/shoal_entrypoint/_hostname*.so")
    asked = host.check_output(
        "LD_PRELOAD=%s SM_CURRENT_HOST=algo-7 python -c 'import socket; print(socket.gethostname())'", shim
    )
    assert asked == "algo-7"


def test_mpi_and_mpi4py_belong_together(host: Host) -> None:
    code = "from mpi4py import MPI; print(MPI.Get_library_version().split(',')[0])"
    done = host.run("mpirun --allow-run-as-root --oversubscribe -np 2 python -c %s", code)
    assert done.rc == 0, done.stderr
    assert done.stdout.splitlines() == ["Open MPI v4.1.4"] * 2


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
    said = host.check_output("sed 's#/usr/bin/mpirun#/bin/echo#' /usr/local/bin/mpirun | bash -s -- " + given)
    assert said == expected


def test_the_s3_client_of_the_contract_is_there(host: Host) -> None:
    assert (
        python(host, "import boto3; print(boto3.client('s3', region_name='eu-west-1').meta.region_name)") == "eu-west-1"
    )


def test_no_test_suites_of_packages(host: Host) -> None:
    found = host.check_output("find /opt/venv/lib/python3*/site-packages -type d -name tests ! -path '*/pip/*'")
    assert found == ""
    assert host.run("ls /opt/venv/lib/python3*/site-packages/torch/test").rc != 0


def test_numpy_s_own_testing_module_still_works(host: Host) -> None:
    code = "import numpy.testing, torch.testing; numpy.testing.assert_allclose([1.0], [1.0]); print('works')"
    assert python(host, code) == "works"


def test_labels(client: docker.DockerClient, image: str, row: Row) -> None:
    labels = client.images.get(image).labels
    assert labels["dev.shoal.row"] == "2.13-cpu"
    assert labels["org.opencontainers.image.version"] == row.torch
    prefix = "com.amazonaws.ml.engines.sagemaker.dlc."
    theirs = {
        name.removeprefix(prefix) for name, value in labels.items() if name.startswith(prefix) and value == "true"
    }
    assert theirs == {
        *("framework.pytorch.2-13-0", "device.cpu", "arch.x86", "python.py311", "os.debian12", "job.training"),
    }


def test_the_build_host_s_apt_options_are_gone(host: Host) -> None:
    assert host.run("grep -rE '^Acquire::(http|https|Check)' /etc/apt").stdout == ""
