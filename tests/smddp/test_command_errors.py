"""`smddp` where something is in the way: one line on stderr, and nothing left behind."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rank_jobs import clean_environment
from smdistributed.dataparallel import compiled, tuning
from smdistributed.dataparallel.command import info
from smdistributed.dataparallel.compiled import _C
from smdistributed.dataparallel.digits import is_whole_number
from smdistributed.dataparallel.exceptions import SMDDPUsageError

SMDDP = [sys.executable, "-m", "smdistributed.dataparallel.command"]
LAUNCHED = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}


def smddp(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    env = clean_environment() | extra
    return subprocess.run([*SMDDP, *arguments], env=env, capture_output=True, text=True, timeout=200, check=False)


def only_line(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def other_build(folder: Path, compiled_part: str) -> dict[str, str]:
    """The environment of an installation whose compiled part is this Python code."""
    package = folder / "smdistributed" / "dataparallel"
    source = Path(compiled.__file__).parent
    shutil.copytree(source, package, ignore=shutil.ignore_patterns("_C*", "__pycache__"))
    (package / "_C.py").write_text(compiled_part)
    return {"PYTHONPATH": str(folder)}


@pytest.mark.parametrize("command", ["--version", "info", "tune"])
@pytest.mark.parametrize(
    ("compiled_part", "words"),
    [
        ("raise ImportError('undefined symbol: _ZN4c10d')", "does not load with torch"),
        ("torch_version = '1.12.1'", "was built for torch 1.12.1, this is"),
    ],
)
def test_a_wheel_for_another_torch(tmp_path: Path, command: str, compiled_part: str, words: str) -> None:
    line = only_line(smddp(command, **other_build(tmp_path, compiled_part), **LAUNCHED), 1)
    assert words in line
    assert "pip install --no-build-isolation" in line


@pytest.mark.parametrize("arguments", [["info"], ["--version"], ["--help"]])
def test_a_full_disk(arguments: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*SMDDP, *arguments], env=clean_environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 1
    assert done.stderr == "smddp: standard output: No space left on device\n"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"RANK": "0"}, "RANK is set and WORLD_SIZE, MASTER_ADDR, MASTER_PORT not"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "RANK is set and MASTER_ADDR not"),
        (LAUNCHED | {"RANK": "x"}, "RANK=x: expected a whole number"),
        (LAUNCHED | {"WORLD_SIZE": "²"}, "WORLD_SIZE=²: expected a whole number"),
        (LAUNCHED | {"MASTER_PORT": "-1"}, "MASTER_PORT=-1: expected a whole number"),
        (LAUNCHED | {"RANK": "1"}, "RANK=1: expected less than WORLD_SIZE=1"),
        ({"SMDDP_TUNE_FILE": "none"}, "SMDDP_TUNE_FILE=none names no table to write: give --output FILE"),
    ],
)
def test_tune_says_what_is_wrong_with_the_environment(environment: dict[str, str], words: str) -> None:
    assert only_line(smddp("tune", **environment), 2).startswith(f"smddp tune: {words}")


@pytest.mark.parametrize(("option", "value"), [("--ranks", "²"), ("--rounds", "９"), ("--largest", "²K")])
def test_only_plain_digits_are_numbers(option: str, value: str) -> None:
    done = smddp("tune", option, value)
    assert done.returncode == 2
    assert f"argument {option}: {value}: expected a" in done.stderr


def test_ranks_that_cannot_meet() -> None:
    with socket.create_server(("", 0)) as taken:
        done = smddp("tune", **LAUNCHED, MASTER_PORT=str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("smddp: the ranks did not meet: "), done.stderr


def test_tune_finds_out_before_it_measures_that_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    table = tmp_path / "file" / "below" / "tuning.json"
    assert only_line(smddp("tune", "--ranks", "3", "--output", str(table)), 1) == f"smddp: {table}: Not a directory"
    with pytest.raises(SMDDPUsageError, match="Not a directory"):
        tuning.check_output(table)
    tuning.check_output(tmp_path / "deep" / "tuning.json")
    assert list((tmp_path / "deep").iterdir()) == []


def test_tune_measures_no_message_above_the_largest(tmp_path: Path) -> None:
    table = tmp_path / "tuning.json"
    done = smddp("tune", "--ranks", "2", "--largest", "64K", "--rounds", "1", "--output", str(table))
    assert done.returncode == 0, done.stderr
    assert "SMDDP_SHM_CHUNK_BYTES: matters from 1 MiB, more than --largest, so not tuned" in done.stderr
    measured = tuning.load(table)["1x2"]["measurements"]
    assert max(int(size) for one in measured for size in one["seconds"]) == 64 << 10


def test_tune_that_measures_nothing_keeps_what_the_file_has(tmp_path: Path) -> None:
    table = tmp_path / "tuning.json"
    tuning.save(table, "1x2", {"settings": {"SMDDP_ONE_SHOT_BYTES": "16384"}})
    done = smddp("tune", "--ranks", "2", "--largest", "4K", "--output", str(table))
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[-1] == f"{table}: 1x2: nothing was measured, so the file stays as it is"
    assert tuning.load(table)["1x2"]["settings"] == {"SMDDP_ONE_SHOT_BYTES": "16384"}


def test_a_table_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path: Path) -> None:
    table = tmp_path / "tuning.json"
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
    try:
        with pytest.raises(SMDDPUsageError, match="File too large"):
            tuning.save(table, "1x2", {"settings": {}, "measurements": ["x" * 100] * 200})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert list(tmp_path.iterdir()) == []


def test_tune_says_which_rank_was_killed(tmp_path: Path) -> None:
    command = [*SMDDP, "tune", "--ranks", "2", "--rounds", "1000", "--output", str(tmp_path / "tuning.json")]
    with subprocess.Popen(command, env=clean_environment(), stderr=subprocess.PIPE, text=True) as tune:
        assert tune.stderr is not None
        tune.stderr.readline()  # all ranks have met
        os.kill(children(tune.pid)[1], signal.SIGKILL)
        said = tune.stderr.read().splitlines()
    assert tune.returncode == 1
    assert "smddp: rank 1 was ended by signal 9 (SIGKILL)" in said


def children(process: int) -> list[int]:
    found = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True, check=False)
    return [int(word) for word in found.stdout.split()]


def test_sigterm_ends_the_ranks_and_leaves_no_folder(tmp_path: Path) -> None:
    env = clean_environment() | {"TMPDIR": str(tmp_path)}
    shared = set(Path("/dev/shm").glob("smddp*"))
    command = [*SMDDP, "tune", "--ranks", "2", "--rounds", "1000", "--output", str(tmp_path / "tuning.json")]
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as tune:
        assert tune.stderr is not None
        for line in tune.stderr:  # until it measures
            if line.startswith("smddp "):
                break
        ranks = children(tune.pid)
        assert len(ranks) == 2
        assert list(tmp_path.glob("smddp-*"))
        start = time.monotonic()
        tune.send_signal(signal.SIGTERM)
        assert tune.wait(20) == 128 + signal.SIGTERM
        assert time.monotonic() - start < 10
    assert [pid for pid in ranks if Path(f"/proc/{pid}").exists()] == []
    assert list(tmp_path.iterdir()) == []
    assert set(Path("/dev/shm").glob("smddp*")) <= shared


def test_none_is_no_table(tmp_path: Path) -> None:
    assert tuning.table_path({"SMDDP_TUNE_FILE": "none"}) == (None, True)
    done = subprocess.run(
        [*SMDDP, "info", "--json"],
        env=clean_environment() | {"SMDDP_TUNE_FILE": "none"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["tuning table"] == "none (SMDDP_TUNE_FILE=none)"


def test_info_says_where_each_setting_is_from(tmp_path: Path) -> None:
    table = tmp_path / "tuning.json"
    tuning.save(table, "1x2", {"settings": {"SMDDP_ONE_SHOT_BYTES": "12345", "SMDDP_SHM_CHUNK_BYTES": "8192"}})
    ranks = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "SMDDP_TUNE_FILE": str(table)}
    set_here = {"SMDDP_SHM_CHUNK_BYTES": "4096", "SMDDP_INIT_TIMEOUT": "7", "SMDDP_STATS_FILE": ""}
    secrets = {"SMDDP_JOB_SECRET": "hush", "SMDDP_JOB_SECRT": "hush"}
    done = smddp("info", "--json", **ranks, **set_here, **secrets)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["settings"]
    assert found["SMDDP_ONE_SHOT_BYTES"] == "12345 (table)"
    assert found["SMDDP_SHM_CHUNK_BYTES"] == "4096 (environment)"
    assert found["SMDDP_STREAMS"] == "1 (default)"
    assert found["SMDDP_INIT_TIMEOUT"] == "7 (environment)"
    assert found["SMDDP_TUNE_FILE"] == f"{table} (environment)"
    assert found["SMDDP_JOB_SECRET"] == "(not shown) (environment)"
    assert found["SMDDP_JOB_SECRT"] == "no such setting"
    assert "SMDDP_STATS_FILE" not in found
    assert "hush" not in done.stdout
    # Of another shape, the group takes nothing from this table.
    alone = smddp("info", "--json", **ranks | {"WORLD_SIZE": "4"})
    assert json.loads(alone.stdout)["settings"]["SMDDP_ONE_SHOT_BYTES"] == "32768 (default)"


def test_info_says_what_a_group_would_complain_of(tmp_path: Path) -> None:
    table = tmp_path / "smddp" / "tuning.json"
    other = {"settings": {"SMDDP_ONE_SHOT_BYTES": "8"}, "machine": {"cpu": "another", "cores": 1}}
    tuning.save(table, "1x1", other)
    env = LAUNCHED | {"LOCAL_WORLD_SIZE": "1", "XDG_CONFIG_HOME": str(tmp_path)}
    done = smddp("info", "--json", **env)
    assert done.stderr == ""
    facts = json.loads(done.stdout)
    assert re.match(rf"{table}: 1x1: measured on .*another", facts["tuning table"])
    assert facts["settings"]["SMDDP_ONE_SHOT_BYTES"].endswith("(default)")


@pytest.mark.parametrize("shape", [LAUNCHED | {"LOCAL_WORLD_SIZE": "1"}, LAUNCHED | {"LOCAL_WORLD_SIZE": "2"}, {}])
def test_info_shows_a_value_that_no_group_takes(tmp_path: Path, shape: dict[str, str]) -> None:
    """Also one for groups of another shape, or where there is none."""
    table = tmp_path / "tuning.json"
    tuning.save(table, "1x1", {"settings": {"SMDDP_ONE_SHOT_BYTES": "foo"}})
    facts = json.loads(smddp("info", "--json", **shape, SMDDP_TUNE_FILE=str(table)).stdout)
    said = "1x1: SMDDP_ONE_SHOT_BYTES=foo: expected a whole number from 0 to 2^44; run smddp tune again"
    assert facts["tuning table"] == f"SMDDP_TUNE_FILE={table}: {said}"
    assert facts["settings"]["SMDDP_ONE_SHOT_BYTES"].endswith("(default)")


def test_tune_says_what_to_do_about_a_broken_file_of_its_own(tmp_path: Path) -> None:
    table = tmp_path / "tuning.json"
    table.write_text("[" * 200_000)
    advice = "remove or move it, or give --output another file"
    said = f"{table}: not a table: JSON nested too deeply to be read: {advice}"
    assert only_line(smddp("tune", "--ranks", "1", "--output", str(table)), 1) == f"smddp: {said}"
    line = only_line(smddp("tune", "--ranks", "1", SMDDP_TUNE_FILE=str(table)), 1)
    assert line == f"smddp: SMDDP_TUNE_FILE={said}"
    table.unlink()
    table.mkdir()
    done = smddp("tune", "--ranks", "1", "--output", str(table))
    assert only_line(done, 1) == f"smddp: {table}: Is a directory: {advice}"


def test_info_knows_every_setting_that_the_library_reads() -> None:
    source = Path(__file__).parents[2] / "smddp_core" / "src" / "env.cpp"
    rows = set(re.findall(r'\{"(SMDDP_\w+)", Scope::process', source.read_text()))
    assert rows
    assert rows | {"SMDDP_SOCKET_IFNAME", "SMDDP_TUNE_FILE"} == set(info._OWN_SETTINGS)
    assert not set(info._OWN_SETTINGS) & set(_C.settings())


def test_info_is_aligned() -> None:
    lines = [
        line for line in smddp("info").stdout.splitlines() if re.match(r"(torch|training threads|/dev/shm) ", line)
    ]
    assert {re.search(r"  +\S", line).end() for line in lines} == {len("communication on") + 3}  # type: ignore[union-attr]


def test_a_home_that_cannot_be_looked_into_has_no_table() -> None:
    """Not by permissions: root, as in containers, may look anywhere."""
    assert tuning.settings_for("1x2", {"XDG_CONFIG_HOME": "/" + "x" * 300}, (), lambda *_: "") == {}


@pytest.mark.parametrize(("text", "whole"), [("0", True), ("12", True), ("", False), ("²", False), ("1\n", False)])
def test_whole_numbers(text: str, whole: bool) -> None:
    assert is_whole_number(text) == whole
