"""What `benchmarks/sampler.py` measures, for a few seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_cost_of_a_sampler_that_samples() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "sampler.py"), "--seconds", "3", "--interval-ms", "200"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["lines"] > 10
    assert 0 < found["percent_of_one_core"] < 100
    assert 1 < found["peak_mib"] < 200
    assert [claim["what"] for claim in found["claims"]] == ["percent of one core", "MiB at most"]


def test_bad_options_are_refused_in_one_line() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "sampler.py"), "--seconds", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("--seconds: at least 1; --interval-ms: 100 to 60000")
