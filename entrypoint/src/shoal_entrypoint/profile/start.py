"""Starts the sampler beside a job. Whatever goes wrong here costs the measurements, never the job."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Mapping

from shoal_entrypoint.configuration import Resource
from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import JobError
from shoal_entrypoint.paths import Paths
from shoal_entrypoint.supervise import Supervisor

__all__ = ["DEFAULT_INTERVAL_MS", "start"]

DEFAULT_INTERVAL_MS = 500
_INTERVALS = (100, 60_000)
# Neither site-packages nor the user's environment: it starts in 20 ms, and nothing a job installs can break it.
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from shoal_entrypoint.profile.sampler import main; main()"


def start(resource: Resource, paths: Paths, supervisor: Supervisor, environ: Mapping[str, str]) -> None:
    """Make the profiler folder, and start this host's sampler; it ends when the job does."""
    text = environ.get("SHOAL_PROFILE_INTERVAL_MS", "") or str(DEFAULT_INTERVAL_MS)
    if not text.isdigit() or not _INTERVALS[0] <= int(text) <= _INTERVALS[1]:
        raise JobError(
            f"SHOAL_PROFILE_INTERVAL_MS: {text!r}: a number from {_INTERVALS[0]} to {_INTERVALS[1]} was expected"
        )
    root = str(Path(__file__).resolve().parents[2])
    # The names that readers of these files expect, whatever the hosts are called here.
    node = f"algo-{resource.hosts.index(resource.current_host) + 1}"
    argv = [sys.executable, "-I", "-S", "-c", _PROGRAM, root, str(paths.profiler), node, text]
    try:
        for folder in (paths.profiler / "system", paths.profiler / "steps"):
            folder.mkdir(parents=True, exist_ok=True)
        supervisor.serve(argv, "/", os.environ, optional=True)
    except (OSError, JobError) as error:
        log(f"SHOAL_PROFILE: nothing is measured on this host: {error}")
