"""What `benchmarks/jobs.py` measures: figures and claims from tables, and one real job by each side."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path

import docker
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "sdk"))

from harness.build import UnavailableError  # noqa: E402
from harness.two_hosts import JOBS, Job, Ran, by_sdk, by_shoal, network_as_it_was, request, write_source  # noqa: E402
from jobs import FIT, OURS, THEIRS, claims, figure, in_turns, table  # noqa: E402
from sdk_environments import python_of  # noqa: E402

from shoal.job import spec  # noqa: E402

PLAIN = JOBS[0]
IMAGE = "pytorch-training:2.13.0-cpu-py311-debian12-sagemaker"


def test_medians_ratios_and_the_promise() -> None:
    ours = [Ran(2.0), Ran(4.0), Ran(6.1)]
    theirs = [Ran(8.0, 4.0), Ran(9.0, 6.0), Ran(10.0, 8.0)]
    one = figure(PLAIN, {OURS: ours, THEIRS: theirs}, 0.25)
    assert one["median"] == {OURS: 4.0, THEIRS: 9.0, FIT: 6.0}
    assert (one["min"][OURS], one["max"][OURS], one["rounds"], one["busy_before"]) == (2.0, 6.1, 3, 0.25)
    assert one["sdk_over_shoal"] == {THEIRS: 2.25, FIT: 1.5}  # of the rounds' ratios 4, 2.25 and 1.64
    slow = figure(JOBS[1], {OURS: [Ran(6.01)], THEIRS: [Ran(7.0, 5.0)]}, 0.0)
    stated = claims([one, slow])
    assert [claim["holds"] for claim in stated] == [True, False]
    text = table([one, slow], stated)
    assert "DOES NOT HOLD: two hosts, torchrun, from `shoal run` to exit: 6.01 s (target <= 6)" in text


def test_sides_take_turns_in_both_orders_and_the_first_round_does_not_count(tmp_path: Path) -> None:
    order: list[str] = []

    def side(name: str, job: Job, folder: Path) -> Ran:
        assert (folder / "source" / "train.py").read_text() == job.script
        order.append(name)
        return Ran(len(order))

    sides = {name: functools.partial(side, name) for name in (OURS, THEIRS)}
    times, busy = in_turns(PLAIN, sides, 2, lambda _: 0.1 * len(order))
    assert order == [THEIRS, OURS, OURS, THEIRS, THEIRS, OURS]
    assert ([ran.whole for ran in times[OURS]], [ran.whole for ran in times[THEIRS]]) == ([3, 6], [4, 5])
    assert busy == pytest.approx(0.5)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: job.name)
def test_job_files_are_valid(job: Job, tmp_path: Path) -> None:
    write_source(job, tmp_path)
    (tmp_path / "job.json").write_text(json.dumps(request(job, IMAGE)))
    sent = spec.load(tmp_path / "job.json").request["HyperParameters"]
    launcher = {"plain": None, "torchrun": "torch_distributed", "mpi": "distributed_dataparallel"}[job.name]
    assert (launcher is None) == (not any("enabled" in name for name in sent))
    assert launcher is None or sent[f"sagemaker_{launcher}_enabled"] == "true"


def test_a_bad_argument_is_refused_in_one_line() -> None:
    argv = [sys.executable, str(ROOT / "benchmarks" / "jobs.py"), "--job", "plain,horovod"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines()[-1].endswith("--job: 'horovod' is none of plain, torchrun, mpi")


@pytest.mark.image
@pytest.mark.timeout(600)
def test_both_sides_run_the_same_job(tmp_path: Path) -> None:
    for name in ("ours", "theirs"):
        write_source(PLAIN, tmp_path / name)
    ours = by_shoal(PLAIN, IMAGE, tmp_path / "ours")
    with network_as_it_was():
        theirs = by_sdk(PLAIN, IMAGE, tmp_path / "theirs", python_of("sdk2"))
    assert ours.whole > 0
    assert theirs.fit is not None
    assert 0 < theirs.fit < theirs.whole
    left = docker.from_env().containers.list(all=True, filters={"label": "com.docker.compose.project.working_dir"})
    assert not [one for one in left if str(tmp_path) in one.labels["com.docker.compose.project.working_dir"]]


@pytest.mark.image
@pytest.mark.timeout(600)
def test_a_job_that_loses_a_host_is_no_measurement(tmp_path: Path) -> None:
    lost = Job("lost", PLAIN.script.replace("pathlib.Path(", "host == '2' or pathlib.Path("), None)
    write_source(lost, tmp_path)
    with pytest.raises(UnavailableError, match=r"lost: the model is of \['host-1'\], not of all hosts"):
        by_shoal(lost, IMAGE, tmp_path)
    failing = Job("failing", "raise SystemExit('no such data')", None)
    write_source(failing, tmp_path / "failing")
    with pytest.raises(UnavailableError, match=r"failing: .* ended with 1"):
        by_shoal(failing, IMAGE, tmp_path / "failing")
