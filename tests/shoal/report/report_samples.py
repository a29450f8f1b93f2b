"""Runs as a sampler would have measured them: the scenarios the rules are tested with, and their files."""

import json
import random
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import polars as pl

from shoal.report.observed import METRICS, STEPS, Observed
from shoal.report.read import with_snapshots

BEGAN, INTERVAL = 1_700_000_000.0, 0.5
POINTS, CORES, GPUS = 2000, 4, 2

Value = Callable[[int, int], float]  # (point, device) -> percent


def event(kind: str, name: str, dimension: str, value: float, node: str, time: float) -> dict[str, Any]:
    return {"Type": kind, "Name": name, "Dimension": dimension, "Value": value, "NodeId": node, "Timestamp": time}


def host(
    node: str = "algo-1",
    *,
    points: int = POINTS,
    cores: int = CORES,
    gpus: int = GPUS,
    cpu: Value = lambda point, core: 20.0,
    iowait: Value = lambda point, core: 1.0,
    gpu: Value = lambda point, device: 90.0,
    memory: Value = lambda point, device: 60.0,
    began: float = BEGAN,
) -> Iterator[dict[str, Any]]:
    """Yield what one host measured, in the order of time."""
    for point in range(points):
        now = began + point * INTERVAL
        for core in range(cores):
            yield event("cpu", f"cpu{core}", "CPUUtilization", cpu(point, core), node, now)
            yield event("cpu", f"cpu{core}", "I/OWaitPercentage", iowait(point, core), node, now)
        for device in range(gpus):
            yield event("gpu", f"gpu{device}", "GPUUtilization", gpu(point, device), node, now)
            yield event("gpu", f"gpu{device}", "GPUMemoryUtilization", memory(point, device), node, now)
        yield event("memory", "MemoryUsedPercent", "", 40.0, node, now)
        yield event("i/o", "ReadThroughputInBytesPerSecond", "", 50e6, node, now)
        yield event("network", "ReceiveBytesPerSecond", "Algorithm", 2e6, node, now)
        yield event("network", "TransmitBytesPerSecond", "Algorithm", 3e6, node, now)


def step(node: str, rank: int, number: int, end: float, seconds: float, **parts: float | None) -> dict[str, Any]:
    return {"NodeId": node, "Rank": rank, "Step": number, "Timestamp": end, "Seconds": seconds, **parts}


def ranks(
    count: int = 4,
    steps: int = 300,
    *,
    own: Callable[[int, int], float] = lambda rank, number: 0.1,
    data: float = 0.01,
    transfer: float = 0.01,
    per_host: int = 2,
    began: float = BEGAN + 5,
) -> Iterator[dict[str, Any]]:
    """Yield the steps of ranks in step with one another: each waits in its collective for the latest."""
    now = began
    for number in range(steps):
        times = [own(rank, number) for rank in range(count)]
        whole = max(times) + transfer
        now += whole
        for rank, time in enumerate(times):
            parts = {"DataSeconds": data, "CollectiveSeconds": whole - time, "CollectiveBytes": 1e6}
            yield step(f"algo-{1 + rank // per_host}", rank, number, now, whole, **parts)


def observed(
    events: Iterable[dict[str, Any]] = (), steps: Iterable[dict[str, Any]] = (), job: dict[str, Any] | None = None
) -> Observed:
    """Return the tables of these, as the reader would."""
    metrics = pl.DataFrame(list(events), schema=METRICS)
    marked = pl.DataFrame(list(steps), schema=STEPS).sort("NodeId", "Rank", "Timestamp")
    marked = marked.with_columns(pl.col("DataSeconds", "CheckpointSeconds").fill_null(0.0))
    return Observed(with_snapshots(metrics), marked, job or {})


def spread(percent: int) -> Callable[[int], bool]:
    """Return a function that says yes for `percent` of each hundred points, in a fixed random order."""
    order = list(range(100))
    random.Random(7).shuffle(order)
    return lambda point: order[point % 100] < percent


def write_run(
    folder: Path,
    events: Iterable[dict[str, Any]] = (),
    steps: Iterable[dict[str, Any]] = (),
    job: dict[str, Any] | None = None,
) -> Path:
    """Write a run folder as `shoal run` leaves it: a file for each minute and host, one for each rank."""
    texts: dict[Path, list[str]] = {}
    for one in events:
        minute = int(one["Timestamp"]) // 60 * 60
        name = Path("system", "incremental", str(minute // 3600), f"{minute}.{one['NodeId']}.json")
        texts.setdefault(name, []).append(json.dumps(one))
    for one in steps:
        texts.setdefault(Path("steps", f"{one['NodeId']}-{one['Rank']}.jsonl"), []).append(json.dumps(one))
    for path, lines in texts.items():
        file = folder / "profiler-output" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines) + "\n")
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    (folder / "logs" / "algo-1.log").write_text("a line\n")
    if job is not None:
        (folder / "job.json").write_text(json.dumps(job))
    return folder
