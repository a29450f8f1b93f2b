"""The programs that a build has started, so that all of them can be stopped at once.

A build runs in a thread for each row, and Ctrl-C reaches the main thread only.
"""

import signal
import subprocess
import threading
from collections.abc import Mapping
from typing import Any

_GRACE_S = 10.0  # docker needs a moment to take a build back


class StoppedError(Exception):
    """What was to be done is not wanted any more."""


class Children:
    """Starts programs; after `stop`, none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[Any]] = set()
        self._stopped = False

    def check(self) -> None:
        """Do nothing, or where `stop` was called end the caller.

        Raises:
            StoppedError: it was.
        """
        if self._stopped:
            raise StoppedError

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[Any]:
        """Start a program; options are those of `subprocess.Popen`.

        Raises:
            StoppedError: `stop` was called.
        """
        with self._lock:
            self.check()
            # A group of its own: Ctrl-C on the terminal must not make it fail before `stop` says why.
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, **options)
            self._running.add(process)
        return process

    def wait(self, process: subprocess.Popen[Any]) -> int:
        """Wait for the end of a program that `start` started; return its exit code.

        Raises:
            StoppedError: it ended because `stop` was called, or `stop` was called since.
        """
        code = process.wait()
        with self._lock:
            self._running.discard(process)
            self.check()
        return code

    def run(self, command: list[str], environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a program to its end and return what it said, as `subprocess.run` does.

        Raises:
            StoppedError: `stop` was called.
        """
        process = self.start(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        stdout, stderr = process.communicate()
        return subprocess.CompletedProcess(command, self.wait(process), stdout, stderr)

    def stop(self) -> None:
        """Interrupt all that run, wait for them, and kill those that do not heed it."""
        with self._lock:
            self._stopped = True
            running = list(self._running)
        for process in running:
            process.send_signal(signal.SIGINT)
        for process in running:
            try:
                process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
