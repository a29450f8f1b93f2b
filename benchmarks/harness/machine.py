"""What was measured on, and what it could do at best: its name, its caches, its memory, its links."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from harness.build import SOURCES, Cache, UnavailableError
from harness.layout import Layout
from harness.network import Network

# Two cores of one L3 cache answer one another within 50 to 120 ns, cores of different ones take 200 to 500.
_FAR_NANOSECONDS = 180.0


def description() -> dict[str, object]:
    """Processor, system and versions.

    Raises:
        UnavailableError: this interpreter lacks torch or smddp.
    """
    try:
        import torch
    except ImportError as error:
        raise UnavailableError(f"{sys.executable} has no torch: start this with .venv/bin/python ({error})") from None
    try:
        import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401
        from smdistributed.dataparallel import _C
    except ImportError as error:
        raise UnavailableError(f"{sys.executable} has no smddp: run `make smddp` ({error})") from None
    cpu_lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.split(":", 1)[1].strip() for line in cpu_lines if line.startswith("model name")]
    return {
        "cpu": models[0] if models else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "smddp": str(getattr(_C, "__version__", None) or importlib.metadata.version("shoal-smddp")),
        # Between two releases the version stays and the library does not.
        "smddp_build": hashlib.sha256(Path(_C.__file__).read_bytes()).hexdigest()[:12],
    }


@dataclass(frozen=True)
class Caches:
    """How far the cores are from one another at this moment: virtual machines move."""

    nanoseconds: float
    cores: int

    @property
    def label(self) -> str:
        if self.cores == 1:
            return "one core"
        return "far" if self.nanoseconds > _FAR_NANOSECONDS else "near"


def caches(cache: Cache) -> Caches:
    """Measure the round trip between two cores; takes some milliseconds."""
    found = json.loads(_probe(cache, "cores"))
    return Caches(found["nanoseconds"], found["cores"])


def memory_seconds(cache: Cache, operation: str, size: int, ranks: int) -> float:
    """Seconds of the memory traffic that `operation` cannot avoid inside one host, by this machine's fastest way."""
    seconds: float = json.loads(_probe(cache, "memory", operation, str(size), str(ranks)))["seconds"]
    return seconds


def _probe(cache: Cache, *words: str) -> str:
    done = subprocess.run([str(cache.probe()), *words], capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        raise UnavailableError(f"probe {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def goodput(network: Network, size: int = 1 << 20, seconds: float = 0.8) -> float:
    """Bytes a second of TCP payload that each link carries in both directions at once: the mean over hosts, each
    sending to the next, out of and into a buffer of `size` bytes. The better of two ways to do it."""
    return max(_goodput(network, size, seconds, way) for way in ("threads", "turns"))


def _goodput(network: Network, size: int, seconds: float, way: str) -> float:
    hosts = network.hosts
    processes = []
    for index, host in enumerate(hosts):
        following = hosts[(index + 1) % len(hosts)].address
        script = [sys.executable, str(SOURCES / "goodput.py"), host.address, following, "5000"]
        argv = [*host.enter, *script, str(seconds), str(size), way]
        processes.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
    try:
        lines = [process.stdout.readline() if process.stdout else "" for process in processes]
        if not all(lines):
            raise UnavailableError("the links' rate could not be measured: a host's sender or receiver failed")
        return sum(float(line) for line in lines) / len(lines)
    finally:
        for process in processes:
            if process.stdin:
                process.stdin.close()
        for process in processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdout:
                process.stdout.close()


def link_seconds(operation: str, size: int, hosts: int, bytes_per_second: float) -> float:
    """Seconds in which a host's link can carry what it must send or receive for `operation`, whatever the algorithm:
    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations (2009)."""
    share = (hosts - 1) / hosts
    passes = {"all_reduce": 2 * share, "all_gather": share, "reduce_scatter": share, "broadcast": 1.0}
    return passes[operation] * size / bytes_per_second


@dataclass
class Links:
    """What the links of a layout carry."""

    network: Network
    layout: Layout
    shaped: float = 0.0

    def bytes_per_second(self, size: int = 1 << 20) -> float:
        """While a message of `size` bytes is exchanged. Where the cores are the limit, and not the links, that depends
        on where the cores are now, and on whether the message stays in their caches: then it is measured each time."""
        if self.layout.hosts == 1:
            return 0.0
        if self.layout.link == "unshaped":
            return goodput(self.network, max(size, 1 << 20), seconds=0.3)
        if not self.shaped:
            self.shaped = goodput(self.network)
        return self.shaped


def bound_seconds(cache: Cache, layout: Layout, operation: str, size: int, link_rate: float) -> float:
    """The achievable limit of one operation."""
    if layout.hosts == 1:
        return memory_seconds(cache, operation, size, layout.ranks)
    return link_seconds(operation, size, layout.hosts, link_rate)


def sum_seconds(cache: Cache, layout: Layout, operation: str, size: int) -> float:
    """Seconds that adding up takes beside what `bound_seconds` moves. Nothing where it can be done meanwhile: inside a
    host the bound has it, and links with a limit leave the cores time."""
    if layout.link != "unshaped" or operation not in ("all_reduce", "reduce_scatter"):
        return 0.0
    return memory_seconds(cache, "sum", size, layout.hosts)


def busy_share(seconds: float = 0.25) -> float:
    """Share of the machine's CPU time that is in use while we do nothing."""
    before = _cpu_ticks()
    time.sleep(seconds)
    after = _cpu_ticks()
    busy, total = (now - then for now, then in zip(after, before, strict=True))
    return busy / total if total else 0.0


def _cpu_ticks() -> tuple[int, int]:
    """(in use, all), over all cores; time stolen by other virtual machines counts as in use."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)


def wait_until_quiet(limit: float, threshold: float = 0.05) -> float:
    """Wait until others leave the machine alone, at most `limit` seconds; the share they still used."""
    end = time.monotonic() + limit
    while True:
        share = busy_share()
        if share < threshold or time.monotonic() > end:
            return share
