"""`smp.save_checkpoint`: all ranks together write a folder (partial) or a file (full), and then name it the newest."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import torch

from .. import checks, comm, marks
from ..exceptions import CheckpointError
from ..state import state
from . import atomic, folder, names, optimizer_state, parts, replica, together

logger = logging.getLogger(__name__)


@marks.saving
def save_checkpoint(
    path: str,
    tag: str,
    partial: bool = True,
    model: Any = None,
    optimizer: Any = None,
    user_content: Any = None,
    translate_if_full: bool = True,
    num_kept_partial_checkpoints: int | None = None,
) -> None:
    """Save the job in the folder `path`; all ranks call it with the same arguments, after the first step.

    partial: a folder `{tag}_partial` with a file a rank: model_{pp}_{tp}.pt and optimizer_{pp}_{tp}.pt (one number more
    where replicas hold different optimizer state), fp16_states_*.pt, replica_*.pt (random number generators and buffers
    of each rank), partition.pt, user_content.pt. Not partial: the file `tag`, the model's state_dict for the plain
    module, and user_content_{tag}; the optimizer is not saved. The file `newest` then names the folder or file.
    model, optimizer: the distributed ones; None saves none. user_content: anything that can be pickled.
    translate_if_full: give the whole state_dict the keys of the original model where a module was replaced by a
    distributed one that knows how. num_kept_partial_checkpoints: delete older partial checkpoints but for so many.

    A save that is interrupted, or fails on any rank, leaves the checkpoints before it, and `newest`, as they were.
    Where hosts share no file system, each host gets the partial files of its own ranks and what all need, and a full
    checkpoint is on the host of rank 0.
    Raises CheckpointError on all ranks when a rank cannot write, SMPValueError for arguments that cannot be.
    """
    state.require()
    place = Path(checks.path("smp.save_checkpoint", "path", path))
    partial = checks.flag("smp.save_checkpoint", "partial", partial)
    translate_if_full = checks.flag("smp.save_checkpoint", "translate_if_full", translate_if_full)
    _check(tag, model, optimizer, num_kept_partial_checkpoints)
    together.same("smp.save_checkpoint: tag", tag)
    first = together.writes_here(place)
    if partial:
        _save_partial(place, tag, first, model, optimizer, user_content)
        if num_kept_partial_checkpoints is not None and first:
            folder.keep_newest(place, num_kept_partial_checkpoints)
    else:
        _save_full(place, tag, model, optimizer, user_content, translate_if_full)
    comm.barrier()


def _save_partial(path: Path, tag: str, first: bool, model: Any, optimizer: Any, user_content: Any) -> None:
    name = tag + names.PARTIAL
    full = folder.filling(path, name, together.number())

    def begin() -> None:
        if first:
            folder.remove_leftovers(path)
            full.mkdir()

    together.all_or_none(begin)
    try:
        # Gathered before any rank writes: some of it is exchanged between ranks.
        objects = _objects(model, optimizer, user_content, first)
        together.all_or_none(lambda: _write(objects, full))
    except BaseException:
        if first:
            shutil.rmtree(full, ignore_errors=True)
        raise

    def end() -> None:
        # On a shared file system the first of them has renamed it for all.
        if first:
            folder.publish(full, path, name)
            atomic.write_text(path / names.NEWEST, f"{name}\n")

    together.all_or_none(end)


def _objects(model: Any, optimizer: Any, user_content: Any, first: bool) -> dict[str, Any]:
    """What this rank writes into the folder, by name of the file."""
    sharded = parts.sharded_optimizer()
    files = parts.parts_of(parts.here(), sharded_optimizer=sharded)
    objects: dict[str, Any] = {}
    kinds = []
    own: dict[str, Any] = {}
    if model is not None:
        kinds.append("model")
        own = model.local_state_dict()
        if comm.rdp_rank() == 0:
            objects[files.model] = own
    objects[files.replica] = replica.capture(model, own)
    if optimizer is not None:
        kinds.append("optimizer")
        own, fp16 = optimizer_state.local(optimizer, sharded=sharded)
        if comm.rdp_rank() == 0 or sharded:
            objects[files.optimizer] = own
            if fp16 is not None:
                objects[files.fp16] = fp16
    if first:
        objects[names.PARTITION] = parts.description(model, kinds)
        objects[names.USER_CONTENT] = user_content
    return objects


def _write(objects: dict[str, Any], full: Path) -> None:
    for name, one in objects.items():
        atomic.save_object(one, full / name)


def _save_full(path: Path, tag: str, model: Any, optimizer: Any, user_content: Any, translate: bool) -> None:
    if optimizer is not None and comm.rank() == 0:
        logger.warning("smp: a full checkpoint has no optimizer state: that of %s is not saved", tag)
    whole: dict[str, Any] = {}
    # Sharded parameters are gathered from all replicas, others are whole on the first.
    if model is not None and (comm.rdp_rank() == 0 or state.cfg.sharded_data_parallel_degree > 1):
        whole = model.state_dict(gather_to_rank0=True)

    def write() -> None:
        if comm.rank() != 0:
            return
        if (path / tag).is_dir():
            raise CheckpointError(f"{path / tag} is a folder: choose another tag or path")
        if user_content is not None:
            atomic.save_object(user_content, path / names.user_content_of_full(tag))
        if model is not None:
            atomic.save_object(_translated(whole) if translate else whole, path / tag)
            atomic.write_text(path / names.NEWEST, f"{tag}\n")

    together.all_or_none(write)


def _translated(whole: dict[str, Any]) -> dict[str, Any]:
    for ours_to_theirs, _ in state.module_manager.translate_functions:
        whole = ours_to_theirs(whole)
    return whole


def _check(tag: Any, model: Any, optimizer: Any, kept: Any) -> None:
    where = "smp.save_checkpoint"
    if not isinstance(tag, str):
        checks.refuse(where, "tag", tag, "a string, the name of the checkpoint")
    if not tag or "/" in tag or tag.startswith(".") or tag == names.NEWEST:
        checks.refuse(where, "tag", tag, "the name of a file, without '/' and no '.' before it")
    if model is not None and model is not state.model:
        checks.refuse(where, "model", model, "what smp.DistributedModel returned, or None")
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        checks.refuse(where, "optimizer", optimizer, "what smp.DistributedOptimizer returned, or None")
    if kept is not None:
        checks.whole(where, "num_kept_partial_checkpoints", kept, least=1)
