"""The whole way of a measured job with the real image: the example with a slow host, `shoal top`, `shoal report`."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.timeout(300)]

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "measured"


def shoal(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "shoal", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_a_slow_host_is_named(tmp_path: Path) -> None:
    shutil.copytree(EXAMPLE / "source", tmp_path / "source")
    request = json.loads((EXAMPLE / "host.json").read_text())
    request["HyperParameters"]["steps"] = "100"
    request |= {
        "TrainingJobName": "measured",
        "OutputDataConfig": {"S3OutputPath": "file://runs"},
        "ProfilerRuleConfigurations": [
            {
                "RuleConfigurationName": "late",
                "RuleEvaluatorImage": "none",
                "RuleParameters": {"rule_to_invoke": "StragglerRank", "late": "20"},
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
