"""The near side of zygote.py: starts a rank as a fork of it, with the face of subprocess.Popen."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Zygote:
    """One for a kind of ranks, for a whole test session."""

    def __init__(self, env: Mapping[str, str], modules: Sequence[str]) -> None:
        """`modules` are imported before any rank is forked: none may start threads or remember its process."""
        paths = [str(HERE), *filter(None, [env.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-c", "import zygote; zygote.serve()", *modules],
            env={**env, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._codes: dict[int, int] = {}
        self._changed = threading.Condition()
        self._pids: list[int] = []
        self._lost = False
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self.close)

    def start(self, argv: Sequence[str], env: Mapping[str, str], out: Path, err: Path) -> ForkedRank:
        """Fork a rank that runs the Python script argv[0]."""
        assert self._process.stdin is not None
        order = {"argv": list(argv), "env": dict(env), "out": str(out), "err": str(err)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        with self._changed:
            assert self._changed.wait_for(lambda: self._pids or self._lost, 60)
            assert self._pids, "the zygote is gone"
            return ForkedRank(self, self._pids.pop())

    def wait(self, pid: int, timeout: float | None) -> int:
        """Return the exit code of a rank; raises subprocess.TimeoutExpired."""
        with self._changed:
            if not self._changed.wait_for(lambda: pid in self._codes or self._lost, timeout):
                raise subprocess.TimeoutExpired("a forked rank", timeout or 0)
            return self._codes[pid]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said: dict[str, Any] = json.loads(line)
            with self._changed:
                if "code" in said:
                    self._codes[said["pid"]] = said["code"]
                elif "pid" in said:
                    self._pids.append(said["pid"])
                self._changed.notify_all()
        with self._changed:
            self._lost = True
            self._changed.notify_all()


class ForkedRank:
    """A rank that a zygote forked; the leader of a session of its own."""

    def __init__(self, zygote: Zygote, pid: int) -> None:
        self._zygote = zygote
        self.pid = pid

    def wait(self, timeout: float | None = None) -> int:
        return self._zygote.wait(self.pid, timeout)

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
