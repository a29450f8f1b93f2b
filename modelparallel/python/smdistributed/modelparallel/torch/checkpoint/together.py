"""What the ranks of a job agree on while they save: who has which disk, and whether all succeeded."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any, Callable, TypeVar

from .. import comm
from ..exceptions import CheckpointError, SMPValueError

Result = TypeVar("Result")


def same(what: str, value: Any) -> None:
    """Raise SMPValueError, on every rank, unless all ranks have the same value."""
    values = comm.allgather(value)
    if any(one != values[0] for one in values):
        other = next(rank for rank, one in enumerate(values) if one != values[0])
        raise SMPValueError(
            f"{what} is {values[0]!r} on rank 0 and {values[other]!r} on rank {other}: it must be the same on all ranks"
        )


def number() -> str:
    """A name for this save, the same on all ranks."""
    found: str = comm.allgather(secrets.token_hex(4) if comm.rank() == 0 else None)[0]
    return found


def writes_here(path: Path) -> bool:
    """Whether this rank makes the folders and what there is once: rank 0, and the first rank of a host that rank 0's
    disk does not reach.

    Whether hosts share a file system is found by a file of rank 0's. All ranks call this; `path` exists afterwards.
    """
    probe = path / f".{number()}.probe"
    all_or_none(lambda: _leave(probe) if comm.rank() == 0 else None)
    seen = probe.exists()
    comm.barrier()
    if comm.rank() == 0:
        probe.unlink()
    first = comm.rank() == 0 or (comm.local_rank() == 0 and not seen)
    all_or_none(lambda: path.mkdir(parents=True, exist_ok=True) if first else None)
    return first


def _leave(probe: Path) -> None:
    probe.parent.mkdir(parents=True, exist_ok=True)
    probe.touch()


def all_or_none(work: Callable[[], None]) -> None:
    """Do this rank's work; when it fails on any rank, raise CheckpointError on all, with the ranks and their causes.

    Also a barrier: when it returns, the work of all ranks is done.
    """
    own: Exception | None = None
    try:
        work()
    except Exception as error:
        own = error
    said = comm.allgather(None if own is None else _said(own))
    failed = [f"rank {rank}: {sentence}" for rank, sentence in enumerate(said) if sentence is not None]
    if failed:
        raise CheckpointError("; ".join(failed)) from own


def result_or_none(work: Callable[[], Result]) -> Result:
    """What this rank's work returns, once that of all ranks has returned; raises as all_or_none does."""
    found: list[Result] = []
    all_or_none(lambda: found.append(work()))
    return found[0]


def _said(error: Exception) -> str:
    if isinstance(error, CheckpointError):
        return str(error)
    return f"{type(error).__name__}: {error}"
