"""Slurm, through its own commands: the only file here that runs them."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from shoal.errors import ShoalError

_TIMEOUT_S = 60
_FIELDS = "%A|%T|%r|%D|%Z"  # id (a number, of an array's elements too), state, reason, number of nodes, folder


@dataclass(frozen=True)
class QueuedJob:
    """A job as Slurm knows it; `run` is its folder."""

    number: str
    state: str
    reason: str
    nodes: int
    run: Path


def submit(script: Path) -> str:
    """Hand a batch script in; return the job's number.

    Raises:
        ShoalError: Slurm refuses it.
    """
    return _run("sbatch", "--parsable", str(script)).strip().partition(";")[0]


def find(name: str) -> QueuedJob | None:
    """Return this user's newest job of a name: of the queue and what has just left it, else of the accounting."""
    listed = _run(
        "squeue", f"--name={name}", f"--user={os.getuid()}", "--states=all", "--noheader", f"--format={_FIELDS}"
    )
    found = [parse_queued(line) for line in listed.splitlines() if line.strip()]
    if found:
        return max(found, key=lambda job: int(job.number))
    return _accounted(name)


def parse_queued(line: str) -> QueuedJob:
    """Return the job of a line of squeue."""
    number, state, reason, nodes, run = line.strip().split("|", 4)
    return QueuedJob(number, state, "" if reason == "None" else reason, int(nodes), Path(run))


def parse_accounted(line: str) -> QueuedJob:
    """Return the job of a line of sacct; `CANCELLED by 1000` is the state CANCELLED."""
    number, state, nodes, run = line.strip().split("|", 3)
    return QueuedJob(number, state.partition(" ")[0], "", int(nodes), Path(run))


def _accounted(name: str) -> QueuedJob | None:
    fields = "--format=JobIDRaw,State,NNodes,WorkDir"
    options = ["--allocations", "--parsable2", "--noheader", "--starttime=now-90days"]
    try:
        listed = _run("sacct", f"--name={name}", f"--user={os.getuid()}", *options, fields)
    except ShoalError:  # a cluster without accounting: what has left the queue is forgotten
        return None
    found = [parse_accounted(line) for line in listed.splitlines() if line.strip()]
    return max(found, key=lambda job: int(job.number)) if found else None


def terminate(job: QueuedJob) -> None:
    """Send SIGTERM to the hosts of a running job; take one that waits out of the queue."""
    waiting = job.state in ("PENDING", "CONFIGURING")
    _run("scancel", *([] if waiting else ["--signal=TERM"]), job.number)


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except FileNotFoundError as error:
        raise ShoalError(
            f"there is no {command[0]} on this machine: run this where Slurm's commands are", exit_code=3
        ) from error
    except subprocess.TimeoutExpired as error:
        raise ShoalError(f"{command[0]}: no answer from Slurm in {_TIMEOUT_S} s", exit_code=3) from error
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split())
        raise ShoalError(f"{command[0]}: {words or f'exit code {done.returncode}'}")
    return done.stdout
