"""The whole way with the real image: a job spec, two containers, mpirun, smddp, results."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "digits-lightning"

# Every rank adds its number up over smddp and says who it is; then one may fail.
SCRIPT = """
import argparse, json, os, pathlib
import smdistributed.dataparallel.torch.torch_smddp
import torch, torch.distributed as dist

parser = argparse.ArgumentParser()
parser.add_argument("--fail_rank", type=int, default=-1)
parser.add_argument("--label")
options = parser.parse_args()
dist.init_process_group("smddp")
rank = dist.get_rank()
total = torch.tensor([float(rank)])
dist.all_reduce(total)
if rank == options.fail_rank:
    raise ValueError(f"rank {rank} was told to fail")
me = {name: os.environ[name] for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "GROUP_RANK",
                                          "MASTER_ADDR", "SM_CURRENT_HOST")}
gathered = [None] * dist.get_world_size()
dist.all_gather_object(gathered, me)
if rank == 0:
    result = {"total": total.item(), "label": options.label, "ranks": gathered}
    pathlib.Path(os.environ["SM_MODEL_DIR"], "result.json").write_text(json.dumps(result))
dist.barrier()
dist.destroy_process_group()
"""


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, check=False, cwd=ROOT)


def job(folder: Path, script: str | None, **hyperparameters: str) -> Path:
    """Write a job of two hosts with two ranks each, its results in `folder`/runs."""
    request = json.loads((EXAMPLE / "job.json").read_text())
    (folder / "source").mkdir()
    if script is not None:
        (folder / "source" / "train.py").write_text(script)
    launch = {key: value for key, value in request["HyperParameters"].items() if key.startswith("sagemaker_")}
    request |= {
        "TrainingJobName": "e2e",
        "HyperParameters": launch | hyperparameters,
        "OutputDataConfig": {"S3OutputPath": "file://runs"},
    }
    del request["InputDataConfig"]
    path = folder / "job.json"
    path.write_text(json.dumps(request))
    return path


def description(folder: Path) -> dict[str, Any]:
    described: dict[str, Any] = json.loads((folder / "runs" / "e2e" / "job.json").read_text())
    return described


def exit_codes(described: dict[str, Any]) -> dict[str, int]:
    return {host["Host"]: host["ExitCode"] for host in described["Shoal"]["Hosts"]}


def test_every_rank_has_its_environment_and_smddp_reaches_all(tmp_path: Path) -> None:
    label = 'two words; $(touch /tmp/never) "quoted"'
    done = run("-m", "shoal", "run", job(tmp_path, SCRIPT, label=label))
    assert done.returncode == 0, done.stdout + done.stderr
    extracted = tmp_path / "model"
    extracted.mkdir()
    subprocess.run(["tar", "xzf", tmp_path / "runs/e2e/output/model.tar.gz", "-C", extracted], check=True)
    result = json.loads((extracted / "result.json").read_text())
    assert result["total"] == 0 + 1 + 2 + 3
    assert result["label"] == label
    expected = [
        {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "LOCAL_WORLD_SIZE": "2",
            "WORLD_SIZE": "4",
            "GROUP_RANK": str(rank // 2),
            "MASTER_ADDR": "algo-1",
            "SM_CURRENT_HOST": f"algo-{rank // 2 + 1}",
        }
        for rank in range(4)
    ]
    assert result["ranks"] == expected


def test_one_rank_of_one_host_fails_and_so_does_the_job(tmp_path: Path) -> None:
    done = run("-m", "shoal", "run", job(tmp_path, SCRIPT, fail_rank="3"))
    assert done.returncode == 1
    described = description(tmp_path)
    assert described["TrainingJobStatus"] == "Failed"
    assert "ValueError: rank 3 was told to fail" in described["FailureReason"]
    assert "rank 3 on algo-2" in described["FailureReason"]
    assert exit_codes(described) == {"algo-1": 1, "algo-2": 1}
    logs = tmp_path / "runs" / "e2e" / "logs"
    assert (logs / "algo-1.failure").read_text() == (logs / "algo-2.failure").read_text()


def test_an_entry_point_that_is_not_there_costs_no_container(tmp_path: Path) -> None:
    done = run("-m", "shoal", "run", job(tmp_path, None))
    assert done.returncode == 2
    missing = tmp_path / "source" / "train.py"
    assert done.stderr.splitlines()[-1].endswith(f"HyperParameters.sagemaker_program: there is no file {missing}")
    assert not (tmp_path / "runs").exists()
