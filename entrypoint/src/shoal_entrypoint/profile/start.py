"""Starts the sampler beside a job. Whatever goes wrong here costs the measurements, never the job."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Mapping

from shoal_entrypoint.configuration import Resource
from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import JobError
from shoal_entrypoint.paths import Paths
from shoal_entrypoint.supervise import Supervisor

__all__ = ["DEFAULT_INTERVAL_MS", "start", "wanted"]

DEFAULT_INTERVAL_MS = 500
_INTERVALS = (100, 60_000)
# Neither site-packages nor the user's environment: it starts in 20 ms, and nothing a job installs can break it.
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from shoal_entrypoint.profile.sampler import main; main()"


def wanted(environ: Mapping[str, str]) -> int | None:
    """Milliseconds between two samples; None where the user wants no measurements."""
    switch = environ.get("SHOAL_PROFILE", "")
    if switch not in ("", "0", "1"):
        raise JobError(f"SHOAL_PROFILE: {switch!r}: 1 or nothing (measure), or 0 (do not) was expected")
    if switch == "0":
        return None
    text = environ.get("SHOAL_PROFILE_INTERVAL_MS", "") or str(DEFAULT_INTERVAL_MS)
    # ASCII, and short: int() knows digits of other scripts, and refuses thousands of them with another error.
    if not re.fullmatch(r"[0-9]{1,9}", text) or not _INTERVALS[0] <= int(text) <= _INTERVALS[1]:
        raise JobError(
            f"SHOAL_PROFILE_INTERVAL_MS: {text[:40]!r}: a number from {_INTERVALS[0]} to {_INTERVALS[1]} was expected"
        )
    return int(text)


def start(interval_ms: int, resource: Resource, paths: Paths, supervisor: Supervisor) -> None:
    """Make the profiler folder, and start this host's sampler; it ends when the job does."""
    root = str(Path(__file__).resolve().parents[2])
    # The names that readers of these files expect, whatever the hosts are called here.
    node = f"algo-{resource.hosts.index(resource.current_host) + 1}"
    argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, root, str(paths.profiler), node, str(interval_ms)]
    try:
        for folder in (paths.profiler / "system", paths.profiler / "steps"):
            folder.mkdir(parents=True, exist_ok=True)
        supervisor.serve(argv, "/", os.environ, optional=True)
    except (OSError, JobError) as error:
        log(f"SHOAL_PROFILE: nothing is measured on this host: {error}")
