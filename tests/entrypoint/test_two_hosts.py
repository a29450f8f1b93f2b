"""Two real hosts, real sshd, real mpirun: how a job of several hosts starts, fails and ends."""

from __future__ import annotations

import json
import signal
import time

import pytest
from cluster import until

SMDDP = {"sagemaker_distributed_dataparallel_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}

RANK = """\
import json, os, sys, time
rank, host = int(os.environ["RANK"]), os.environ["SM_CURRENT_HOST"]
"""

REPORT = (
    RANK
    + """
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT",
         "SM_CURRENT_HOST", "SM_HP_TEXT", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS", "STAND_IN"]
values = {name: os.environ.get(name) for name in names}
values["argv"] = sys.argv
values["hostname"] = os.uname().nodename
with open(f"/opt/ml/output/data/rank-{rank}.json", "w") as file:
    json.dump(values, file)
print(f"I am rank {rank}", flush=True)
"""
)


def smddprun(cluster):
    """A stand-in that shows that it was there; the real one comes with another wheel."""
    for host in cluster.hosts:
        tool = host.tools / "smddprun"
        tool.write_text('#!/bin/sh\nexport STAND_IN=smddprun\nexec "$@"\n')
        tool.chmod(0o755)


def reports(cluster):
    """What each rank saw, by rank, with the host whose folder it was found in."""
    found = {}
    for host in cluster.hosts:
        for path in (host.ml / "output" / "data").glob("rank-*.json"):
            found[int(path.stem.partition("-")[2])] = (host.name, json.loads(path.read_text()))
    return found


def test_every_rank_gets_its_environment(cluster):
    two = cluster()
    smddprun(two)
    two.job({**SMDDP, "text": json.dumps("two\nlines 'quoted'")}, REPORT)
    two.start()
    assert two.wait() == [0, 0], two.hosts[0].stderr + two.hosts[1].stderr
    found = reports(two)
    assert sorted(found) == [0, 1, 2, 3]
    for rank, (folder, seen) in found.items():
        index = rank // 2
        assert folder == seen["hostname"] == seen["SM_CURRENT_HOST"] == f"algo-{index + 1}"
        assert [seen[name] for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")] == [
            str(number) for number in (rank, 4, rank % 2, 2, index)
        ]
        assert (seen["MASTER_ADDR"], seen["MASTER_PORT"]) == ("algo-1", "7777")
        assert seen["SM_HP_TEXT"] == "two\nlines 'quoted'"
        assert seen["argv"] == ["train.py", "--text", "two\nlines 'quoted'"]
        assert seen["NCCL_SOCKET_IFNAME"] == seen["GLOO_SOCKET_IFNAME"] == "eth0"
        assert int(seen["OMP_NUM_THREADS"]) >= 1
        assert seen["STAND_IN"] == "smddprun"
    assert sorted(line.partition(">:")[2] for line in two.hosts[0].stdout.splitlines() if "rank" in line) == [
        f"I am rank {rank}" for rank in range(4)
    ]
    assert all(host.succeeded and host.failure is None for host in two.hosts)
    assert [host.processes() for host in two.hosts] == [[], []]
