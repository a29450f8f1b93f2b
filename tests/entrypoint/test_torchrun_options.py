"""Options of the user's own for torchrun, and the retired launcher of PyTorch/XLA."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import Cluster, MakeCluster
from shoal_entrypoint.launchers import torchrun

FLAGS = {"sagemaker_torch_distributed_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "2"}
OPTIONS = "sagemaker_torch_distributed_custom_torchrun_options"


def with_torchrun(made: Cluster) -> Cluster:
    pytest.importorskip("torch")
    for host in made.hosts:
        (host.tools / "torchrun").symlink_to(Path(sys.executable).parent / "torchrun")
    return made


@pytest.mark.slow
def test_torchrun_starts_ranks_again_and_keeps_their_logs(cluster: MakeCluster) -> None:
    one = with_torchrun(cluster(1))
    script = (
        "import os\nif os.environ['TORCHELASTIC_RESTART_COUNT'] == '0':\n    raise SystemExit(5)\n"
        "print('second life of', os.environ['RANK'], flush=True)\n"
    )
    options = "--max-restarts=1 --monitor-interval 0.1 --log-dir '/opt/ml/output/data/my logs' --tee 3"
    one.job({**FLAGS, OPTIONS: json.dumps(options)}, script)
    one.start()
    assert one.wait(90) == [0], one.hosts[0].stderr
    logs = sorted((one.hosts[0].ml / "output" / "data" / "my logs").glob("**/attempt_1/*/stdout.log"))
    assert [path.read_text() for path in logs] == ["second life of 0\n", "second life of 1\n"]
    assert "second life of 1" in one.hosts[0].stdout


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_another_rendezvous_on_two_hosts(cluster: MakeCluster, fails: bool) -> None:
    """It gives out ranks as hosts come: a failure names no host that it does not know."""
    two = with_torchrun(cluster())
    script = (
        "import os, time\nopen('/opt/ml/output/data/rank-' + os.environ['RANK'], 'w').close()\n"
        f"if {fails} and os.environ['RANK'] == '3':\n    raise ValueError('boom')\ntime.sleep({60 if fails else 0})\n"
    )
    two.job({**FLAGS, OPTIONS: "--rdzv-backend=c10d --rdzv-endpoint=algo-1:29400 --rdzv-id=job"}, script)
    two.start()
    assert two.wait(90) == [int(fails)] * 2, two.hosts[0].stderr
    found = [path.name for host in two.hosts for path in (host.ml / "output" / "data").glob("rank-*")]
    assert sorted(found) == [f"rank-{rank}" for rank in range(4)]
    for host in two.hosts if fails else []:
        assert 'ErrorMessage "ValueError: boom\nrank 3 on one of algo-1, algo-2\n' in host.failure


def test_an_option_that_torchrun_does_not_know_is_torchrun_s_to_refuse(cluster: MakeCluster) -> None:
    one = with_torchrun(cluster(1))
    one.job({**FLAGS, OPTIONS: "--no-such-option"}, "pass")
    one.start()
    assert one.wait(60) == [2]
    assert "--no-such-option" in one.hosts[0].failure
    assert "Traceback" not in one.hosts[0].failure


XLA = {"sagemaker_pytorch_xla_multi_worker_enabled": "true"}
SPAWN = """\
import json, os, sys
told = {name: value for name, value in os.environ.items() if name.startswith(("XRT_", "NCCL_", "FI_", "OFI_", "GPU_"))}
json.dump({"argv": sys.orig_argv, "env": told}, open("/opt/ml/output/data/spawn", "w"))
"""


def test_xla_is_refused_where_torch_xla_is_not(cluster: MakeCluster) -> None:
    one = cluster(1)
    one.job(XLA, "")
    one.start()
    assert one.wait() == [1]
    assert one.hosts[0].failure == (
        "sagemaker_pytorch_xla_multi_worker_enabled: this image has no torch_xla: PyTorch/XLA on GPUs and its training"
        " compiler have ended; use torch_distributed, and torch.compile(model) in the script"
    )


@pytest.mark.parametrize("count", [1, 2])
def test_xla_runs_where_torch_xla_is(cluster: MakeCluster, count: int) -> None:
    """A stand-in for torch_xla; whoever imports it on the way learns so."""
    made = cluster(count)
    files = {
        "torch_xla/distributed/xla_spawn.py": SPAWN,
        "torch_xla/distributed/__init__.py": "",
        "torch_xla/__init__.py": "",
    }
    for host in made.hosts:
        (host.tools / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: fake'\necho 'GPU 1: fake'\n")
        (host.tools / "nvidia-smi").chmod(0o755)
    made.job({**XLA, "lr": "1"}, "raise SystemExit(9)", files)
    made.start({"PYTHONPATH": "/opt/ml/code", "NCCL_DEBUG": "TRACE"})
    assert made.wait() == [0] * count, made.hosts[0].stderr
    workers = "|".join(f"localservice:{index};{host.name}:43857" for index, host in enumerate(made.hosts))
    for index, host in enumerate(made.hosts):
        told = json.loads((host.ml / "output" / "data" / "spawn").read_text())
        words = ["-m", "torch_xla.distributed.xla_spawn", "--num_gpus", "2", "train.py", "--lr", "1"]
        assert told["argv"][1:] == words
        expected = {
            "NCCL_DEBUG": "TRACE",  # the user's own
            "NCCL_PROTO": "simple",
            "FI_EFA_USE_DEVICE_RDMA": "1",
            "OFI_NCCL_NIC_DUP_CONNS": "2",
            "XRT_HOST_ORDINAL": str(index),
            "XRT_SHARD_WORLD_SIZE": str(count),
            "XRT_WORKERS": workers,
            "GPU_NUM_DEVICES": "2",
        }
        assert expected.items() <= told["env"].items()
        assert told["env"].get("XRT_MESH_SERVICE_ADDRESS") == ("algo-1:53957" if count > 1 else None)


def test_xla_needs_gpus_and_a_script(cluster: MakeCluster) -> None:
    one = cluster(1)
    files = {"torch_xla/distributed/xla_spawn.py": "", "torch_xla/__init__.py": "raise SystemExit(9)"}
    one.job(XLA, "pass", files)
    one.start({"PYTHONPATH": "/opt/ml/code"})
    assert one.wait() == [1]
    assert one.hosts[0].failure.endswith("this host has no GPU, and torch_xla's launcher starts one process on each")


PRINTS = """\
import gc, json, sys
import torch.distributed.run
print(json.dumps([sys.argv, sys.path, __name__, __file__, gc.isenabled(), sys.executable]))
"""


def test_torchrun_s_script_is_started_as_if_by_itself(tmp_path: Path) -> None:
    script = tmp_path / "torchrun"
    (tmp_path / "real").mkdir()
    script.symlink_to(tmp_path / "real" / "torchrun")
    script.write_text(f"#!{sys.executable}\n{PRINTS}")
    script.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    command = ["torchrun", "--nnodes", "2", "train.py", "-c"]
    started = torchrun.quick_start(command, path)
    assert (started[0], started[2:]) == (sys.executable, [str(script), *command[1:]])
    run = functools.partial(
        subprocess.run, capture_output=True, check=True, text=True, env={**os.environ, "PATH": path}
    )
    assert run(started).stdout == run(command).stdout


@pytest.mark.parametrize(
    "script",
    [
        None,
        '#!/bin/sh\nexec python -m torch.distributed.run "$@"\n',
        "#!/bin/sh\n'''exec' /a/long/path/to/python \"$0\" \"$@\"\n' '''\nfrom torch.distributed.run import main\n",
        "#!/usr/bin/env python3\nfrom torch.distributed.run import main\n",
        "#!/usr/bin/python3 -I\nfrom torch.distributed.run import main\n",
        "#!/usr/bin/python3\nfrom my.launcher import main\n",
        "",
        "\x7fELF torch.distributed.run",
    ],
)
def test_another_torchrun_is_left_alone(tmp_path: Path, script: str | None) -> None:
    if script is not None:
        (tmp_path / "torchrun").write_text(script)
        (tmp_path / "torchrun").chmod(0o755)
    command = ["torchrun", "--nnodes", "2", "train.py"]
    assert torchrun.quick_start(command, str(tmp_path)) == command
    neuron = ["neuron_parallel_compile", *command]
    assert torchrun.quick_start(neuron, str(tmp_path)) == neuron
