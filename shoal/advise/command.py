"""The verb `shoal advise`: storage and batch from a few numbers. Only arithmetic: nothing is looked at or changed."""

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from shoal import console
from shoal.advise import quantity, storage
from shoal.advise.batch import BatchPlan, batch_plan
from shoal.errors import ShoalError

_EVERY_BATCH_OPTION = "--batch-per-device, --base-batch, --base-lr and --samples"


def advise(
    dataset: Annotated[str | None, typer.Option(help="Bytes read in an epoch: 100GB.", metavar="SIZE")] = None,
    epoch_seconds: Annotated[float | None, typer.Option(help="The epoch's time you want.", metavar="S")] = None,
    storage_type: Annotated[
        str, typer.Option("--storage", help=f"FSx for Lustre: {', '.join(storage.TYPES)}.", metavar="TYPE")
    ] = "SCRATCH_2",
    capacity: Annotated[str | None, typer.Option(help="Judge this capacity too: 12TiB.", metavar="SIZE")] = None,
    hosts: Annotated[int, typer.Option(min=1, help="Hosts of the job.")] = 1,
    devices: Annotated[int, typer.Option(min=1, help="Ranks on each host.")] = 1,
    batch_per_device: Annotated[int | None, typer.Option(min=1, help="Samples of a rank in one step.")] = None,
    base_batch: Annotated[int | None, typer.Option(min=1, help="The global batch that --base-lr is for.")] = None,
    base_lr: Annotated[float | None, typer.Option(help="The learning rate that was right for it.")] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="Samples of the dataset.")] = None,
    warmup_epochs: Annotated[float, typer.Option(min=0, help="Epochs of gradual warm-up.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON: bytes, seconds.")] = False,
) -> None:
    """Say how fast a job's storage must be, and which learning rate and warm-up its batch wants."""
    about_batch = [batch_per_device, base_batch, base_lr, samples]
    if dataset is None and all(value is None for value in about_batch):
        raise ShoalError(f"advise: give --dataset and --epoch-seconds, or {_EVERY_BATCH_OPTION}, or all of them")
    advice: dict[str, Any] = {}
    lines: list[str] = []
    with _reckonable():
        if dataset is not None or epoch_seconds is not None or capacity is not None:
            advice["storage"], lines = _storage(dataset, epoch_seconds, storage_type, capacity, hosts)
        if any(value is not None for value in about_batch):
            if batch_per_device is None or base_batch is None or base_lr is None or samples is None:
                raise ShoalError(f"advise: {_EVERY_BATCH_OPTION} are needed together")
            if not 0 < base_lr < math.inf:
                raise ShoalError(f"--base-lr: {base_lr:g}: a number above 0 was expected")
            if not warmup_epochs < math.inf:
                raise ShoalError(f"--warmup-epochs: {warmup_epochs:g}: a number, 0 or more, was expected")
            ranks = hosts * devices
            plan = batch_plan(
                ranks=ranks,
                batch_per_rank=batch_per_device,
                base_batch=base_batch,
                base_lr=base_lr,
                samples=samples,
                warmup_epochs=warmup_epochs,
            )
            advice["batch"] = asdict(plan)
            lines += _batch_lines(plan, ranks, batch_per_device, base_batch, base_lr)
    if as_json:
        sys.stdout.write(json.dumps(advice, indent=2) + "\n")
        return
    for line in lines:
        console.out.print(line, markup=False)


@contextlib.contextmanager
def _reckonable() -> Iterator[None]:
    try:
        yield
    except OverflowError as error:
        raise ShoalError("advise: a number is larger, or a time shorter, than can be reckoned with") from error


def _storage(
    dataset: str | None, epoch_s: float | None, name: str, capacity: str | None, hosts: int
) -> tuple[dict[str, Any], list[str]]:
    if dataset is None or epoch_s is None:
        raise ShoalError("advise: --dataset and --epoch-seconds are needed together")
    if not 0 < epoch_s < math.inf:
        raise ShoalError(f"--epoch-seconds: {epoch_s:g}: a number above 0 was expected")
    size, kind = quantity.parse_bytes("--dataset", dataset), storage.type_of(name)
    plan = storage.fsx_plan(kind, size, epoch_s)
    advice = {"type": name.upper(), "hosts": hosts, **asdict(plan)}
    per_host = plan.need_bytes_s / hosts
    lines = [
        f"need           {_rate(plan.need_bytes_s)}: {quantity.show(size)} in {epoch_s:g} s;"
        f" {_rate(per_host)} ({per_host * 8 / 1e9:.3g} Gbit/s) on each of {hosts} hosts, if each reads its own part",
        f"storage        {name.upper()}: {_rate(kind.unit_bytes_s)} for each 1.2 TiB",
        _file_system_line(plan.from_disk, epoch_s, cached=False),
    ]
    if plan.with_cache.units < plan.from_disk.units:
        lines.append(_file_system_line(plan.with_cache, epoch_s, cached=True))
    if capacity is not None:
        tib = quantity.parse_bytes("--capacity", capacity) / quantity.TIB
        units = storage.valid_units(tib / storage.UNIT_TIB)
        if not math.isclose(units * storage.UNIT_TIB, tib, rel_tol=1e-6):
            raise ShoalError(
                f"--capacity: {capacity!r}: FSx has 1.2 TiB, 2.4 TiB and multiples of 2.4 TiB; the next larger one is"
                f" {units * storage.UNIT_TIB:.1f}TiB"
            )
        given = storage.assess(kind, units, size, epoch_s)
        advice["capacity"] = asdict(given)
        lines.append(_file_system_line(given, epoch_s, cached=True))
    return advice, lines


def _file_system_line(system: storage.FileSystem, epoch_s: float, *, cached: bool) -> str:
    head = f"{f'{system.tib:.1f} TiB':>13}  {_rate(system.bytes_s)}"
    if not cached:
        return f"{head}: every epoch in {epoch_s:g} s from disk alone"
    return (
        f"{head}, {quantity.show(system.cache)} of cache: first epoch {system.first_epoch_s:.0f} s; later ones"
        f" need {_rate(system.later_bytes_s)} from disk: {'enough' if system.suffices else 'not enough'}"
    )


def _batch_lines(plan: BatchPlan, ranks: int, per_rank: int, base_batch: int, base_lr: float) -> list[str]:
    return [
        f"global batch   {plan.global_batch}: {ranks} ranks x {per_rank}; {plan.factor:g} times {base_batch}",
        f"learning rate  {plan.learning_rate:g}: {base_lr:g} x {plan.factor:g}",
        f"warm-up        {plan.warmup_steps} steps from {base_lr:g} to {plan.learning_rate:g}"
        f" ({plan.steps_per_epoch} steps an epoch)"
        if plan.warmup_steps
        else "warm-up        none",
    ]


def _rate(bytes_s: float) -> str:
    return f"{quantity.show(bytes_s)}/s"
