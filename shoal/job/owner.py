"""Who owns a container: the `shoal` process that started it, told apart from any other before or after it.

A process id alone is reused; with the boot, the pid namespace and the start time it is not. Only an owner that is
surely gone is called gone: from inside another pid namespace one cannot know.
"""

import os
from pathlib import Path


def this_process() -> str:
    """Return this process's identity, one word."""
    return _identity(os.getpid()) or "unknown"


def is_gone(owner: str) -> bool:
    """Return whether the process that `this_process` once described has surely ended."""
    try:
        boot, namespace, pid, _started = owner.split("/")
    except ValueError:
        return False
    if boot != _boot():
        return True
    return namespace == _pid_namespace() and _identity(int(pid)) != owner


def _identity(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # Field 22 is the start time; the second field, a name in parentheses, may contain anything.
    state, started = stat.rpartition(")")[2].split()[0], stat.rpartition(")")[2].split()[19]
    return None if state == "Z" else f"{_boot()}/{_pid_namespace()}/{pid}/{started}"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())
