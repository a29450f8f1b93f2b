"""`smddp info`, `smddp tune`, the table it writes, and which cores the communication threads get."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rank_jobs import clean_environment, run_ranks
from smdistributed.dataparallel import placement, tuning
from smdistributed.dataparallel.command.measure import Measurement
from smdistributed.dataparallel.command.tune import best
from smdistributed.dataparallel.exceptions import SMDDPUsageError

SMDDP = [sys.executable, "-m", "smdistributed.dataparallel.command"]
KNOWN = ("SMDDP_ONE_SHOT_BYTES", "SMDDP_SHM_CHUNK_BYTES")


def smddp(*arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    env = clean_environment() | extra
    return subprocess.run([*SMDDP, *arguments], env=env, capture_output=True, text=True, timeout=200, check=False)


def test_info_says_what_counts_here(tmp_path: Path) -> None:
    done = smddp("info", "--json", SMDDP_ONE_SHOT_BYTES="4096", SMDDP_TUNE_FILE=str(tmp_path / "none.json"))
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    assert facts["settings"]["SMDDP_ONE_SHOT_BYTES"] == "4096 (environment)"
    assert facts["settings"]["SMDDP_SHM_CHUNK_BYTES"].endswith("(default)")
    assert facts["built for torch"] == facts["torch"]
    assert "used between hosts" in facts["interfaces"].values()
    assert "No such file" in facts["tuning table"]
    assert re.fullmatch(r"\d+ MiB free of \d+ MiB", facts["/dev/shm"])
    text = smddp("info").stdout
    assert all(name in text for name in facts)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["tune"], 2, "no rank environment"),
        (["tune", "--ranks", "0"], 2, "expected a whole number of at least 1"),
        (["tune", "--largest", "4X"], 2, "such as 65536, 64K or 16M"),
        ([], 2, "COMMAND"),
    ],
)
def test_wrong_usage(arguments: list[str], code: int, words: str) -> None:
    done = smddp(*arguments)
    assert done.returncode == code
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_tune_writes_what_the_next_group_uses(tmp_path: Path) -> None:
    """Measured on real ranks; then a table with another value is believed, and the environment wins over both."""
    table = tmp_path / "deep" / "tuning.json"
    done = smddp("tune", "--ranks", "2", "--largest", "64K", "--rounds", "1", "--output", str(table))
    assert done.returncode == 0, done.stderr
    entry = tuning.load(table)["1x2"]
    assert "[1/" in done.stderr
    assert entry["machine"] == tuning.machine()
    tried = {tuple(sorted(one["settings"])) for one in entry["measurements"]}
    assert ("SMDDP_ONE_SHOT_BYTES",) in tried or ("SMDDP_ONE_SHOT_BYTES", "SMDDP_SHM_CHUNK_BYTES") in tried
    assert all(seconds > 0 for one in entry["measurements"] for seconds in one["seconds"].values())

    tuning.save(table, "1x2", {"settings": {"SMDDP_ONE_SHOT_BYTES": "12345"}})
    assert set(tuning.load(table)) == {"1x2"}
    env = {"SMDDP_TUNE_FILE": str(table)}
    for result in run_ranks("tuned", 2, env=env):
        assert result.report == {"sum": 2.0, "settings": {"SMDDP_ONE_SHOT_BYTES": "12345"} if result.rank == 0 else {}}
    for result in run_ranks("tuned", 2, env=env | {"SMDDP_TUNE_FILE": "none"}):
        assert result.report["settings"] == {}


def test_tune_reports_a_broken_table_before_it_measures(tmp_path: Path) -> None:
    table = tmp_path / "tuning.json"
    table.write_text("{")
    done = smddp("tune", "--ranks", "2", "--output", str(table))
    assert done.returncode == 1
    assert f"smddp: {table}: not JSON" in done.stderr
    assert "remove or move it, or give --output another file" in done.stderr
    assert "smddp tune again" not in done.stderr
    assert "[1/" not in done.stderr
    assert table.read_text() == "{"


def test_a_group_refuses_a_broken_table_that_was_named(tmp_path: Path) -> None:
    table = tmp_path / "tuning.json"
    table.write_text('{"format": 1, "topologies": {"1x1": {"settings": {"SMDDP_ONE_SHOT_BYTES": "-5"}}}}')
    (only,) = run_ranks("tuned", 1, env={"SMDDP_TUNE_FILE": str(table)}, may_fail=[0])
    assert only.returncode == 1
    said = "1x1: SMDDP_ONE_SHOT_BYTES=-5: expected a whole number from 0 to 2^44; run smddp tune again"
    assert f"SMDDP_TUNE_FILE={table}: {said}" in only.output


def test_a_group_passes_over_a_default_table_with_a_value_that_no_group_takes(tmp_path: Path) -> None:
    table = tmp_path / "smddp" / "tuning.json"
    tuning.save(table, "1x1", {"settings": {"SMDDP_ONE_SHOT_BYTES": "foo"}, "machine": tuning.machine()})
    (only,) = run_ranks("tuned", 1, env={"XDG_CONFIG_HOME": str(tmp_path)})
    assert only.report == {"sum": 1.0, "settings": {}}
    said = "1x1: SMDDP_ONE_SHOT_BYTES=foo: expected a whole number from 0 to 2^44; run smddp tune again"
    assert f"{table}: {said} (the file is ignored)" in only.output


def accepting(name: str, value: str) -> str:
    """As the compiled library has it: what is expected instead of a value."""
    assert name in KNOWN
    return "" if value.isdigit() else "a whole number"


def write(path: Path, topologies: object, version: int = 1) -> Path:
    path.write_text(json.dumps({"format": version, "topologies": topologies}))
    return path


def test_a_table_is_read_for_its_topology_only(tmp_path: Path) -> None:
    table = write(tmp_path / "t", {"1x2": {"settings": {"SMDDP_ONE_SHOT_BYTES": "8"}}})
    environ = {"SMDDP_TUNE_FILE": str(table)}
    assert tuning.settings_for("1x2", environ, KNOWN, accepting) == {"SMDDP_ONE_SHOT_BYTES": "8"}
    assert tuning.settings_for("2x2", environ, KNOWN, accepting) == {}
    assert tuning.settings_for(None, environ, KNOWN, accepting) == {}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("[1", "not JSON"),
        ("[]", "expected a table of format 1"),
        ('{"format": 2}', "expected a table of format 1"),
        ('{"format": 1}', "expected topologies"),
        ('{"format": 1, "topologies": {"1x2": {}}}', "expected topologies"),
        ('{"format": 1, "topologies": {"1x2": {"settings": {"SMDDP_ONE_SHOT_BYTES": 8}}}}', "text values"),
        ('{"format": 1, "topologies": {"1x2": {"settings": {"SMDDP_SPEED": "8"}}}}', "no such setting: SMDDP_SPEED"),
        (
            '{"format": 1, "topologies": {"1x2": {"settings": {"SMDDP_ONE_SHOT_BYTES": "foo"}}}}',
            "1x2: SMDDP_ONE_SHOT_BYTES=foo: expected a whole number",
        ),
        ('{"format": 1, "topologies": {"1x2": {"settings": {"SMDDP_ONE_SHOT_BYTES": "\\ud800"}}}}', "text values"),
        ("[" * 200_000, "nested too deeply"),
        ('{"format": 1, "topologies": ' + '{"a":' * 200_000, "nested too deeply"),
    ],
)
def test_a_broken_table_is_an_error_where_named_and_a_warning_elsewhere(
    tmp_path: Path, content: str, words: str
) -> None:
    table = tmp_path / "smddp" / "tuning.json"
    table.parent.mkdir()
    table.write_text(content)
    with pytest.raises(SMDDPUsageError, match=words) as caught:
        tuning.settings_for("1x2", {"SMDDP_TUNE_FILE": str(table)}, KNOWN, accepting)
    assert str(caught.value).startswith(f"smddp: SMDDP_TUNE_FILE={table}: ")
    assert "\n" not in str(caught.value)
    with pytest.warns(RuntimeWarning, match=words) as warned:
        assert tuning.settings_for("1x2", {"XDG_CONFIG_HOME": str(tmp_path)}, KNOWN, accepting) == {}
    assert str(warned[0].message).startswith(f"smddp: {table}: ")


def test_a_missing_table_is_an_error_only_where_named(tmp_path: Path) -> None:
    assert tuning.settings_for("1x2", {"HOME": str(tmp_path)}, KNOWN, accepting) == {}
    with pytest.raises(SMDDPUsageError, match=r"SMDDP_TUNE_FILE=/\S+/x: No such file"):
        tuning.settings_for("1x2", {"SMDDP_TUNE_FILE": str(tmp_path / "x")}, KNOWN, accepting)


def test_the_default_table_of_another_kind_of_machine_is_passed_over(tmp_path: Path) -> None:
    """A home directory may be on a file server."""
    settings = {"SMDDP_ONE_SHOT_BYTES": "8"}
    table = tmp_path / ".config" / "smddp" / "tuning.json"
    tuning.save(table, "1x2", {"settings": settings, "machine": tuning.machine()})
    assert tuning.settings_for("1x2", {"HOME": str(tmp_path)}, KNOWN, accepting) == settings
    tuning.save(table, "1x2", {"settings": settings, "machine": {"cpu": "another", "cores": 1}})
    with pytest.warns(RuntimeWarning, match="measured on"):
        assert tuning.settings_for("1x2", {"HOME": str(tmp_path)}, KNOWN, accepting) == {}


def test_saving_keeps_other_topologies_and_leaves_no_other_file(tmp_path: Path) -> None:
    table = tmp_path / "tuning.json"
    tuning.save(table, "1x2", {"settings": {"SMDDP_ONE_SHOT_BYTES": "1"}})
    tuning.save(table, "2x2", {"settings": {}})
    assert set(tuning.load(table)) == {"1x2", "2x2"}
    assert [path.name for path in tmp_path.iterdir()] == ["tuning.json"]
    assert os.stat(table).st_mode & 0o777 == 0o644  # noqa: PTH116
    with pytest.raises(SMDDPUsageError, match=r"Not a directory|File exists"):
        tuning.save(table / "below", "1x2", {"settings": {}})


@pytest.mark.parametrize(
    ("ranks", "local_size", "key"),
    [
        (range(4), "4", "1x4"),
        (range(4), "2", "2x2"),
        ([0, 1], "2", "1x2"),
        ([0, 2], "2", "2x1"),
        ([1], "2", "1x1"),
        ([0, 1, 2], "2", None),
        (range(4), "", None),
        (range(4), "0", None),
    ],
)
def test_topology_of_a_group(ranks: list[int], local_size: str, key: str | None) -> None:
    assert tuning.topology_key(ranks, {"LOCAL_WORLD_SIZE": local_size}) == key


def test_only_a_clear_gain_replaces_the_default() -> None:
    def one(value: str, *seconds: float) -> Measurement:
        return Measurement({"X": value}, dict(enumerate(seconds)))

    default = one("2", 1.0, 4.0)
    assert best([one("1", 1.0, 3.9), default], {"X": "2"}) == {"X": "2"}
    assert best([one("1", 0.5, 4.0), default, one("3", 0.9, 4.0)], {"X": "2"}) == {"X": "1"}
    # Half the time at one size and twice at another is no gain.
    assert best([one("1", 0.5, 8.0), default], {"X": "2"}) == {"X": "2"}


@pytest.mark.parametrize(
    ("allowed", "machine", "local_ranks", "threads", "spare"),
    [
        # A launcher that binds nothing: all ranks share all cores.
        (range(16), 16, 4, 1, "4-15"),
        (range(16), 16, 4, 3, "12-15"),
        (range(16), 16, 4, 4, ""),
        (range(15), 15, 4, 3, ""),  # three cores for four communicating threads
        (range(2), 2, 2, 1, ""),
        # One that gives each rank its own.
        ([4, 5, 6, 7], 16, 4, 3, "7"),
        ([4, 5, 6, 7], 16, 4, 4, ""),
        ([0, 2, 4, 6, 7, 8], 16, 1, 2, "4,6-8"),
    ],
)
def test_communication_takes_only_cores_that_training_does_not_need(
    allowed: list[int], machine: int, local_ranks: int, threads: int, spare: str
) -> None:
    assert placement.to_list(placement.spare_cpus(allowed, machine, local_ranks, threads)) == spare


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_threads_run_where_the_user_says() -> None:
    first, *_, last = sorted(os.sched_getaffinity(0))
    for result in run_ranks("placement", 2, env={"SMDDP_CPUS": str(last)}):
        assert result.report["progress"] == [str(last)], result.report
        assert result.report["main"] != str(last), "training threads are never bound"
    # Alone on the host with one training thread, the other cores are free to take.
    (alone,) = run_ranks("placement", 1)
    assert all(not cpus.startswith(f"{first}") for cpus in alone.report["progress"]), alone.report
    for result in run_ranks("placement", 1, env={"SMDDP_CPUS": "1023"}, may_fail=[0]):
        assert re.search(r"SMDDP_CPUS: of the cores [\d,]+ this process may use none", result.output)
