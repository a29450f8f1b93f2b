"""The sampler's files, read by SageMaker's own reader: the package smdebug, in a virtual environment of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sdk_environments import python_of
from sdk_process import PROGRAMS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SOURCE = Path(__file__).resolve().parents[2] / "entrypoint" / "src"
START = "import sys; sys.path.insert(0, sys.argv.pop(1)); from shoal_entrypoint.profile.sampler import main; main()"


def test_their_reader_reads_what_the_sampler_writes(tmp_path: Path) -> None:
    reader = python_of("smdebug")
    argv = [sys.executable, "-I", "-S", "-c", START, str(SOURCE), str(tmp_path), "algo-2", "100"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE) as sampler:
        time.sleep(2)
        sampler.communicate()
    files = list(tmp_path.rglob("*.algo-2.json"))
    written = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    assert len({one["Timestamp"] for one in written}) > 3
    command = [reader, PROGRAMS / "read_metrics.py", tmp_path, tmp_path / "events"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    read = json.loads((tmp_path / "events").read_text())
    names = ("Type", "Name", "Dimension", "Value", "NodeId", "Timestamp")
    expected = [[one[name] for name in names] for one in written]
    assert sorted(read) == sorted(expected)
    assert {"CPUUtilization", "I/OWaitPercentage"} <= {one[2] for one in read}
    assert "MemoryUsedPercent" in {one[1] for one in read}
