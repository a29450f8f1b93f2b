"""What ranks see of the user's own settings and of the network, under every launcher, on both of two hosts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, MakeCluster

RECORD = """\
import json, os
name = f"/opt/ml/output/data/{os.environ.get('ROLE_NAME', 'rank')}-{os.environ['RANK']}"
with open(name, "w") as file:
    json.dump(dict(os.environ), file)
"""
TWO = {"sagemaker_mpi_num_of_processes_per_host": "2"}
# The flag, and how many processes the two hosts run together.
LAUNCHERS = [
    pytest.param({}, 2, id="process"),
    pytest.param({"sagemaker_mpi_enabled": "true", **TWO}, 4, id="mpi"),
    pytest.param({"sagemaker_distributed_dataparallel_enabled": json.dumps("true"), **TWO}, 4, id="smddp"),
    pytest.param({"sagemaker_pytorch_ddp_enabled": '"True"', **TWO}, 4, id="pytorchddp"),
    pytest.param({"sagemaker_parameter_server_enabled": "true", **TWO}, 5, id="parameter server"),
    pytest.param({"sagemaker_torch_distributed_enabled": "true", **TWO}, 4, id="torchrun", marks=pytest.mark.slow),
]


def with_torchrun(made: Cluster, flags: dict[str, str]) -> None:
    if "sagemaker_torch_distributed_enabled" in flags:
        pytest.importorskip("torch")
        for host in made.hosts:
            (host.tools / "torchrun").symlink_to(Path(sys.executable).parent / "torchrun")


def seen(cluster: Cluster) -> list[tuple[str, dict[str, str]]]:
    """Each process's host and environment."""
    return [
        (host.name, json.loads(path.read_text()))
        for host in cluster.hosts
        for path in sorted((host.ml / "output" / "data").glob("*-*"))
    ]


@pytest.mark.parametrize("efa", ["0", "1"])
@pytest.mark.parametrize(("flags", "count"), LAUNCHERS)
def test_the_user_s_settings_win_on_both_hosts(
    cluster: MakeCluster, flags: dict[str, str], count: int, efa: str
) -> None:
    two = cluster()
    with_torchrun(two, flags)
    two.job(flags, RECORD, resource={"current_instance_type": "ml.p4d.24xlarge"})
    mine = {
        **{"NCCL_DEBUG": "TRACE", "NCCL_PROTO": "LL128", "NCCL_IB_DISABLE": "0", "NCCL_MIN_NRINGS": "7"},
        **{"NCCL_SOCKET_IFNAME": "^lo", "GLOO_SOCKET_IFNAME": "eth0", "TP_SOCKET_IFNAME": "lo", "NCCL_ALGO": "Tree"},
        **{"FI_PROVIDER": "tcp", "FI_EFA_USE_DEVICE_RDMA": "0", "FI_LOG_LEVEL": "warn", "RDMAV_FORK_SAFE": "0"},
        **{"OMP_NUM_THREADS": "3", "OMP_PROC_BIND": "close", "MY_OWN": "two words; $(x)"},
    }
    two.start({**mine, "SHOAL_EFA": efa})
    assert two.wait(90) == [0, 0], two.hosts[0].stderr
    found = seen(two)
    assert len(found) == count
    assert {name for name, _ in found} == {"algo-1", "algo-2"}
    for name, environ in found:
        assert {key: environ.get(key) for key in mine} == mine, name


@pytest.mark.parametrize(("flags", "count"), LAUNCHERS)
def test_the_interface_is_one_that_exists(cluster: MakeCluster, flags: dict[str, str], count: int) -> None:
    """The config names none of this host's, and the first host's own name leads to its loopback interface."""
    two = cluster()
    with_torchrun(two, flags)
    two.job(flags, RECORD, resource={"network_interface_name": "ethwe"})
    own = "sed 's/^10.99.0.1 algo-1/127.0.1.1 algo-1/' /etc/hosts > /run/hosts; mount --bind /run/hosts /etc/hosts"
    two.hosts[0].start({}, own)
    two.hosts[1].start({})
    assert two.wait(90) == [0, 0], two.hosts[0].stderr
    found = seen(two)
    assert len(found) == count
    for name, environ in found:
        interfaces = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "SM_NETWORK_INTERFACE_NAME")
        assert [environ[key] for key in interfaces] == ["eth0"] * 4, name


def test_mpirun_is_told_an_interface_that_exists(cluster: MakeCluster) -> None:
    two = cluster()
    two.job({"sagemaker_mpi_enabled": "true"}, "raise SystemExit(3)", resource={"network_interface_name": "ethwe"})
    two.start()
    assert two.wait() == [3, 3]
    for option in ("btl_tcp_if_include", "oob_tcp_if_include"):
        assert f"-mca {option} eth0" in two.hosts[0].failure
    assert "ethwe" not in two.hosts[0].failure


@pytest.mark.parametrize("flag", ["sagemaker_mpi", "sagemaker_distributed_dataparallel"])
def test_custom_mpi_options_reach_mpirun_and_the_ranks(cluster: MakeCluster, flag: str) -> None:
    """Appended as given: what they say about a variable beats what `train` says."""
    two = cluster()
    options = "-verbose -x NCCL_DEBUG=VERSION -x WORDS='a b'"
    two.job({f"{flag}_enabled": "true", f"{flag}_custom_mpi_options": json.dumps(options), **TWO}, RECORD)
    two.start()
    assert two.wait() == [0, 0], two.hosts[0].stderr
    found = seen(two)
    assert len(found) == 4
    assert [(environ["NCCL_DEBUG"], environ["WORDS"]) for _, environ in found] == [("VERSION", "a b")] * 4
    assert "conflict" not in two.hosts[0].stderr


@pytest.mark.parametrize("value", ["true", "2.5", "2.0", "[2]", '{"a": 1}', "many", "0", "-1", "Infinity", '"1e3"'])
def test_a_number_of_processes_of_another_kind_is_refused(cluster: MakeCluster, value: str) -> None:
    one = cluster(1)
    one.job({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": value}, "pass")
    one.start()
    assert one.wait() == [1]
    name = "hyperparameters.json: sagemaker_mpi_num_of_processes_per_host"
    assert one.hosts[0].failure.startswith(f"{name}: a whole number of at least 1 was expected, not ")
    assert "\n" not in one.hosts[0].failure


@pytest.fixture
def one_cpu() -> Iterator[Path]:
    """A real cgroup without a limit of its own, in one that may use one CPU."""
    version_1 = Path("/sys/fs/cgroup/cpu")
    outer = (version_1 if version_1.exists() else Path("/sys/fs/cgroup")) / f"shoal-test-{os.getpid()}"
    inner = outer / "inner"
    try:
        inner.mkdir(parents=True)
        if version_1.exists():
            (outer / "cpu.cfs_quota_us").write_text("100000")
        else:
            (outer / "cpu.max").write_text("100000 100000")
    except OSError as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    else:
        yield inner
    finally:
        for folder in (inner, outer):
            if folder.exists():
                folder.rmdir()


def test_cpus_and_threads_follow_the_cgroup(cluster: MakeCluster, one_cpu: Path) -> None:
    """Of the container, or of what it is nested in."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("one CPU is all that this machine has")
    one = cluster(1)
    one.job({"sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}, RECORD)
    # `ip netns exec` has put a bare /sys over this machine's.
    version_1 = (
        "mount -t tmpfs tmpfs /sys/fs/cgroup; mkdir /sys/fs/cgroup/cpu; mount -t cgroup -o cpu c /sys/fs/cgroup/cpu"
    )
    mount = version_1 if Path("/sys/fs/cgroup/cpu").exists() else "mount -t cgroup2 cgroup2 /sys/fs/cgroup"
    one.hosts[0].start({}, f"{mount}; echo 0 > {one_cpu}/cgroup.procs")
    assert one.wait() == [0], one.hosts[0].stderr
    assert [(environ["SM_NUM_CPUS"], environ["OMP_NUM_THREADS"]) for _, environ in seen(one)] == [("1", "1")] * 2
