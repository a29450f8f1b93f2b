"""The verb `shoal top`: asks the containers of a job that runs for their last lines, again and again."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shoal import console, engine
from shoal.errors import ShoalError
from shoal.report.command import require_packages

if TYPE_CHECKING:
    import docker

_OLD_S = 15.0
# The files of the last two minutes, and the end of each rank's. Whatever there is not is no error.
_LAST_LINES = (
    "cd /opt/ml/output/profiler 2>/dev/null || exit 0;"
    " for f in $(ls -d system/incremental/*/*.json 2>/dev/null | tail -n 2) steps/*.jsonl;"
    " do [ ! -f $f ] || { tail -c 60000 $f; echo; }; done"
)


def top(
    run: Annotated[str, typer.Argument(help="The folder of a run, or the job's name.", metavar="RUN")],
    once: Annotated[bool, typer.Option("--once", help="Print the figures once, and end.")] = False,
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between two looks.", metavar="S")] = 2.0,
) -> None:
    """Show what the hosts of a job are doing now: GPUs, cores, memory, network, steps."""
    require_packages("top")
    name = _job_name(run)
    client = engine.connect()
    try:
        if not _hosts(client, name):
            raise ShoalError(f"top: {_why_none(run, name, os.environ.get('DOCKER_HOST') or 'the default socket')}")
        _show(client, name, every, once=once or not console.out.is_terminal)
    finally:
        client.close()


def _job_name(run: str) -> str:
    return str(_description(run).get("TrainingJobName") or Path(run).name)


def _description(run: str) -> dict[str, Any]:
    try:
        content = json.loads(Path(run, "job.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _why_none(run: str, name: str, address: str) -> str:
    """Say why there is nothing to show: the job has ended, its hosts are elsewhere, or nobody knows of it."""
    status = _description(run).get("TrainingJobStatus")
    if status in ("Completed", "Failed", "Stopped"):
        return f"{name} has ended ({status}): `shoal report {run}` says what it did"
    if status is not None:
        return f"{name} is {status}, and the engine at {address} has no host of it (yet): is DOCKER_HOST another one?"
    if Path(run).is_dir():
        return f"{run}: no run's folder (there is no job.json), and no job of that name runs on the engine at {address}"
    return f"no job called {name!r} runs on the engine at {address}, and there is no run's folder {run}"


def _show(client: "docker.DockerClient", name: str, every: float, *, once: bool) -> None:
    if once:
        console.out.print(_table(_hosts(client, name)))
        return
    try:
        with Live(console=console.out, refresh_per_second=2, transient=True) as live:
            while hosts := _hosts(client, name):
                live.update(_table(hosts))
                time.sleep(every)
    except KeyboardInterrupt:  # how it is meant to be left
        return
    console.err.print(f"{name}: its hosts have ended", markup=False)


def _hosts(client: "docker.DockerClient", name: str) -> list[Any]:
    from shoal.job.docker_hosts import JOB_LABEL

    found = client.containers.list(filters={"label": f"{JOB_LABEL}={name}"}, ignore_removed=True)
    prefix = f"{name}-algo-"
    named = [container for container in found if (container.name or "").startswith(prefix)]
    return sorted(named, key=lambda container: int(container.name.removeprefix(prefix)))


def _table(hosts: list[Any]) -> Table:
    from docker.errors import DockerException
    from requests.exceptions import RequestException

    from shoal.report import live

    rows: dict[str, live.Now | None] = {}
    for container in hosts:
        host = "algo-" + container.name.rpartition("-")[2]
        try:
            _code, content = container.exec_run(["sh", "-c", _LAST_LINES], stderr=False)
            rows[host] = live.now(content or b"")
        except (DockerException, RequestException):
            rows[host] = None  # it has just ended
    there = [column for column in live.COLUMNS if any(row and column in row.figures for row in rows.values())]
    table = Table(box=None, pad_edge=False)
    table.add_column("host")
    for column in there:
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("")
    for host, row in rows.items():
        cells = [row.figures.get(column, "") if row else "" for column in there]
        table.add_row(Text(host, "bold"), *cells, _remark(row))
    return table


def _remark(row: Any) -> Text:
    if row is None:
        return Text("has ended", "dim")
    if not row.newest:
        return Text("nothing measured (yet): is SHOAL_PROFILE=0 in the job's Environment?", "yellow")
    age = time.time() - row.sampled
    return Text("no sample for a while: the figures are old", "yellow") if age > _OLD_S else Text("")
