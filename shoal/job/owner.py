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
    if namespace != _pid_namespace():
        return False
    try:
        os.kill(int(pid), 0)  # the null signal: asks whether the process is there
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    there = _identity(int(pid))
    # Another user's process may be there and hidden (hidepid): then there is nothing to compare.
    return there is not None and there != owner


def _identity(pid: int) -> str | None:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # Field 22 is the start time, field 3 the state; the second field, a name in parentheses, may contain anything.
    fields = stat.rpartition(")")[2].split()
    started = "ended" if fields[0] == "Z" else fields[19]
    return f"{_boot()}/{_pid_namespace()}/{pid}/{started}"


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> str:
    return str(Path("/proc/self/ns/pid").readlink())
