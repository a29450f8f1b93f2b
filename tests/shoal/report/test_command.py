"""`shoal report` on what users give it: other folders, short runs, broken runs, folders that cannot be written."""

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

from report_samples import host, ranks, write_run

ROOT = Path(__file__).resolve().parents[3]


def test_a_healthy_run(tmp_path: Path, report: Any) -> None:
    done = report(write_run(tmp_path / "run", host(points=1100), ranks(4, 300)), "--output", tmp_path / "page")
    assert done.returncode == 0
    assert done.stdout == f"{tmp_path / 'page' / 'profiler-report.html'}\n"
    assert done.stderr.startswith("No rule fired; 13 of 16 could judge\n")
    assert not (tmp_path / "run" / "rule-output").exists()


def test_a_short_run_says_that_it_is_short_and_can_be_judged_still(tmp_path: Path, report: Any) -> None:
    run = write_run(tmp_path, host(points=60, gpu=lambda point, device: 40.0))
    short = report(run)
    assert "LowGPUUtilization      not judged: 60 samples are too few: patience is 1000" in short.stderr
    assert report(run, "--patience", "50").stderr.startswith("A GPU has little to do")


def test_a_terminal_is_told_what_goes_on_and_stdout_has_the_answer_alone(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run[b]", host(points=60), ranks(2, 30))
    ours, theirs = pty.openpty()
    argv = [sys.executable, "-m", "shoal", "report", str(run), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "300"}
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=theirs, check=True, env=environment)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert f"reading {run}" in shown
    assert "CPUBottleneck" in json.loads(done.stdout)


def test_an_empty_run_has_a_page_too(tmp_path: Path, report: Any) -> None:
    (tmp_path / "profiler-output" / "system").mkdir(parents=True)
    done = report(tmp_path)
    assert done.returncode == 0, done.stderr
    assert "could judge" in done.stderr
    assert Path(done.stdout.strip()).is_file()


def test_a_run_of_garbage_is_reported_not_a_crash(tmp_path: Path, report: Any) -> None:
    run = write_run(tmp_path, host(points=30), ranks(2, 30))
    for path in (run / "profiler-output").rglob("*.json*"):
        path.write_bytes(b"\x00\xff{" * 50 + b"\n")
    (run / "job.json").write_bytes(b"\xff")
    done = report(run)
    assert done.returncode == 0, done.stderr
    assert "3 of 3 lines could not be read and were passed over" in done.stderr


def test_one_sample_and_one_step_can_be_drawn(tmp_path: Path, report: Any) -> None:
    done = report(write_run(tmp_path, host(points=1, gpus=0), ranks(1, 1)))
    assert done.returncode == 0, done.stderr


def test_rules_that_the_job_does_not_name_rightly(tmp_path: Path, report: Any) -> None:
    wrong = {"ProfilerRuleConfigurations": [{"RuleParameters": {"rule_to_invoke": "CPUBottlenek"}}]}
    done = report(write_run(tmp_path, host(points=2), job=wrong))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("shoal: ProfilerRuleConfigurations: no rule 'CPUBottlenek': there are CPUBottleneck,")


def test_a_folder_that_cannot_be_written(tmp_path: Path, report: Any) -> None:
    (tmp_path / "file").write_text("")
    done = report(write_run(tmp_path / "run", host(points=2)), "--output", tmp_path / "file" / "below")
    assert (done.returncode, done.stdout) == (3, "")
    assert "cannot be written" in done.stderr
    assert done.stderr.count("\n") == 1


def test_json_of_a_run_is_json(tmp_path: Path, report: Any) -> None:
    printed = json.loads(report(write_run(tmp_path, host(points=2)), "--json").stdout)
    assert printed["CPUBottleneck"]["Details"]["not_judged"].startswith("2 samples are too few")
