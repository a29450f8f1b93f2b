"""The whole way of a measured job with the real image: SHOAL_PROFILE=1, two hosts, one of them slow, `shoal report`."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
IMAGE = json.loads((ROOT / "examples" / "digits-lightning" / "job.json").read_text())["AlgorithmSpecification"]
SCRIPT = """
import time
import torch, torch.distributed as dist
from shoal_entrypoint.steps import steps

dist.init_process_group("gloo")
gradient = torch.zeros(1000)
for number in steps(range(100)):
    time.sleep(0.15 if dist.get_rank() == 1 else 0.05)
    with steps.collective(4000):
        dist.all_reduce(gradient)
dist.barrier()
dist.destroy_process_group()
"""


def shoal(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shoal", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_slow_host_is_named(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text(SCRIPT)
    request = {
        "TrainingJobName": "measured",
        "RoleArn": "arn:aws:iam::000000000000:role/local",
        "AlgorithmSpecification": IMAGE,
        "HyperParameters": {
            "sagemaker_program": "train.py",
            "sagemaker_submit_directory": "file://source",
            "sagemaker_torch_distributed_enabled": "true",
        },
        "OutputDataConfig": {"S3OutputPath": "file://runs"},
        "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": 2, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": 200},
        "Environment": {"SHOAL_PROFILE": "1"},
        "ProfilerRuleConfigurations": [
            {
                "RuleConfigurationName": "late",
                "RuleEvaluatorImage": "none",
                "RuleParameters": {"rule_to_invoke": "StragglerRank", "late": "50"},
            }
        ],
    }
    (tmp_path / "job.json").write_text(json.dumps(request))
    command = [sys.executable, "-m", "shoal", "run", str(tmp_path / "job.json")]
    streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, **streams) as running:
        seen: list[str] = []  # what `shoal top` shows until the job ends
        while running.poll() is None and not (seen and "steps/s" in seen[-1]):
            seen.append(shoal("top", tmp_path / "runs" / "measured", "--once").stdout)
        said, _ = running.communicate()
    assert running.returncode == 0, said
    lines = [line.split() for line in seen[-1].splitlines()]
    assert [line[0] for line in lines] == ["host", "algo-1", "algo-2"], seen
    assert {"CPU", "memory", "in", "out", "steps/s", "step", "data", "comm."} <= set(lines[0])
    run = tmp_path / "runs" / "measured"
    hosts = {path.name.split(".")[1] for path in (run / "profiler-output" / "system").rglob("*.json")}
    assert hosts == {"algo-1", "algo-2"}
    reported = shoal("report", run)
    assert reported.returncode == 0, reported.stderr
    assert reported.stderr.startswith("One rank keeps the others waiting\n")
    found = json.loads(shoal("report", run, "--json").stdout)
    assert set(found) == {"StragglerRank", "OverallSystemUsage"}
    evidence = found["StragglerRank"]["Details"]["evidence"]
    assert [(one["node"], one["device"]) for one in evidence] == [("algo-2", "rank 1")]
    metrics = {row["Metric"] for row in found["OverallSystemUsage"]["Details"]["usage"]}
    assert {"CPU", "CPUMemory", "NetworkReceive", "NetworkTransmit"} <= metrics
