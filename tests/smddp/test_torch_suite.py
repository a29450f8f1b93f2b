"""PyTorch's own tests on two ranks, against what gloo passes; `make torch-suite` runs both back ends and more ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_what_passes_on_gloo_passes_on_smddp() -> None:
    script = Path(__file__).parent / "torch_suite.py"
    command = [sys.executable, str(script), "--backends", "smddp", "--world-sizes", "2", "--verbose"]
    done = subprocess.run(command, text=True, capture_output=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = json.loads(done.stdout.splitlines()[-1])["runs"]
    assert run["passed"] > 80
