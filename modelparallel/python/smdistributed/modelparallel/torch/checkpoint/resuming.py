"""`smp.resume_from_checkpoint`: find the checkpoint, check that it fits this job, load what each rank needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, NamedTuple

from .. import checks, comm
from ..exceptions import CheckpointError, SMPValueError
from ..partition import reuse
from ..state import state
from . import folder, full, names, optimizer_state, parts, replica, together
from .reading import read_object


def resume_from_checkpoint(
    path: str,
    tag: str | None = None,
    partial: bool = True,
    strict: bool = True,
    load_optimizer: bool = True,
    load_sharded_optimizer_state: bool = True,
    translate_function: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Any:
    """Load a checkpoint of save_checkpoint into the job's model and optimizer, and return its user_content (or None).

    All ranks call it, after smp.DistributedModel and smp.DistributedOptimizer, best before the first step.
    tag: which checkpoint; None for the one that the file `newest` names. partial: of which kind it is.
    strict: the names of parameters and buffers must be exactly the model's.
    load_optimizer: its state too (partial only). load_sharded_optimizer_state: False loads, of an optimizer whose state
    is sharded over replicas, only the loss scale of fp16: so a job with another number of replicas can go on with the
    weights. translate_function: turns a full state_dict into that of this model, where tensor
    parallelism replaced modules that do not know how themselves.

    A partial checkpoint brings back the partition, the optimizer, and the random numbers and buffers of each rank: the
    resumed run computes what the interrupted one would have, bit by bit. It needs the tensor parallel degree it was
    saved with; with another pipeline degree, or after the first step gave this job another partition, the parts are
    merged and loaded anew. A full checkpoint fits any degrees. user_content may be any Python object and is unpickled:
    resume only from folders that you trust. Everything else is read with weights_only=True.
    Raises CheckpointError for a checkpoint, or a part of it, that is missing, damaged or does not fit.
    """
    model = state.require().model
    if model is None:
        raise SMPValueError("smp.resume_from_checkpoint: there is no model yet: call smp.DistributedModel(...) first")
    where = "smp.resume_from_checkpoint"
    place = Path(checks.path(where, "path", path))
    partial, strict = checks.flag(where, "partial", partial), checks.flag(where, "strict", strict)
    load_optimizer = checks.flag(where, "load_optimizer", load_optimizer)
    load_sharded = checks.flag(where, "load_sharded_optimizer_state", load_sharded_optimizer_state)
    if tag is not None and (not isinstance(tag, str) or not tag):
        checks.refuse(where, "tag", tag, "the name that a checkpoint was saved under, or None for the newest")
    if translate_function is not None:
        checks.function(where, "translate_function", translate_function)
    name = together.result_or_none(lambda: _name(place, tag, partial))
    together.same("smp.resume_from_checkpoint: the checkpoint", name)
    if not partial:
        whole, content = together.result_or_none(lambda: full.read(place, name, translate_function))
        model.load_state_dict(full.with_tied(whole, model.module), strict=strict)
        return content
    found = together.result_or_none(lambda: _read(_folder(place, name), load_optimizer, load_sharded))
    _load(found, strict)
    return found.user_content


def _name(path: Path, tag: str | None, partial: bool) -> str:
    if tag is not None:
        return tag if not partial or tag.endswith(names.PARTIAL) else tag + names.PARTIAL
    name = folder.newest(path)
    if name.endswith(names.PARTIAL) != partial:
        kind = "partial" if name.endswith(names.PARTIAL) else "full"
        raise CheckpointError(
            f"the newest checkpoint in {path} is {name}, a {kind} one: pass partial={not partial}, or a tag"
        )
    return name


def _folder(path: Path, name: str) -> Path:
    found = folder.existing(path, name)
    if found is None:
        there = sorted(one.name for one in path.glob(f"*{names.PARTIAL}") if not one.name.startswith("."))
        raise CheckpointError(f"there is no checkpoint {path / name}; there are {', '.join(there) or 'none'}")
    return found


def _check(at: Path, said: dict[str, Any], wanted: bool, whole: bool) -> None:
    """Raise CheckpointError unless the folder fits this job and has this rank's parts.

    wanted: something of the optimizer is loaded. whole: its state too.
    """
    saved, now = said["tensor_parallel_degree"], comm.tp_size()
    if saved != now:
        raise CheckpointError(
            f"{at} was saved with tensor_parallel_degree {saved}, and this job has {now}: resume with {saved}, or from "
            "a full checkpoint"
        )
    needs_all_ranks = said["sharded_optimizer"] and whole
    for key in ("pipeline_parallel_degree", "reduced_data_parallel_degree"):
        saved, now = said[key], getattr(comm, {"p": "pp_size", "r": "rdp_size"}[key[0]])()
        if needs_all_ranks and saved != now:
            raise CheckpointError(
                f"{at} holds an optimizer state that is sharded over replicas, saved with {key} {saved}, and this job "
                f"has {now}: resume with {saved}, or pass load_sharded_optimizer_state=False"
            )
    if wanted and "optimizer" not in said["kinds"]:
        raise CheckpointError(f"{at} was saved without an optimizer: pass load_optimizer=False")
    if "model" not in said["kinds"]:
        raise CheckpointError(f"{at} was saved without a model")
    expected = [file for one in _places(said) for file in _files(one, said, whole)]
    missing = sorted({file for file in expected if not (at / file).exists()})
    if missing:
        raise CheckpointError(
            f"{at} lacks {', '.join(missing)}: it is not complete, or this host does not have all of its files"
        )


def _places(said: dict[str, Any]) -> list[names.Place]:
    """Whose parts this rank loads: its own; all pipeline ranks' where their number has changed."""
    here = parts.here()
    if said["pipeline_parallel_degree"] == comm.pp_size():
        return [here]
    return [here._replace(pp=pp) for pp in range(said["pipeline_parallel_degree"])]


def _files(place: names.Place, said: dict[str, Any], optimizer: bool) -> list[str]:
    own = parts.parts_of(place, sharded_optimizer=said["sharded_optimizer"])
    return [own.model, *([own.optimizer] if optimizer else [])]


class _Found(NamedTuple):
    """What this rank read; models, optimizers: one each, or those of all pipeline ranks where their number changed."""

    said: dict[str, Any]
    models: list[dict[str, Any]]
    optimizers: list[dict[str, Any]]
    fp16: dict[str, Any] | None
    replica: dict[str, Any] | None
    user_content: Any


def _read(at: Path, load_optimizer: bool, load_sharded: bool) -> _Found:
    said = read_object(at / names.PARTITION, map_location="cpu", weights_only=True)
    wanted = load_optimizer and state.optimizer is not None
    whole = wanted and (load_sharded or not said["sharded_optimizer"])
    _check(at, said, wanted, whole)
    files = [parts.parts_of(place, sharded_optimizer=said["sharded_optimizer"]) for place in _places(said)]

    def read(name: str) -> Any:
        return read_object(at / name, map_location="cpu", weights_only=True) if (at / name).exists() else None

    own = files[0] if len(files) == 1 else None
    # The loss scale, the same on all ranks: a rank that the saved job did not have takes that of another.
    fp16 = [files[0].fp16, *sorted(one.name for one in at.glob("fp16_states_*.pt"))] if wanted else []
    return _Found(
        said,
        models=[read(one.model) for one in files],
        optimizers=[read(one.optimizer) for one in files] if whole else [],
        fp16=next((found for found in map(read, fp16) if found is not None), None),
        replica=read(own.replica) if own else None,
        user_content=read_object(at / names.USER_CONTENT, map_location="cpu", weights_only=False),
    )


def _load(found: _Found, strict: bool) -> None:
    model = state.model
    if found.said["pipeline_parallel_degree"] != comm.pp_size():
        model.load_state_dict(full.merged(found.models), strict=strict)
    else:
        if not model.partitioned:
            reuse(found.said["partition"])
        same = not model.partitioned or found.said["partition"] == parts.partition_of(model)
        model.load_state_dict(found.models[0], strict=strict, same_partition_load=same)
    if found.optimizers or found.fp16 is not None:
        several = len(found.optimizers) > 1
        whole = optimizer_state.merged(found.optimizers) if several else next(iter(found.optimizers), None)
        optimizer_state.load(state.optimizer, whole, found.fp16)
    if found.replica is not None:
        replica.restore(model, found.replica)
