"""Rules over the job as it was asked for: one host, slow storage, /dev/shm, and the figures of all hosts."""

import json
from typing import Any

import polars as pl

from shoal.advise import quantity, storage
from shoal.report.observed import (
    BUSY,
    CONTAINER_CPU,
    GPU,
    GPU_MEMORY,
    IOWAIT,
    MEMORY,
    READ,
    RECEIVED,
    SENT,
    WRITTEN,
    Observed,
    number,
)
from shoal.report.outcome import Evidence, Outcome
from shoal.report.rules import parameters as p

# The original's names of what is not a percentage of one device.
USAGE = {
    "CPU": BUSY,
    "I/OWait": IOWAIT,
    "GPU": GPU,
    "GPUMemory": GPU_MEMORY,
}
NAMED_USAGE = {
    "CPUMemory": MEMORY,
    "ContainerCPU": CONTAINER_CPU,
    "I/ORead": READ,
    "I/OWrite": WRITTEN,
    "NetworkReceive": RECEIVED,
    "NetworkTransmit": SENT,
}
_SMDDP = "sagemaker_distributed_dataparallel_enabled"
_STORAGE = "SCRATCH_2"


def overall_system_usage(seen: Observed, given: p.NoParameters) -> Outcome:
    """Never fires: max, p99, p95, p50 and min of each metric on each host."""
    frames = [seen.values(dimension).with_columns(Metric=pl.lit(name)) for name, dimension in USAGE.items()]
    frames += [seen.named(name).with_columns(Metric=pl.lit(label)) for label, name in NAMED_USAGE.items()]
    values = pl.concat(frames)
    value = pl.col("Value")
    table = values.group_by("NodeId", "Metric", maintain_order=True).agg(
        max=value.max(),
        p99=value.quantile(0.99, "linear"),
        p95=value.quantile(0.95, "linear"),
        p50=value.quantile(0.5, "linear"),
        min=value.min(),
    )
    order = {node: number for number, node in enumerate(seen.nodes)}
    rows = sorted(table.iter_rows(named=True), key=lambda row: order[row["NodeId"]])
    return Outcome(
        "OverallSystemUsage",
        "what each host used; never fires",
        given.numbers(),
        datapoints=values.height,
        details={"usage": rows},
        why_not="" if rows else "nothing was measured",
    )


def single_host(seen: Observed, given: p.NoParameters) -> Outcome:
    """The job asks for the collective library and has one host: it pays between hosts."""
    about = "smddp on one host"
    if not seen.job:
        return Outcome("SingleHost", about, given.numbers(), why_not="there is no job.json beside the measurements")
    parameters: dict[str, Any] = seen.job.get("HyperParameters") or {}
    wanted = str(_plain(parameters.get(_SMDDP, ""))).lower() == "true"
    resources = seen.job.get("ResourceConfig") or {}
    groups = resources.get("InstanceGroups") or []
    hosts = resources.get("InstanceCount") or sum(group.get("InstanceCount", 0) for group in groups) or len(seen.nodes)
    fired = wanted and hosts == 1
    return Outcome(
        "SingleHost",
        about,
        given.numbers(),
        datapoints=1,
        violations=int(fired),
        triggered=int(fired),
        summary="the job asks for smddp and has one host" if fired else "",
        advice="ResourceConfig.InstanceCount of 2 or more, or plain DDP: smddp works on one host and"
        " pays between hosts",
        evidence=(Evidence(f"InstanceCount {hosts}, {_SMDDP} {parameters.get(_SMDDP)}"),) if fired else (),
    )


def _plain(text: object) -> object:
    """Return a hyperparameter's value: the SDK may have encoded it twice."""
    for _ in range(2):
        try:
            text = json.loads(text) if isinstance(text, str) else text
        except ValueError:
            break
    return text


def storage_throughput(seen: Observed, given: p.StorageThroughput) -> Outcome:
    """Steps wait for data while the hosts read as fast as they can: say what file system would not make them wait."""
    about, numbers = "storage delivers less than the job would read", given.numbers()
    reads = seen.named(READ)
    steps = seen.steps.filter(pl.col("Seconds") > 0)
    if reads.is_empty() or steps.height < given.patience:
        why = (
            "no host measured what it read" if reads.is_empty() else f"fewer than {given.patience:g} steps were marked"
        )
        return Outcome("StorageThroughput", about, numbers, reads.height, why_not=why)
    waiting = number(steps["DataSeconds"].sum()) / number(steps["Seconds"].sum())
    first = number((steps["Timestamp"] - steps["Seconds"]).min())
    during = reads.filter(pl.col("Timestamp").is_between(first, number(steps["Timestamp"].max())))
    rate = sum(number(mean) for mean in during.group_by("NodeId").agg(pl.col("Value").mean())["Value"])
    fired = 100 * waiting > given.wait and rate > given.floor
    need = round(rate / max(1 - waiting, 0.01))
    units = storage.fsx_plan(storage.type_of(_STORAGE), need, 1.0).from_disk
    text = (
        f"all hosts together read {quantity.show(rate)}/s and waited {100 * waiting:.0f} % of their steps for data:"
        f" without waiting they would read {quantity.show(need)}/s"
    )
    return Outcome(
        "StorageThroughput",
        about,
        numbers,
        datapoints=during.height,
        violations=int(fired),
        triggered=int(fired),
        summary=text if fired else "",
        advice=f"provision {quantity.show(need)}/s: FSx for Lustre {_STORAGE} of {units.tib:.1f} TiB gives"
        f" {quantity.show(units.bytes_s)}/s; or read less (cache, compress, crop before storing)",
        evidence=(Evidence(text, began=first, ended=seen.ended),) if fired else (),
        details={"read_bytes_per_second": round(rate), "needed_bytes_per_second": need},
    )


def module_list_in_sequence(seen: Observed, given: p.NoParameters) -> Outcome:
    """Modules of an nn.ModuleList on several ranks run one after another: each output returns to the loop around."""
    rule, about = "ModuleListInSequence", "an nn.ModuleList runs in sequence over ranks"
    if not any(placement["Traced"] for placement in seen.placements):
        why = "no model was divided over ranks by smp" if not seen.placements else "smp did not trace the model"
        return Outcome(rule, about, given.numbers(), why_not=why)
    lists = [one for placement in seen.placements for one in placement["ModuleListsInSequence"]]
    evidence = tuple(
        Evidence(f"{one['Name']}: {one['Modules']} modules on ranks {', '.join(map(str, one['Ranks']))}")
        for one in lists
    )
    names = [str(one["Name"]).rpartition(".")[2] or "layers" for one in lists]
    return Outcome(
        rule,
        about,
        given.numbers(),
        datapoints=len(seen.placements),
        violations=len(lists),
        triggered=len(lists),
        summary=f"{evidence[0].text}: each output goes back to the rank that loops, and from there to the next module"
        if evidence
        else "",
        advice=f"self.{names[0]} = nn.Sequential(*modules) in place of nn.ModuleList(modules), and"
        f" x = self.{names[0]}(x) in place of the loop: then outputs go on from rank to rank (a module with several"
        " inputs takes and returns a tuple)"
        if names
        else "",
        evidence=evidence,
        details={"module_lists": lists},
    )


def small_shared_memory(seen: Observed, given: p.NoParameters) -> Outcome:
    """A log holds what PyTorch says when /dev/shm is full."""
    lines = seen.log_marks.get("SmallSharedMemory", [])
    return Outcome(
        "SmallSharedMemory",
        "loaders ran out of /dev/shm",
        given.numbers(),
        datapoints=1,
        violations=len(lines),
        triggered=int(bool(lines)),
        summary="a log says that shared memory was insufficient" if lines else "",
        advice="more shared memory for the container (docker run --shm-size or --ipc host,"
        " Kubernetes: an emptyDir of medium"
        " Memory at /dev/shm), fewer loader processes, or a smaller prefetch_factor",
        evidence=tuple(Evidence(line.partition(": ")[2], line.partition(": ")[0]) for line in lines),
    )
