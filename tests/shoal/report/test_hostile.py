"""No content of a run's folder stops a report: whatever lines, files and folders hold, there is a page or one line."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from report_samples import BEGAN, event, host, ranks, step, write_run
from rich.console import Console

from shoal.errors import ShoalError
from shoal.report import compare, page, terminal
from shoal.report.live import now
from shoal.report.read import read
from shoal.report.rules import chosen, judge

WORDS = st.sampled_from(["algo-1", "algo-2", "algo-²", "algo-" + "9" * 5000, "", "a<b>", "\x00", "é" * 300, "-1"])
TIMES = st.floats(BEGAN, BEGAN + 100) | st.sampled_from([BEGAN, BEGAN + 0.5, 946_684_800.0, 4_102_444_799.0, 0, -1])
NUMBERS = st.one_of(
    st.floats(0, 100),
    st.sampled_from([0, -1, -0.0, 1e-320, 1e18, 1e300, -1e300, 1.7e308, 1 << 62, 1 << 70, "5", True]),
)
NAMES = st.sampled_from(["cpu0", "gpu0", "gpu1", "loaders", "cores", "MemoryUsedPercent", "ReceiveBytesPerSecond", "x"])
DIMENSIONS = st.sampled_from(
    ["CPUUtilization", "I/OWaitPercentage", "GPUUtilization", "GPUMemoryUtilization", "", None]
)
EVENTS = st.builds(
    lambda name, dimension, value, node, time: event("cpu", name, dimension, value, node, time),
    *(NAMES, DIMENSIONS, NUMBERS, WORDS, TIMES),
)
COUNTS = st.fixed_dictionaries({"Calls": NUMBERS, "Bytes": NUMBERS}, optional={"Seconds": NUMBERS | st.none()})
NUMBERS_OF_STEPS = st.integers(0, 3) | st.sampled_from([-1, 1 << 62, -(1 << 62), 1 << 70, 1.5, None])
STEPS = st.builds(
    lambda node, rank, number, end, seconds, parts: step(node, rank, number, end, seconds, **parts),
    *(WORDS, NUMBERS_OF_STEPS, NUMBERS_OF_STEPS, TIMES, NUMBERS),
    st.dictionaries(
        st.sampled_from(["DataSeconds", "CollectiveSeconds", "CollectiveBytes", "CheckpointSeconds"]),
        NUMBERS | st.none(),
    )
    | st.fixed_dictionaries(
        {"Collectives": st.dictionaries(st.sampled_from(["all_reduce", "x:y", "é", ""]), COUNTS, max_size=2) | NUMBERS}
    ),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = (
    *("TrainingJobName", "TrainingJobStatus", "SecondaryStatus", "AlgorithmSpecification", "ResourceConfig"),
    *("HyperParameters", "Environment", "Shoal", "FailureReason"),
)
JOBS = JSON | st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4)


def lines_of(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[bytes]]:
    return st.lists(values.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=30), max_size=12)


@given(system=lines_of(EVENTS), marks=lines_of(STEPS), job=JOBS, patience=st.sampled_from([0.0, 2.0]))
@example(system=[], marks=[b'{"NodeId":"a","Rank":0,"Step":1,"Timestamp":1.7e9,"Seconds":1e999}'], job=None, patience=0)
@settings(
    max_examples=20,
    derandomize="EXPLORE" not in os.environ,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],  # a page takes too long for making a failure smaller
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_no_content_stops_a_report(
    tmp_path: Path, system: list[bytes], marks: list[bytes], job: Any, patience: float
) -> None:
    run = tmp_path / "run"
    shutil.rmtree(run, ignore_errors=True)
    for folder, name, lines in (("system", "1.algo-1.json", system), ("steps", "algo-1-0.jsonl", marks)):
        (run / "profiler-output" / folder).mkdir(parents=True)
        (run / "profiler-output" / folder / name).write_bytes(b"\n".join(lines) + b"\n")
    (run / "job.json").write_text(json.dumps(job))
    seen = read(run)
    outcomes = judge(seen, chosen({}, patience))
    json.dumps([outcome.as_original() for outcome in outcomes], allow_nan=False)
    assert page.render(seen, outcomes, page.links(run, run)).endswith("</html>")
    terminal.show(Console(quiet=True), seen, outcomes)
    compare.sentence(compare.differences(seen, seen))
    now(b"\n".join(system + marks))


def _folders_named_like_files(run: Path) -> None:
    for name in (
        "job.json",
        "logs/algo-2.log",
        "profiler-output/system/1.algo-1.json",
        "profiler-output/steps/a.jsonl",
    ):
        (run / name).mkdir(parents=True)


def _loops(run: Path) -> None:
    (run / "profiler-output" / "system" / "again").symlink_to(run, target_is_directory=True)
    (run / "profiler-output" / "steps" / "own.jsonl").symlink_to("own.jsonl")
    (run / "logs" / "algo-2.log").symlink_to("nowhere")
    (run / "job.json").symlink_to("job.json")


def _other_kinds(run: Path) -> None:
    os.mkfifo(run / "profiler-output" / "system" / "2.algo-1.json")
    os.mkfifo(run / "logs" / "algo-2.log")
    (run / "profiler-output" / "system" / "3.algo-1.json").write_bytes(b"")


@pytest.mark.parametrize("spoil", [_folders_named_like_files, _loops, _other_kinds])
def test_what_lies_there_may_be_no_file(
    tmp_path: Path, spoil: Callable[[Path], None], report: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    run = write_run(tmp_path / "run", host(points=20), ranks(2, 30))
    spoil(run)
    done = report(run, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["StragglerRank"]["Datapoints"] == 60


def test_a_rank_that_two_processes_claim_to_be(
    tmp_path: Path, report: Callable[..., subprocess.CompletedProcess[str]]
) -> None:
    """As when a script starts its own processes, and none is told its rank."""
    one = list(ranks(2, 40))
    done = report(write_run(tmp_path, steps=[{**mark, "Rank": 0} for mark in one + one]))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(os.getuid() != 0, reason="becomes another user")
def test_a_folder_that_may_not_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", host(points=2))
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    (run / "profiler-output").chmod(0)
    program = """
import os, sys
from pathlib import Path
from shoal.errors import ShoalError
from shoal.report import command, read, rules
os.setuid(65534)
try:
    command._judged(Path(sys.argv[1]), None)
except ShoalError as error:
    print(error)
"""
    root = str(Path(__file__).resolve().parents[3])
    said = subprocess.run(
        [sys.executable, "-c", program, run],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert said.stdout.endswith("profiler-output/system: cannot be read: Permission denied\n"), said.stderr


def test_a_rule_s_parameter_may_be_any_json() -> None:
    configuration = {"RuleParameters": {"rule_to_invoke": "CPUBottleneck", "threshold": [1]}}
    with pytest.raises(ShoalError, match=r"threshold: '\[1\]': a number was expected"):
        chosen({"ProfilerRuleConfigurations": [configuration]})
