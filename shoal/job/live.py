"""What the hosts are doing now, on a terminal: one line a host, below the lines that scroll. Nowhere else.

The numbers are the engine's, about one a second: processor time of all cores of the host together (100 % is one core),
memory without the cache of files, and what went through the network interface. Steps and metrics are the script's own.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from docker.errors import DockerException
from requests.exceptions import RequestException
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal.job.metrics import Metrics
from shoal.job.staging import size

_REFRESHES = 2  # a second
_COLUMNS = 4  # of what `_cells` tells
_STYLES = {"running": "green", "waiting": "dim"}


@dataclass(frozen=True)
class Usage:
    """What one host used between two samples of the engine."""

    cpu: float  # cores
    memory: int  # bytes
    memory_limit: int  # bytes
    received: float  # bytes a second
    sent: float  # bytes a second


def usage(before: Mapping[str, Any], now: Mapping[str, Any]) -> Usage | None:
    """Return the usage between two samples; None if either says nothing, as that of a host that has just ended."""
    try:
        processor = now["cpu_stats"]["cpu_usage"]["total_usage"] - before["cpu_stats"]["cpu_usage"]["total_usage"]
        seconds = _seconds(now) - _seconds(before)
        memory = now["memory_stats"]
        detail = memory.get("stats", {})
        cache = detail.get("total_inactive_file", detail.get("inactive_file", 0))  # of control groups 1 and 2
        held = memory["usage"] - min(cache, memory["usage"])
        limit = memory["limit"]
    except (KeyError, TypeError, ValueError):
        return None
    if seconds <= 0:
        return None
    received, sent = ((_bytes(now, way) - _bytes(before, way)) / seconds for way in ("rx_bytes", "tx_bytes"))
    return Usage(processor / 1e9 / seconds, held, limit, received, sent)


def _seconds(sample: Mapping[str, Any]) -> float:
    return datetime.fromisoformat(sample["read"]).timestamp()


def _bytes(sample: Mapping[str, Any], way: str) -> int:
    return sum(interface[way] for interface in sample.get("networks", {}).values())


class Display:
    """The lines of a job's hosts on one terminal."""

    def __init__(self, console: Console, hosts: Sequence[str], metrics: Metrics) -> None:
        self.console, self._metrics = console, metrics
        self._states = dict.fromkeys(hosts, "waiting")
        self._usages: dict[str, Usage] = {}

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the lines while the block runs; they are gone afterwards."""
        with Live(
            get_renderable=self._table,
            console=self.console,
            refresh_per_second=_REFRESHES,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield

    def follow(self, host: str, samples: Iterable[Mapping[str, Any]]) -> None:
        """Show what a host uses, from the engine's samples, until they end; returns at once."""
        self._states[host] = "running"
        threading.Thread(target=self._follow, args=(host, samples), daemon=True).start()

    def ended(self, host: str, code: int) -> None:
        """Show that a host has ended."""
        self._states[host] = f"ended with {code}"
        self._usages.pop(host, None)

    def _follow(self, host: str, samples: Iterable[Mapping[str, Any]]) -> None:
        before: Mapping[str, Any] | None = None
        try:
            for sample in samples:
                if before is not None and (used := usage(before, sample)) is not None:
                    self._usages[host] = used
                if self._states[host] != "running":
                    break
                before = sample
        except (DockerException, RequestException, ValueError):
            pass  # the host is gone: nothing more to show
        self._usages.pop(host, None)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for host, state in self._states.items():
            told = Text("  ".join(self._metrics.cells(host)))  # data, not markup; last: the other columns stand still
            used = _cells(self._usages.get(host)) or [""] * _COLUMNS
            table.add_row(Text(host, "bold"), Text(state, _STYLES.get(state, "yellow")), *used, told)
        return table


def _cells(used: Usage | None) -> list[str]:
    if used is None:
        return []
    return [
        f"cpu {100 * used.cpu:.0f} %",
        f"memory {size(used.memory)} of {size(used.memory_limit)}",
        f"in {size(used.received)}/s",
        f"out {size(used.sent)}/s",
    ]


def display_for(console: Console, hosts: Sequence[str], metrics: Metrics) -> Display | None:
    """Return a display if the console is a terminal that can redraw its lines."""
    return Display(console, hosts, metrics) if console.is_terminal and not console.is_dumb_terminal else None
