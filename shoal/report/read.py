"""The profiler directory -> tables. JSON lines, one value a line, as the service's own profiler writes them.

Nothing in these files stops a reader: a host may have died in the middle of a line, and its clock may have jumped.
"""

import contextlib
import json
import math
from bisect import bisect_right
from pathlib import Path
from typing import Any

import polars as pl

from shoal.errors import ShoalError
from shoal.report import lines, sound
from shoal.report.observed import Faults, Observed, number

SYSTEM, STEP_FILES, PLACEMENTS, ENVIRONMENTS = "system", "steps", "smp", "environment"
SNAPSHOT_S = 0.02  # values whose times differ by no more were taken together
_CLOCK_BACK_S = 1.0  # less is the clock being slewed, or two threads writing
_GAP_S = 10.0
_EARLY_S = 30.0
# What PyTorch says when /dev/shm is too small for its loaders: the second is the exception that begins most of them.
LOG_MARKS = {"SmallSharedMemory": (b"insufficient shared memory (shm)", b"unable to write to file </torch_")}


def profiler_folder(run: Path) -> Path:
    """Return the folder with the observation files of a run: of a run folder, or the folder itself.

    Raises:
        ShoalError: there is none.
    """
    if not run.is_dir():
        raise ShoalError(f"{run}: no such folder: give the folder of a run, with profiler-output/ in it")
    for folder in (run / "profiler-output", run):
        if (folder / SYSTEM).is_dir() or (folder / STEP_FILES).is_dir():
            return folder
    raise ShoalError(
        f"{run}: nothing was measured in this run: no profiler-output/{SYSTEM} and no profiler-output/{STEP_FILES}:"
        " its image's `train` measures unless SHOAL_PROFILE is 0 (ProfilerConfig.DisableProfiler)"
    )


def read(run: Path) -> Observed:
    """Return all that a run folder tells.

    Raises:
        ShoalError: the folder holds no observations.
    """
    folder, faults = profiler_folder(run), Faults()
    metrics, _ = lines.table(_files(folder / SYSTEM), lines.SYSTEM, faults)
    steps, collectives = lines.table(_files(folder / STEP_FILES), lines.STEP, faults)
    steps = steps.with_columns(pl.col("DataSeconds", "CheckpointSeconds").fill_null(0.0))
    metrics = metrics.with_columns(pl.col("Dimension").fill_null(""))
    _look_at_clocks(metrics, faults)
    metrics = with_snapshots(metrics)
    _look_at_ends(metrics, faults)
    steps = steps.sort("NodeId", "Rank", "Timestamp")
    return Observed(
        metrics,
        steps,
        job=_job(run),
        collectives=collectives,
        environments=_environments(folder / ENVIRONMENTS),
        placements=_placements(folder / PLACEMENTS),
        log_marks=_marks(run),
        faults=faults,
    )


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*.json*") if path.is_file()) if folder.is_dir() else []


def with_snapshots(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return the rows in the order of time, with the number of the snapshot of its host that each belongs to."""
    frames = [metrics.clear().with_columns(Snapshot=pl.lit(None, pl.Int64))]
    for _node, frame in sorted(metrics.group_by("NodeId"), key=lambda item: str(item[0])):
        ordered = frame if frame["Timestamp"].is_sorted() else frame.sort("Timestamp", maintain_order=True)
        times = ordered["Timestamp"].set_sorted()
        firsts, at, ascending = [], 0, times.filter(times.diff().fill_null(1.0) > 0).to_list()
        while at < len(ascending):
            firsts.append(at)
            at = bisect_right(ascending, ascending[at] + SNAPSHOT_S)
        starts = pl.DataFrame({"Timestamp": [ascending[i] for i in firsts], "Snapshot": range(len(firsts))})
        starts = starts.with_columns(
            pl.col("Timestamp").cast(pl.Float64).set_sorted(), pl.col("Snapshot").cast(pl.Int64)
        )
        frames.append(ordered.join_asof(starts, on="Timestamp"))
    return pl.concat(frames)


def _look_at_clocks(metrics: pl.DataFrame, faults: Faults) -> None:
    """Count how often a host's clock went back: its lines are in the order in which they were written."""
    back = (pl.col("Timestamp").diff() < -_CLOCK_BACK_S).sum().alias("jumps")
    for node, jumps in metrics.group_by("NodeId").agg(back).iter_rows():
        if jumps:
            faults.clock_jumps[node] = jumps


def _look_at_ends(metrics: pl.DataFrame, faults: Faults) -> None:
    last = metrics["Timestamp"].max()
    for name, frame in metrics.group_by("NodeId", maintain_order=True):  # in the order of time already
        node, pauses = str(name[0]), frame["Timestamp"].diff().drop_nulls()
        pauses = pauses.filter(pauses > 0)
        if len(lost := pauses.filter(pauses > max(_GAP_S, 10 * number(pauses.median())))):
            faults.gaps[node] = number(lost.sum())
        end = frame["Timestamp"].max()
        if isinstance(last, float) and isinstance(end, float) and last - end > _EARLY_S:
            faults.stopped_early[node] = last - end


def _job(run: Path) -> dict[str, Any]:
    try:
        return sound.job(json.loads((run / "job.json").read_bytes()))
    except (OSError, ValueError, RecursionError):
        return {}


def _environments(folder: Path) -> list[dict[str, Any]]:
    """What samplers wrote of their hosts, as far as it is of the known form."""
    found = []
    for path in _files(folder):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found.append(sound.environment(json.loads(path.read_bytes())))
    return [one for one in found if one]


def _placements(folder: Path) -> list[dict[str, Any]]:
    """What smp wrote of where it put a model's modules: those files that say it in the form that is known here."""
    found = []
    for path in _files(folder):
        with contextlib.suppress(OSError, ValueError, RecursionError):
            content = json.loads(path.read_bytes())
            lists = content.get("ModuleListsInSequence") if isinstance(content, dict) else None
            if isinstance(lists, list) and all(map(_is_list_in_sequence, lists)):
                found.append({"Traced": content.get("Traced") is True, "ModuleListsInSequence": lists})
    return found


def _is_list_in_sequence(one: object) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get("Name"), str)
        and isinstance(one.get("Modules"), int)
        and isinstance(one.get("Ranks"), list)
    )


def _marks(run: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted((run / "logs").glob("*.log")):
        if not path.is_file():
            continue
        with contextlib.suppress(OSError), path.open("rb") as log:
            for line in log:
                for rule, marks in LOG_MARKS.items():
                    if any(mark in line for mark in marks) and len(found.setdefault(rule, [])) < 10:
                        found[rule].append(f"{path.stem}: {line.decode(errors='replace').strip()[:300]}")
    return {rule: said for rule, said in found.items() if said}


def duration(began: float, ended: float) -> float:
    """Return the seconds between two times, 0 where they make no sense."""
    return max(0.0, ended - began) if math.isfinite(ended - began) else 0.0
