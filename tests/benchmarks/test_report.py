"""What `benchmarks/report.py` measures, on a short run of two hosts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, str(ROOT / "benchmarks" / "report.py")]


def test_time_and_size_of_a_page() -> None:
    options = ["--hosts", "2", "--ranks", "4", "--minutes", "1"]
    done = subprocess.run([*COMMAND, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["values"], found["steps"]) == (2 * 120 * 54, 4 * 80)
    assert found["says"].startswith("One rank keeps the others waiting")
    assert found["seconds"] > 0
    assert found["peak_mb"] > 50
    assert 0.05 < found["page_mb"] < 5
    assert [claim["what"] for claim in found["claims"]] == ["seconds", "MB of the page"]


def test_options_that_make_no_run() -> None:
    done = subprocess.run([*COMMAND, "--ranks", "2"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith("--hosts, --minutes: at least 1; --ranks: at least one a host")
