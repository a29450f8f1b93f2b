"""`benchmarks/collectives.py` as a user starts it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from harness.layout import Layout
from harness.network import NetworkError, network

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "collectives.py"


def start(*arguments: str, cache: Path | str, **env: str) -> subprocess.Popen[str]:
    argv = [sys.executable, str(SCRIPT), "--cache", str(cache), "--wait", "0", *arguments]
    pipe = subprocess.PIPE
    # In a group of its own, as a shell would: so that a test can send what Ctrl-C sends.
    return subprocess.Popen(
        argv, stdout=pipe, stderr=pipe, text=True, env={**os.environ, **env}, start_new_session=True
    )


def finished(*arguments: str, cache: Path | str) -> tuple[int, list[str], str]:
    process = start(*arguments, cache=cache)
    out, err = process.communicate(timeout=480)
    return process.returncode, out.splitlines(), err


def check_run(run: dict[str, Any], layout: str, operation: str, sizes: list[int]) -> None:
    assert (run["layout"], run["operation"]) == (layout, operation)
    assert run["absent"] == run["failed"] == run["wrong"] == {}
    assert sorted(run["settings"]) == ["gloo", "smddp"]
    assert [cell["bytes"] for cell in run["cells"]] == sizes
    for cell in run["cells"]:
        assert sorted(cell["median_seconds"]) == ["gloo", "smddp"]
        assert min(cell["median_seconds"].values()) > 0
        assert cell["best_peer"] == "gloo"
        assert cell["best_peer_over_smddp"] == cell["peer_over_smddp"]["gloo"] > 0
        assert cell["bound_seconds"] > 0
        assert all(set(one["labels"]) <= {"near", "far", "one core"} for one in cell["rounds"])
    for claim in run["claims"]:
        assert isinstance(claim["holds"], bool)
        assert {"what", "target", "measured", "layout", "operation", "bytes"} <= set(claim)


def test_one_host(cache: Path) -> None:
    words = ["--layout", "1x2", "--sizes", "4K,1M", "--rounds", "1", "--peers", "gloo", "--op", "all", "--json"]
    code, out, err = finished(*words, cache=cache)
    assert code == 0, err
    assert len(out) == 1
    result = json.loads(out[0])
    assert {"cpu", "cores", "torch", "smddp", "kernel"} <= set(result["machine"])
    operations = ["all_reduce", "all_gather", "reduce_scatter", "broadcast"]
    for run, operation in zip(result["runs"], operations, strict=True):
        check_run(run, "1x2", operation, [4096, 1 << 20])
    first = result["runs"][0]
    assert sorted(first["waiting_share_of_core"]) == ["gloo", "smddp"]
    assert "gloo / smddp, time" in [claim["what"] for claim in first["claims"]]
    assert result["claims"] == [claim for run in result["runs"] for claim in run["claims"]]


@pytest.mark.usefixtures("_hosts")
def test_two_hosts_and_a_file_that_says_what_is_done(cache: Path, tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    words = ["--layout", "2x1@1gbit", "--rounds", "1", "--peers", "gloo", "--output", str(output), "--resume"]
    code, out, err = finished(*words, "--sizes", "4K", cache=cache)
    assert code == 0, err
    assert "2 hosts x 1 rank, links of 1 Gbit/s" in out[1]
    run = json.loads(out[-1])["runs"][0]
    check_run(run, "2x1@1gbit", "all_reduce", [4096])
    # What the shaper lets through: more would mean that there is none.
    assert 0 < run["link_bytes_per_second"] < 1e9 / 8
    assert json.loads(output.read_text())["cells"] == run["cells"]
    words += ["--sizes", "4K,64K"]
    code, out, err = finished(*words, cache=os.path.relpath(cache))  # On a host, too, it is this folder.
    assert code == 0, err
    assert [cell["bytes"] for cell in json.loads(out[-1])["runs"][0]["cells"]] == [65536]
    assert len(output.read_text().splitlines()) == 2
    code, out, err = finished(*words, cache=cache)
    assert (code, json.loads(out[-1])["runs"]) == (0, [])
    assert f"nothing is left to measure: {output} has all rounds of this build" in err


def test_a_size_is_done_when_it_has_all_rounds(cache: Path, tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    words = ["--layout", "1x2", "--sizes", "4K", "--op", "broadcast", "--peers", "gloo", "--output", str(output)]
    for rounds, lines in (("1", 1), ("2", 2), ("3", 2)):
        code, _, err = finished(*words, "--rounds", rounds, "--resume", cache=cache)
        assert code == 0, err
        assert len(output.read_text().splitlines()) == lines, f"--rounds {rounds}"


def test_a_run_that_measured_nothing_has_failed(cache: Path) -> None:
    words = ["--layout", "1x2", "--sizes", "4K", "--peers", "smddp", "--set", "SMDDP_WIRE_DTYPE=float8", "--json"]
    code, out, err = finished(*words, cache=cache)
    assert (code, json.loads(out[0])["runs"][0]["cells"]) == (1, [])
    assert "benchmarks/collectives.py: nothing was measured" in err.splitlines()[-1]


def ours(mark: str) -> list[int]:
    """Processes that have `mark` in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found


def check_all_end(mark: str) -> None:
    end = time.monotonic() + 30
    while left := ours(mark):
        assert time.monotonic() < end, f"processes {left} are still there"
        time.sleep(0.2)


@pytest.mark.usefixtures("_hosts")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_behind(signum: signal.Signals, cache: Path, tmp_path: Path) -> None:
    output = tmp_path / "results.jsonl"
    words = ["--layout", "2x2@1gbit", "--sizes", "1M", "--rounds", "1000", "--peers", "gloo", "--output", str(output)]
    process = start(*words, cache=cache, TMPDIR=str(tmp_path))
    assert process.stderr is not None
    while "round 1 " not in (line := process.stderr.readline()):
        assert line, "it ended before it measured"
    assert len(ours(str(tmp_path))) >= 1 + 3 + 8  # Itself, two hosts and their hub, twice four ranks.
    process.send_signal(signum)
    try:
        process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -9}[signum]
    check_all_end(str(tmp_path))
    if signum != signal.SIGKILL:
        assert list(tmp_path.iterdir()) == [output]
        kept = json.loads(output.read_text())
        assert kept["interrupted"]
        assert len(kept["cells"][0]["rounds"]) >= 1


@pytest.mark.usefixtures("_hosts")
@pytest.mark.skipif(shutil.which("mpirun.openmpi") is None, reason="needs Open MPI")
@pytest.mark.parametrize("moment", ["starting Open MPI", "round 1 "])
def test_ctrl_c_ends_daemons_on_other_hosts(moment: str, cache: Path) -> None:
    mark = f"BENCHMARK_MARK=x{time.monotonic_ns()}"
    words = ["--layout", "2x1@1gbit", "--sizes", "4K", "--rounds", "1000", "--peers", "openmpi"]
    process = start(*words, cache=cache, BENCHMARK_MARK=mark.partition("=")[2])
    try:
        assert process.stderr is not None
        while moment not in (line := process.stderr.readline()):
            assert line, "it ended before"
        end = time.monotonic() + 60
        while not any(b"orted" in name_of(pid) for pid in ours(mark)):
            assert process.poll() is None
            # The run goes on without a library that is not there.
            assert time.monotonic() < end, "Open MPI started no daemon: is libopenmpi-dev installed?"
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert "interrupted; nothing was left behind" in err.splitlines()[-1]
    assert [name_of(pid) for pid in ours(mark)] == []


def name_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return b""


def test_who_is_not_root_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("harness.network.os.geteuid", lambda: 1000)
    sentence = "layout 2x1@1gbit starts hosts in network namespaces, which only root may make: run this as root"
    with pytest.raises(NetworkError, match=sentence), network(Layout(2, 1, "1gbit"), tmp_path):
        raise AssertionError("made hosts without the right to")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--layout", "3x1@fast"], "--layout: '3x1@fast' is no layout: write HOSTSxRANKS"),
        (["--sizes", "4Q"], "--sizes: '4Q' is no size"),
        (["--op", "gather"], "--op: 'gather' is none of all_reduce"),
        (["--peers", "nccl"], "--peers: 'nccl' is none of smddp"),
        (["--rounds", "0"], "--rounds: 0 is less than 1"),
        (["--set", "FOO=1"], "--set: 'FOO=1' is not SMDDP_NAME=VALUE"),
        (["--resume"], "--resume needs --output FILE"),
        (
            ["--resume", "--output", str(SCRIPT)],
            f"--resume: {SCRIPT}: line 1: not a line of results: no JSON at column 1",
        ),
        (["--output", "/"], "--output: '/' cannot be written (Is a directory)"),
        (["--wait", "-1"], "--wait: '-1' is no number of seconds from 0"),
        (["--wait", "nan"], "--wait: 'nan' is no number of seconds from 0"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: list[str], message: str, cache: Path) -> None:
    code, out, err = finished(*arguments, cache=cache)
    assert (code, out) == (2, [])
    assert message in err.splitlines()[-1]
