"""Which lines begin with `[host:rank]`: those of ranks that share a stream, unless the user says otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Mapping

from shoal_entrypoint.launchers.settings import MPI_FAMILY, PROCESS, TORCHRUN
from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import JobError
from shoal_entrypoint.plan import Plan
from shoal_entrypoint.relay import Filter, Output
from shoal_entrypoint.tagging import Lines, Tagger

__all__ = ["Tagged", "output", "wanted"]

VARIABLE = "SHOAL_LOG_PREFIX"
# Options that make mpirun write other marks than the ones that are read here.
_OTHER_MARKS = ("timestamp-output", "xml", "output-proctable")


def wanted(environ: Mapping[str, str]) -> bool | None:
    """Whether the user has switched prefixes on or off; None: only where several ranks share a stream."""
    value = environ.get(VARIABLE, "")
    if value not in ("", "0", "1"):
        raise JobError(
            f"{VARIABLE}: {value!r}: 1 ([host:rank] before every line), 0 (before none) or nothing (where several ranks"
            " share a stream) was expected"
        )
    return {"": None, "0": False, "1": True}[value]


class Tagged(Output):
    """Of a command that is one rank. Those whose streams are the same share `lines`."""

    def __init__(self, tag: str, lines: Lines) -> None:
        self._tag = tag
        self._lines = lines

    def through(self, target: int) -> Filter:
        """Its lines with the tag before each."""
        return Tagger(self._tag, self._lines[target])


class _Mpi(Output):
    """Of mpirun, which marks the lines of ranks already."""

    def __init__(self, tag: Callable[[int], str] | None) -> None:
        self._tag = tag
        self._lines = Lines()

    def through(self, target: int) -> Filter:
        """Our tags in place of its marks, or none."""
        from shoal_entrypoint.mpi_tags import RankTags, Untag

        return Untag() if self._tag is None else RankTags(self._tag, self._lines[target])


def output(work: Plan, is_command: bool, make_run: Callable[[], Path], asked: bool | None) -> Output:
    """How the output of the job's command on this host is passed on."""
    host = work.env["SM_CURRENT_HOST"]
    if asked is False:
        return Output()
    if work.launcher == PROCESS and asked:
        return Tagged(f"[{host}:{work.env['RANK']}] ", Lines())
    if work.launcher in MPI_FAMILY and not any(word.lstrip("-") in _OTHER_MARKS for word in work.argv):
        several = asked or work.argv[work.argv.index("-np") + 1] != "1"
        return _Mpi((lambda rank: f"[{work.host_of(rank)}:{rank}] ") if several else None)
    if work.launcher == TORCHRUN and (asked or _several(work)):
        return _torchrun(work, host, is_command, make_run, bool(asked))
    return Output()


def _several(work: Plan) -> bool:
    """Whether torchrun starts several ranks here. Who gives it the number once more gives another one."""
    given = sum(word.startswith(("--nproc_per_node", "--nproc-per-node")) for word in work.argv)
    return work.processes_per_host > 1 or given > 1


def _torchrun(work: Plan, host: str, is_command: bool, make_run: Callable[[], Path], asked: bool) -> Output:
    if is_command:
        if asked:
            log(f"{VARIABLE}: torchrun --no-python gives a command's ranks one stream: their lines have no prefix")
        return Output()
    from shoal_entrypoint.rank_pipes import RankPipes

    try:
        pipes = RankPipes(make_run(), host)
    except (JobError, OSError) as error:
        log(f"the lines of ranks have no prefix: {error}")
        return Output()
    work.env.update(pipes.environment(work.env))
    return pipes
