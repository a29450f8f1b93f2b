"""Which cores the communication threads run on, so that training keeps its own.

A group has one thread that communicates (``smddp-progress``). By default the kernel may run it on any core, also one
that a training thread is using. Where the process may use more cores than training does, it is given the others.
Training threads are never bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection


def spare_cpus(allowed: Collection[int], machine_cpus: int, local_ranks: int, training_threads: int) -> list[int]:
    """Cores that training does not need; empty where there are not enough to matter.

    Args:
        allowed: cores this process may run on.
        machine_cpus: cores of the machine. A process that may use all of them shares them with the other ranks of the
            host; one that may not has been given its own by the launcher.
        local_ranks: ranks on this host.
        training_threads: threads each of them computes with.
    """
    cores = sorted(allowed)
    sharers = local_ranks if len(cores) == machine_cpus else 1
    spare = cores[sharers * training_threads :]
    # One core for each communicating thread at least: else they would queue behind one another on the few.
    return spare if len(spare) >= sharers else []


def to_list(cpus: Collection[int]) -> str:
    """``0-3,8`` for cores 0, 1, 2, 3 and 8: the notation of taskset and of the kernel."""
    runs: list[list[int]] = []
    for cpu in sorted(cpus):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
