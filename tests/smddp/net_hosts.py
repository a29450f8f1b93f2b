"""Hosts with a network of their own for ranks: namespaces on one bridge, whose links can be slowed down."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from types import TracebackType

_NUMBERS = itertools.count()


def missing_tools() -> list[str]:
    """What this machine lacks for them."""
    lacking = [] if os.getuid() == 0 else ["root's rights"]
    return lacking + [tool for tool in ("ip", "tc") if shutil.which(tool) is None]


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


class NetHosts:
    """`count` hosts at 10.97.0.1 and up. A context manager: nothing stays."""

    def __init__(self, count: int, rate: str = "") -> None:
        """`rate` in tc's words, such as ``1gbit``, limits what each host sends."""
        number = f"{os.getpid()}-{next(_NUMBERS)}"
        self._hub = f"smddp-{number}-hub"
        self.namespaces = [f"smddp-{number}-{index}" for index in range(count)]
        self._rate = rate

    def __enter__(self) -> NetHosts:
        try:
            self._make()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _make(self) -> None:
        _run("ip", "netns", "add", self._hub)
        _run("ip", "-n", self._hub, "link", "add", "bridge", "type", "bridge")
        _run("ip", "-n", self._hub, "link", "set", "bridge", "up")
        for index, name in enumerate(self.namespaces):
            _run("ip", "netns", "add", name)
            ends = ["eth0", "netns", name, "type", "veth", "peer", "name", f"port{index}", "netns", self._hub]
            _run("ip", "link", "add", *ends)
            _run("ip", "-n", self._hub, "link", "set", f"port{index}", "master", "bridge", "up")
            _run("ip", "-n", name, "addr", "add", f"10.97.0.{index + 1}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                _run("ip", "-n", name, "link", "set", device, "up")
            if self._rate:
                shape = ["root", "tbf", "rate", self._rate, "burst", "256kb", "latency", "25ms"]
                _run("tc", "-n", name, "qdisc", "replace", "dev", "eth0", *shape)

    def enter(self, host: int) -> list[str]:
        """What to put in front of a command that runs on a host."""
        return ["ip", "netns", "exec", self.namespaces[host]]

    def sent(self, host: int) -> int:
        """Bytes that a host has sent, headers included."""
        return int(_run(*self.enter(host), "cat", "/sys/class/net/eth0/statistics/tx_bytes"))

    def close(self) -> None:
        for name in (*self.namespaces, self._hub):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
