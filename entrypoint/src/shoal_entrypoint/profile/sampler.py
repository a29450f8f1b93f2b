"""The sampler's process: reads the sources at an even pace, appends one write a sample to a file a minute.

It ends when its stdin does, which is when `train` has ended in whatever way. A source that fails is left out; a file
that cannot be written is tried again with the next sample.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
import time
from typing import Protocol

from shoal_entrypoint.profile import about, gpus, group, machine, processes

__all__ = ["Writer", "main", "run"]


class Source(Protocol):
    """What can be asked for values."""

    def sample(self, now: float) -> list[tuple[str, str, str, float]]:
        """Return (type, name, dimension, value) of each."""


class Writer:
    """Appends samples to `<folder>/system/incremental/<hour>/<minute>.<node>.json`."""

    def __init__(self, folder: str, node: str) -> None:
        self._folder, self._node = os.path.join(folder, "system", "incremental"), node
        self._minute = -1
        self._fd = -1

    def write(self, now: float, values: list[tuple[str, str, str, float]]) -> None:
        """Append the values, whole lines in one write."""
        tail = f',"NodeId":"{self._node}","Timestamp":{now:.6f}}}\n'
        lines = [
            f'{{"Type":"{kind}","Name":"{name}","Dimension":"{dimension}","Value":{value:.10g}{tail}'
            for kind, name, dimension, value in values
        ]
        minute = int(now) // 60 * 60
        try:
            if minute != self._minute or self._fd < 0:
                self._open(minute)
            os.write(self._fd, "".join(lines).encode())
        except OSError:
            self.close()

    def _open(self, minute: int) -> None:
        self.close()
        folder = os.path.join(self._folder, time.strftime("%Y%m%d%H", time.gmtime(minute)))
        os.makedirs(folder, exist_ok=True)
        path = os.path.join(folder, f"{minute}.{self._node}.json")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._minute = minute

    def close(self) -> None:
        """Close the file, if one is open."""
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def run(writer: Writer, interval: float, stdin: int, root: int) -> None:
    """Sample until `stdin` ends. `root` is the process whose descendants are the job."""
    sources: list[Source] = [machine.Cores(), machine.Network(), group.Group(), gpus.Gpus(), processes.Job(root)]
    due = time.monotonic()
    while True:
        started, values = time.monotonic(), []
        for source in sources:
            try:
                values += source.sample(started)
            except (OSError, ValueError, LookupError, ArithmeticError):
                continue  # this time
        if values:
            writer.write(time.time(), values)
        now = time.monotonic()
        due = max(due + interval, now)  # after a pause of the whole machine: no burst
        if select.select([stdin], [], [], due - now)[0] and not os.read(stdin, 64):
            return


def main() -> None:
    """`FOLDER NODE INTERVAL_MS`, on the command line."""
    folder, node, interval = sys.argv[1:]
    # Where memory runs out, the kernel is to take this process before one of the job's.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    writer = Writer(folder, node)
    with contextlib.suppress(OSError):
        about.leave(folder, node, group.Group().cores)
    run(writer, int(interval) / 1000, 0, os.getppid())
    writer.close()
