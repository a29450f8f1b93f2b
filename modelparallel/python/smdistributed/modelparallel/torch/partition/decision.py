"""A decision as a document: written to a file or a checkpoint, checked against the model when it is used again."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, Mapping

from torch import nn

from ..exceptions import SMPConfigError

VERSION = 1

_pending: dict[str, Any] | None = None


def reuse(document: Mapping[str, Any] | None) -> None:
    """Makes the next `decide` return this decision (what `encoded` gave, or JSON of it); None takes that back."""
    global _pending
    _pending = None if document is None else dict(document)


def pending() -> dict[str, Any] | None:
    """The decision that `reuse` set."""
    return _pending


def encoded(ranks: Mapping[str, int], module: nn.Module, devices: int) -> dict[str, Any]:
    """A decision as a dictionary that JSON can hold: ranks by name of module, and what they were decided for."""
    return {
        "version": VERSION,
        "pipeline_parallel_degree": devices,
        "assignments": {name: ranks[name] for name, _ in module.named_modules()},
    }


def decoded(document: Mapping[str, Any], module: nn.Module, devices: int) -> dict[str, int]:
    """The ranks in a document, if it was decided for such a model on so many ranks; else raises SMPConfigError."""
    version = document.get("version")
    if version != VERSION:
        raise SMPConfigError(f"the saved partition has version {version!r}: only version {VERSION} is known, delete it")
    saved = document.get("pipeline_parallel_degree")
    if saved != devices:
        raise SMPConfigError(
            f"the saved partition is for pipeline_parallel_degree {saved} and the job has {devices}: "
            "run with the same degree, or load a full checkpoint to partition anew"
        )
    ranks = {str(name): int(rank) for name, rank in document["assignments"].items()}
    names = [name for name, _ in module.named_modules()]
    missing = [name for name in names if name not in ranks]
    if missing or len(ranks) != len(names):
        unknown = sorted(set(ranks) - set(names))
        raise SMPConfigError(
            f"the saved partition is of another model (it lacks {missing[:3]}, it has besides {unknown[:3]}): "
            "use the model it was saved for, or delete it"
        )
    wrong = {name: rank for name, rank in ranks.items() if not 0 <= rank < devices}
    if wrong:
        raise SMPConfigError(f"the saved partition puts modules on ranks that do not exist: {wrong}; delete it")
    return ranks


def read(path: str) -> dict[str, Any]:
    """The document in a file; SMPConfigError if there is none."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise SMPConfigError(f"partition_file {path!r} cannot be read: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise SMPConfigError(f"partition_file {path!r} is not JSON: {error}") from error
    if not isinstance(found, dict) or not isinstance(found.get("assignments"), dict):
        raise SMPConfigError(f"partition_file {path!r} holds no partition: let a job without load_partition write it")
    return found


def write(path: str, document: Mapping[str, Any]) -> None:
    """Writes a document at once or not at all: every replica writes the same file, and any may be interrupted."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    Path(temporary).replace(target)
