"""The `shoal run` of a job as a process: started, found again by another server, told to stop, waited for.

It is in a session of its own, so that it outlives the server. Its command line names the job's file, which no other
job has: that is how it is found again. A pidfd stays with the very process it was opened for; a number would not.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path


class RunProcess:
    """A living `shoal run`, or one that was alive a moment ago."""

    def __init__(self, pidfd: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self._pidfd, self._child = pidfd, child

    def wait(self, seconds: float) -> bool:
        """Return whether it has ended, after at most `seconds`."""
        poll = select.poll()
        poll.register(self._pidfd, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return False
        if self._child is not None:
            self._child.wait()  # leaves no zombie
        return True

    def terminate(self) -> None:
        """Ask it to stop, as Ctrl-C once does."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGTERM)

    def close(self) -> None:
        """Forget it; it lives on if it does."""
        os.close(self._pidfd)


def start(job_file: Path, options: list[str], environment: Mapping[str, str], errors: Path) -> RunProcess:
    """Start `shoal run`; what it says on stderr goes to a file."""
    with errors.open("wb") as stderr:
        child = subprocess.Popen(
            [sys.executable, "-m", "shoal", "run", str(job_file), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # what the hosts print: it is in their log files
            stderr=stderr,
            cwd=job_file.parent,
            env={**os.environ, **environment},
            start_new_session=True,
        )
    return RunProcess(os.pidfd_open(child.pid), child)


def find(job_file: Path) -> RunProcess | None:
    """Return the `shoal run` of a job file that an earlier server has started, if it is alive."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and _is_run_of(folder, job_file):
            with contextlib.suppress(ProcessLookupError):
                pidfd = os.pidfd_open(int(folder.name))
                if _is_run_of(folder, job_file):  # still: the number may have been given to another
                    return RunProcess(pidfd)
                os.close(pidfd)
    return None


def _is_run_of(folder: Path, job_file: Path) -> bool:
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    wanted = [b"shoal", b"run", os.fsencode(job_file)]
    return words[2:5] == wanted
