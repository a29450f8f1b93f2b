"""Which hosts a job has where no resourceconfig.json says so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from cluster import MakeCluster
from hypothesis import given, settings
from hypothesis import strategies as st
from shoal_entrypoint.configuration import find_resource
from shoal_entrypoint.discovery import Found, Here, expand, find
from shoal_entrypoint.outcome import JobError

SLURM = {"SLURM_JOB_NODELIST": "gpu-[001-002,010],login1", "SLURM_NODEID": "2"}
BATCH = {"AWS_BATCH_JOB_NUM_NODES": "3", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "1"}
JOB = "10.1.0.7 job-1.net.default.svc.cluster.local job-1\n"
DOMAIN = ".net.default.svc.cluster.local"


def here(tmp_path: Path, name: str = "x", hosts: str = "", hostfile: str | None = None) -> Here:
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n" + hosts)
    if hostfile is not None:
        (tmp_path / "hostfile").write_text(hostfile)
    return Here(name, tmp_path / "hosts", tmp_path / "hostfile", lambda: "10.0.0.9")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[1-2]", ["n1", "n2"]),
        ("gpu-[001-003,010],login1", ["gpu-001", "gpu-002", "gpu-003", "gpu-010", "login1"]),
        ("a[1-2]b[01-02]", ["a1b01", "a1b02", "a2b01", "a2b02"]),
        ("x,y[9-11]", ["x", "y9", "y10", "y11"]),
        (" algo-1, algo-2 ", ["algo-1", "algo-2"]),
    ],
)
def test_lists_of_hosts_are_read_as_slurm_reads_them(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize("text", ["", ",", "a,,b", "a[", "a]", "a[]", "a[x]", "a[2-1]", "n[1-999999999]", "a b"])
def test_other_texts_are_no_lists_of_hosts(text: str) -> None:
    with pytest.raises(ValueError, match=r"host|numbers|counts down"):
        expand(text)


@given(st.text(alphabet="an1290-[],. ", max_size=40))
@settings(deadline=None)
def test_no_text_breaks_the_reader_of_lists(text: str) -> None:
    try:
        names = expand(text)
    except ValueError:
        return
    assert names
    assert all(name and not set(name) & set("[], ") for name in names)


@pytest.mark.parametrize(
    ("environ", "name", "found"),
    [
        ({}, "laptop", Found("a single host", ["laptop"], 0)),
        ({"SHOAL_HOSTS": "a,b", "SHOAL_HOST_INDEX": "1", **SLURM}, "x", Found("SHOAL_HOSTS", ["a", "b"], 1)),
        ({"SHOAL_HOSTS": "a.net,b.net"}, "b", Found("SHOAL_HOSTS", ["a.net", "b.net"], 1)),
        (SLURM, "gpu-010", Found("Slurm", ["gpu-001", "gpu-002", "gpu-010", "login1"], 2)),
        ({**SLURM, "SLURM_STEP_NODELIST": "n[1-3]", "SLURM_STEP_TASKS_PER_NODE": "1(x3)"}, "n3", None),
        (
            {"JOB_COMPLETION_INDEX": "1", "SHOAL_HOST_COUNT": "2"},
            "job-1",
            Found("the Kubernetes Job", ["job-0" + DOMAIN, "job-1" + DOMAIN], 1),
        ),
        ({"JOB_COMPLETION_INDEX": "3"}, "job-3", Found("a single host", ["job-3"], 0)),
        (
            {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "t-node-0-0.t", "JOB_COMPLETION_INDEX": "1"},
            "t-node-0-1",
            Found("PET_NNODES", ["t-node-0-0.t", "t-node-0-1.t"], 1),
        ),
        (
            {"PET_NNODES": "3", "PET_NODE_RANK": "2", "MASTER_ADDR": "p-master-0"},
            "p-worker-1",
            Found("PET_NNODES", ["p-master-0", "p-worker-0", "p-worker-1"], 2),
        ),
        (
            {"PET_NNODES": "2", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "10.0.0.1"},
            "x",
            Found("PET_NNODES", ["10.0.0.1", "node-1"], 0, anonymous=True),
        ),
        ({"PET_NNODES": "1:1"}, "x", Found("PET_NNODES", ["x"], 0)),
        (
            {**BATCH, "AWS_BATCH_JOB_NODE_INDEX": "1"},
            "x",
            Found("AWS Batch", ["10.0.0.9", "node-1", "node-2"], 0, anonymous=True),
        ),
        (
            {**BATCH, "AWS_BATCH_JOB_NODE_INDEX": "0", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.9"},
            "x",
            Found("AWS Batch", ["10.0.0.9", "node-1", "node-2"], 1, anonymous=True),
        ),
        (
            {**BATCH, "AWS_BATCH_JOB_NODE_INDEX": "2", "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.9"},
            "x",
            Found("AWS Batch", ["10.0.0.9", "node-1", "node-2"], 2, anonymous=True),
        ),
    ],
)
def test_schedulers_variables(tmp_path: Path, environ: dict[str, str], name: str, found: Found | None) -> None:
    if found is None:  # of a step's list and a job's the step's counts
        found = Found("Slurm", ["n1", "n2", "n3"], 2)
    assert find(environ, here(tmp_path, name, JOB)) == found


def test_an_mpi_hostfile(tmp_path: Path) -> None:
    lines = "# made by the operator\nm-worker-0.m.ns.svc slots=4\n\nm-worker-1.m.ns.svc slots=4\n"
    worker = here(tmp_path, "m-worker-1", hostfile=lines)
    assert find({}, worker) == Found(str(worker.hostfile), ["m-worker-0.m.ns.svc", "m-worker-1.m.ns.svc"], 1)
    with pytest.raises(JobError, match="not on an MPIJob's launcher"):
        find({}, worker._replace(name="m-launcher"))


@pytest.mark.parametrize(
    ("environ", "error"),
    [
        ({"SHOAL_HOSTS": "a,b"}, "SHOAL_HOST_INDEX: missing, and this host's name, x, is none of SHOAL_HOSTS (a,b)"),
        ({"SHOAL_HOSTS": "a,b", "SHOAL_HOST_INDEX": "2"}, "SHOAL_HOST_INDEX: a whole number from 0 to 1 was expected"),
        ({"SHOAL_HOSTS": "a,b", "SHOAL_HOST_INDEX": "9" * 9999}, "SHOAL_HOST_INDEX: a whole number from 0 to 1"),
        ({"SHOAL_HOSTS": "a,,b"}, "SHOAL_HOSTS: 'a,,b': not a list of hosts"),
        ({"SHOAL_HOSTS": "a,b,a"}, "SHOAL_HOSTS: a is named twice"),
        ({**SLURM, "SLURM_STEP_TASKS_PER_NODE": "4(x2),1"}, "one `train` on each host"),
        ({"JOB_COMPLETION_INDEX": "1", "SHOAL_HOST_COUNT": "2"}, "is called x and not <job>-1"),
        ({"PET_NNODES": "1:4"}, "PET_NNODES: 1:4: the number of hosts must be fixed"),
        ({"PET_NNODES": "2", "PET_NODE_RANK": "0"}, "PET_MASTER_ADDR: missing"),
        ({**BATCH, "AWS_BATCH_JOB_NODE_INDEX": "0"}, "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS: missing"),
    ],
)
def test_what_is_wrong_with_them_is_named(tmp_path: Path, environ: dict[str, str], error: str) -> None:
    with pytest.raises(JobError) as caught:
        find(environ, here(tmp_path))
    assert error in caught.value.text
    assert "\n" not in caught.value.text


SCRIPT = """\
import json, os, pathlib, sys
names = ("SM_HOSTS", "SM_CURRENT_HOST", "MASTER_ADDR", "SM_HP_LR")
told = {name: os.environ[name] for name in names} | {"size": int(os.environ["WORLD_SIZE"]), "args": sys.argv[1:]}
pathlib.Path("/opt/ml/model/told.json").write_text(json.dumps(told))
"""


def start_on(
    cluster: MakeCluster, environments: Sequence[Mapping[str, str]], hps: dict[str, str]
) -> list[dict[str, str]]:
    """Runs a job of no files but the script on as many hosts, and returns what each was told."""
    job = cluster(len(environments))
    common = {"SHOAL_HPS": json.dumps({"sagemaker_program": "train.py", "lr": "0.1", **hps}), "RANK": "7"}
    for host, environ in zip(job.hosts, environments, strict=True):
        (host.code / "train.py").write_text(SCRIPT)
        host.start({**common, **environ})
    assert job.wait() == [0] * len(environments), [host.stderr for host in job.hosts]
    return [json.loads((host.ml / "model" / "told.json").read_text()) for host in job.hosts]


def test_a_job_of_slurm_runs_without_any_file(cluster: MakeCluster) -> None:
    environments = [{"SLURM_JOB_NODELIST": "algo-[1-2]", "SLURM_NODEID": str(index)} for index in range(2)]
    for index, told in enumerate(start_on(cluster, environments, {})):
        assert told == {
            "SM_HOSTS": '["algo-1","algo-2"]',
            "SM_CURRENT_HOST": f"algo-{index + 1}",
            "MASTER_ADDR": "algo-1",
            "SM_HP_LR": "0.1",
            "size": 2,
            "args": ["--lr", "0.1"],
        }


def test_a_job_of_aws_batch_knows_one_address(cluster: MakeCluster) -> None:
    common = {"AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0"}
    address = {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.99.0.1"}
    environments = [
        {**common, "AWS_BATCH_JOB_NODE_INDEX": "0"},
        {**common, "AWS_BATCH_JOB_NODE_INDEX": "1", **address},
    ]
    told = start_on(cluster, environments, {})
    assert [one["SM_CURRENT_HOST"] for one in told] == ["10.99.0.1", "node-1"]
    assert {one["MASTER_ADDR"] for one in told} == {"10.99.0.1"}


def test_a_second_run_looks_for_its_hosts_again(tmp_path: Path) -> None:
    """What an earlier run has written is not the platform's word."""
    for hosts, index in (("a,b", 1), ("c,d,e", 2)):
        environ = {"SHOAL_HOSTS": hosts, "SHOAL_HOST_INDEX": str(index)}
        assert list(find_resource(tmp_path, environ).hosts) == hosts.split(",")
    assert json.loads((tmp_path / "resourceconfig.json").read_text())["current_host"] == "e"
    (tmp_path / "resourceconfig.json").write_text('{"current_host": "x", "hosts": ["x"]}')
    assert find_resource(tmp_path, environ).hosts == ("x",)


def test_mpirun_needs_every_name(cluster: MakeCluster) -> None:
    job = cluster(2)
    for index, host in enumerate(job.hosts):
        (host.code / "train.py").write_text(SCRIPT)
        environ = {"PET_NNODES": "2", "PET_NODE_RANK": str(index), "PET_MASTER_ADDR": "algo-1"}
        host.start({**environ, "SHOAL_HPS": '{"sagemaker_program": "train.py", "sagemaker_mpi_enabled": "true"}'})
    assert job.wait() == [1, 1]
    assert all("mpirun needs the name of every host" in host.failure for host in job.hosts)
