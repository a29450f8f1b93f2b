"""What `shoal top` makes of the last lines of a host's files."""

import json
from pathlib import Path

import pytest
from report_samples import BEGAN, event, host, ranks

from shoal.report.live import COLUMNS, now
from shoal.report.top_command import _why_none


def content(*lines: object) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def test_the_last_ten_seconds_count_from_the_middle_of_a_line_on() -> None:
    events = list(host(points=100, gpu=lambda point, device: 0.0 if point < 70 else 80.0, cpu=lambda point, core: 30.0))
    text = content(*events, *ranks(2, 440, data=0.022))
    seen = now(text[37:])  # what tail(1) gives
    assert seen.newest == pytest.approx(BEGAN + 53.4, abs=0.01)
    expected = {"GPU": "80 %", "its memory": "60 %", "CPU": "30 %", "memory": "40 %", "in": "2 MB/s", "out": "3 MB/s"}
    steps = {"steps/s": "9.09", "step": "0.11 s", "data": "20 %", "comm.": "9 %"}
    assert seen.figures == {**expected, "read": "50 MB/s", **steps}
    assert set(seen.figures) == set(COLUMNS)


def test_a_container_s_own_share_stands_before_that_of_the_cores() -> None:
    lines = [event("cpu", "cpu0", "CPUUtilization", 90.0, "algo-1", BEGAN)]
    assert now(content(*lines)).figures == {"CPU": "90 %"}
    lines.append(event("container", "CPUOfLimit", "Percentage", 40.0, "algo-1", BEGAN))
    assert now(content(*lines)).figures == {"CPU": "40 %"}


def test_nothing_and_garbage() -> None:
    assert now(b"").newest == 0
    assert now(b"\xff{" * 100 + b"\n[]\n").figures == {}


def test_why_there_is_nothing_to_show(tmp_path: Path) -> None:
    address = "unix://engine"
    assert _why_none("runs/x", "x", address).endswith(
        f"runs on the engine at {address}, and there is no run's folder runs/x"
    )
    run = str(tmp_path)
    assert "no run's folder (there is no job.json)" in _why_none(run, "x", address)
    (tmp_path / "job.json").write_text('{"TrainingJobName": "x", "TrainingJobStatus": "Failed"}')
    assert _why_none(run, "x", address) == f"x has ended (Failed): `shoal report {run}` says what it did"
    (tmp_path / "job.json").write_text('{"TrainingJobName": "x", "TrainingJobStatus": "InProgress"}')
    assert f"the engine at {address} has no host of it (yet): is DOCKER_HOST another one?" in _why_none(
        run, "x", address
    )
