"""The programs and packages that the job's launcher needs, and their versions. torch is never imported."""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import subprocess
import sys
from typing import NamedTuple

from shoal_entrypoint.check.row import NOTE, OK, PROBLEM, Row
from shoal_entrypoint.launchers.settings import MPI_FAMILY, TORCHRUN

__all__ = ["Need", "check", "needs", "output", "version_of"]

_SECONDS = 20
# sshd and ssh-keygen are often not on PATH of an unprivileged or minimal environment.
_SYSTEM_PATH = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
_VERSION = re.compile(r"\d+(?:\.\d+)+\w*")


class Need(NamedTuple):
    """Something that a job cannot start without."""

    name: str
    advice: str
    package: bool = False  # of Python


def needs(launcher: str, hosts: int, leads: bool, mpi4py: bool) -> list[Need]:
    """What one host of a job needs. `mpi4py`: it starts the ranks' Python."""
    if launcher == TORCHRUN:
        return [Need("torchrun", "Install torch in the image, and put its bin folder on PATH.")]
    if launcher not in MPI_FAMILY:
        return []
    found = [Need("mpirun", "Install openmpi-bin in the image.")]
    if mpi4py:
        found.append(Need("mpi4py", "pip install mpi4py in the image.", package=True))
    if hosts > 1:
        ssh = "ssh" if leads else "sshd"
        found.append(Need(ssh, f"Install openssh-{'client' if leads else 'server'} in the image."))
        found.append(Need("ssh-keygen", "Install openssh-client in the image."))
    return found


def check(wanted: list[Need], environ_path: str) -> list[Row]:
    """What is there, in one row, and one row for each thing that is missing."""
    found: dict[str, str | None] = {"python": sys.version.split()[0]}
    rows: list[Row] = []
    for need in wanted:
        present = version_of(need.name) if need.package else shutil.which(need.name, path=_search(need, environ_path))
        if present is None:
            where = "not installed" if need.package else f"not found on PATH ({environ_path})"
            rows.append(Row("tools", PROBLEM, f"{need.name}: {where}", need.advice, {"missing": need.name}))
            continue
        found[need.name] = present if need.package else _program_version(need.name, present)
    torch = found["torch"] = version_of("torch")
    if torch is None:
        advice = "Fine if the script does without, or if its requirements.txt brings torch."
        rows.append(Row("tools", NOTE, f"torch: not installed for {sys.executable}", advice, {"missing": "torch"}))
    text = ", ".join(name if version is None else f"{name} {version}" for name, version in found.items() if version)
    return [Row("tools", OK, text, "", {"versions": found}), *rows]


def version_of(distribution: str) -> str | None:
    """The version of an installed Python package, from its metadata."""
    try:
        return importlib.metadata.version(distribution)
    except Exception:  # a broken installation is as good as none, and metadata may be broken in many ways
        return None


def output(argv: list[str]) -> str:
    """What a program says, both streams; nothing where it is missing, hangs or fails."""
    if shutil.which(argv[0]) is None:
        return ""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace") if done.returncode == 0 else ""


def _search(need: Need, path: str) -> str:
    # As ssh.require looks; mpirun and torchrun are started from PATH alone.
    return f"{path}:{_SYSTEM_PATH}" if need.name.startswith("ssh") else path


def _program_version(name: str, path: str) -> str:
    if name == "torchrun":
        return version_of("torch") or "of an unknown torch"
    asked = {"mpirun": [path, "--version"], "ssh": [path, "-V"]}.get(name)
    match = _VERSION.search(output(asked)) if asked else None
    return match.group(0) if match else path
