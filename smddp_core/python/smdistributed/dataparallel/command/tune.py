"""`smddp tune`: time all-reduce under each value of each setting, on the ranks at hand, and write down the best.

One setting after another (coordinate descent), because all combinations would take hours. Values are measured in turn,
several rounds of all of them, so that a machine that slows down meanwhile slows all of them. A value replaces the
default only where it is faster by more than noise.
"""

from __future__ import annotations

import datetime
import os
import sys
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from smdistributed.dataparallel import tuning
from smdistributed.dataparallel.command.measure import Measurement, in_words, measure
from smdistributed.dataparallel.command.tunables import TUNABLES, Tunable
from smdistributed.dataparallel.compiled import _C
from smdistributed.dataparallel.digits import is_whole_number
from smdistributed.dataparallel.exceptions import SMDDPError, SMDDPUsageError
from smdistributed.dataparallel.torch import torch_smddp

if TYPE_CHECKING:
    from pathlib import Path

# How much less time a value must take, on the average of the sizes, to be preferred to the default.
_GAIN = 0.03
_OVERVIEW_SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20)
_Value = TypeVar("_Value")


def run(output: Path, largest: int, rounds: int, store: str | None) -> int:
    """Measure with the other ranks; rank 0 writes the table ``output``. The exit code, the same on every rank.

    Args:
        output: the table; what it says of other topologies stays.
        largest: bytes of the largest message.
        rounds: how often each value is measured.
        store: file where the ranks meet; None for the launcher's env:// rendezvous.

    Raises:
        SMDDPError: the ranks do not meet, or one of them is lost.
    """
    file = tuning.title(output, os.environ)
    # What an earlier run found must not stand in for the defaults.
    os.environ["SMDDP_TUNE_FILE"] = tuning.NO_TABLE
    _init(store)
    key, refusal = _agree(_prepare(output, file) if dist.get_rank() == 0 else ("", ""))
    if refusal:
        dist.barrier()
        dist.destroy_process_group()
        return 1
    _say(f"smddp {_C.__version__}, {key} (hosts x ranks a host), {torch_smddp.path()}")
    chosen, measured = _descend(_tunables(key), largest, rounds)
    sizes = tuple(size for size in _OVERVIEW_SIZES if size <= largest)
    overview = measure([{}, chosen], sizes, rounds, _progress("default and tuned")) if chosen else []
    if not measured:
        _say(f"{output}: {key}: nothing was measured, so the file stays as it is")
    elif dist.get_rank() == 0:
        tuning.save(output, key, _entry(chosen, measured, overview), file)
        _say(f"{output}: {key}: {_in_words(chosen) or 'the defaults are the best here'}")
    dist.barrier()
    dist.destroy_process_group()
    return 0


def best(measurement: list[Measurement], default: dict[str, str]) -> dict[str, str]:
    """The settings with the least time on the geometric mean of the sizes; the default if none is clearly better."""
    reference = next((one for one in measurement if one.settings == default), None)
    least = min(measurement, key=lambda one: one.mean_seconds)
    if reference is not None and least.mean_seconds > (1 - _GAIN) * reference.mean_seconds:
        return default
    return least.settings


def _init(store: str | None) -> None:
    where: dict[str, Any] = {}  # torch itself knows where a launcher's ranks meet
    if store:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        where = {"init_method": f"file://{store}", "rank": rank, "world_size": size}
    try:
        dist.init_process_group("smddp", **where)
    except SMDDPError:
        raise
    except (RuntimeError, ValueError) as error:  # of torch's store; below its first line is a C++ stack
        raise SMDDPError(f"smddp: the ranks did not meet: {(str(error).splitlines() or [''])[0]}") from error


def _prepare(output: Path, file: str) -> tuple[str, str]:
    """On rank 0: the topology, and what is in the way of measuring it, if anything.

    Said before the others know: they end without a word, and whoever started the ranks may then end this one too.
    """
    key = tuning.topology_key(range(dist.get_world_size()), os.environ) or ""
    refusal = "" if key else "smddp: hosts with different numbers of ranks are not supported (LOCAL_WORLD_SIZE)"
    if key:
        try:
            tuning.check_output(output, file)
        except SMDDPUsageError as error:
            refusal = str(error)
    if refusal:
        _say(refusal)
    return key, refusal


def _tunables(key: str) -> list[Tunable]:
    """Those that this shape of group uses, this library knows, and the user has not fixed."""
    hosts, each = (int(number) for number in key.split("x"))
    known = _C.settings()
    usable = [tunable for tunable in TUNABLES if tunable.name in known and tunable.matters(hosts, each)]
    for tunable in usable:
        if os.environ.get(tunable.name):
            _say(f"{_in_words({tunable.name: os.environ[tunable.name]})}: set in the environment, so not tuned")
    return [tunable for tunable in usable if not os.environ.get(tunable.name)]


def _descend(tunables: list[Tunable], largest: int, rounds: int) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """Settings that differ from the defaults, and every measurement."""
    defaults = _C.settings()
    chosen: dict[str, str] = {}
    measured: list[dict[str, Any]] = []
    for index, tunable in enumerate(tunables):
        title = f"[{index + 1}/{len(tunables)}]"
        values = sorted({*tunable.values, defaults[tunable.name]}, key=_order)
        candidates = [{**chosen, tunable.name: value} for value in values]
        sizes = tuple(size for size in tunable.sizes if size <= largest)
        if not sizes:
            least = in_words(min(tunable.sizes))
            _say(f"{title} {tunable.name}: matters from {least}, more than --largest, so not tuned")
            continue
        results = measure(candidates, sizes, rounds, _progress(title))
        measured += [one.as_json() for one in results]
        value = _agree(best(results, {**chosen, tunable.name: defaults[tunable.name]})[tunable.name])
        if value != defaults[tunable.name]:
            chosen[tunable.name] = value
        _say(f"{title} {tunable.name}: {value} (default: {defaults[tunable.name]})")
    return chosen, measured


def _order(value: str) -> tuple[int, str]:
    return (int(value), "") if is_whole_number(value) else (0, value)


def _agree(value: _Value) -> _Value:
    """Rank 0's value. Where it chooses by times, the others saw the same ones, but need not rely on it."""
    values = [value]
    dist.broadcast_object_list(values, 0)
    return values[0]


def _entry(chosen: dict[str, str], measured: list[dict[str, Any]], overview: list[Measurement]) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "settings": chosen,
        "machine": tuning.machine(),
        "made": now.isoformat(timespec="seconds"),
        "versions": {"smddp": _C.__version__, "torch": torch.__version__},
        "path": torch_smddp.path(),
        "default_and_tuned": [one.as_json() for one in overview],
        "measurements": measured,
    }


def _progress(title: str) -> Any:
    return lambda one: _say(f"{title} {_in_words(one.settings) or 'defaults'}: {one.in_words()}")


def _in_words(settings: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" for name, value in settings.items())


def _say(line: str) -> None:
    if dist.get_rank() == 0:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
