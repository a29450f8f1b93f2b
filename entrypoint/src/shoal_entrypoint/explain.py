"""Why a command failed, for the failure file: the most telling line first, because most users see 1024 characters."""

from __future__ import annotations

import re
from typing import Callable, Iterable, Mapping

from shoal_entrypoint.capture import Capture, RankCapture, failing_rank, torchrun_cause

__all__ = ["explain", "shorten"]

_LAST_LINES = 20
# What Python says, below the line that it cannot read, without the word "Traceback".
_UNREADABLE = re.compile(r"(Syntax|Indentation|Tab)Error: ")
# Frames between the interpreter and the user's script, and the code lines that Python prints below them.
_OUR_FRAMES = ('File "<frozen runpy>"', "/mpi4py/__main__.py", "/mpi4py/run.py")
# What ranks end with because another one is gone: as smddp, gloo, NCCL and torch's store say it, not as users' own
# connections do.
_EFFECT = re.compile(
    r"smddp: (reported by rank|.* closed its connection \()"
    r"|gloo/transport.*(Connection (closed|reset) by peer|Broken pipe)"
    r"|remote process exited or there was a network error|Error: failed to recv, got 0 bytes",
    re.IGNORECASE,
)
_NAMED = re.compile(r"\brank (\d+) (?:\(\d+ in its group\) )?on \S+ (?:\(\S+\) )?closed its connection")
# Nor is what the end of a job does to those that are left.
_ENDED = re.compile(r"KeyboardInterrupt|SystemExit|is killed by signal")
# torch's own log lines: E1120 14:22:28.000000 77 torch/...
_TORCH_LOG = re.compile(r"[IWE]\d{4} \d\d:\d\d:\d\d")


def explain(
    stdout: Capture,
    stderr: Capture,
    host_of: Callable[[int], str] | None,
    here: str | None = None,
    ranks: Mapping[int, RankCapture] | None = None,
) -> str:
    """The message about a failed command; `host_of` tells where a rank ran, for commands that start ranks.

    `here` says which rank it was, for commands that are one. `ranks` holds what did not come by the command's streams.
    """
    cause = torchrun_cause(stderr.tail()) if host_of else None
    blamed = _blamed(ranks or {}, cause[0] if cause else None)
    if host_of and blamed:
        return _rank(blamed, f"rank {blamed.rank} on {host_of(blamed.rank)}")
    if host_of and cause:
        return _torchrun(stderr, cause[0], f"rank {cause[0]} on {host_of(cause[0])}")
    rank = failing_rank(stderr.tail()) if host_of else None
    traceback = stderr.traceback(rank) or stdout.traceback(rank)
    if traceback is None and rank is None:
        rank = stderr.first_rank()
        traceback = stderr.traceback(rank)
    if host_of and traceback is not None:
        rank, traceback = _cause(stderr.last_words(), rank, traceback)
    where = [here] if here else [] if rank is None or host_of is None else [f"rank {rank} on {host_of(rank)}"]
    if traceback is not None:
        return "\n".join([_exception(traceback), *where, shorten(traceback)])
    # Shell scripts often say what is wrong on stdout; it counts only where stderr is silent.
    streams = ((stderr, rank), (stderr, None), (stdout, rank))
    lines = next((said for stream, one in streams for said in [stream.rank_lines(one, _LAST_LINES)] if said), [])
    named = [lines[-1]] if len(lines) > 1 and _UNREADABLE.match(lines[-1]) else []
    return "\n".join([*named, *where, *lines])


def _blamed(ranks: Mapping[int, RankCapture], cause: int | None) -> RankCapture | None:
    """The rank that failed; where torchrun has not named it, one that has a traceback."""
    if cause is None:
        blamed = next((one for one in ranks.values() if one.traceback() is not None), None)
    else:
        blamed = next((one for one in ranks.values() if one.rank == cause), None)
    traceback = blamed.traceback() if blamed else None
    if blamed is None or traceback is None:
        return blamed
    ended = ((one.rank, text) for one in ranks.values() for text in [one.last_words()] if text is not None)
    rank, _ = _cause(ended, blamed.rank, traceback)
    return next(one for one in ranks.values() if one.rank == rank)


def _cause(ended: Iterable[tuple[int | None, str]], blamed: int | None, traceback: str) -> tuple[int | None, str]:
    """Launchers blame the rank that they saw ending first. If that was another's doing: the other, and its traceback.

    `ended`: the ranks whose last words were a traceback. If the blamed one's error says which rank is gone, only that
    one may be the cause; else the first whose exception is not an effect, too.
    """
    effect = _exception(traceback)
    if _EFFECT.search(effect):
        named = _NAMED.search(effect)
        for rank, text in ended:
            said = _exception(text)
            if rank is None or _EFFECT.search(said) or _ENDED.search(said) or (named and rank != int(named[1])):
                continue
            return rank, text
    return blamed, traceback


def _rank(said: RankCapture, where: str) -> str:
    traceback = said.traceback()
    if traceback is not None:
        return "\n".join([_exception(traceback), where, shorten(traceback)])
    return "\n".join([where, *said.lines(_LAST_LINES)])


def _torchrun(stderr: Capture, rank: int, where: str) -> str:
    """torchrun ends with a traceback of its own, below what its ranks said."""
    traceback = stderr.traceback(rank) or stderr.earlier_traceback(None)
    if traceback is not None:
        return "\n".join([_exception(traceback), where, shorten(traceback)])
    said = stderr.tail().partition(b"Traceback (most recent call last)")[0].decode("utf-8", "backslashreplace")
    lines = [line for line in said.splitlines() if line.strip() and not _TORCH_LOG.match(line)]
    return "\n".join([where, *lines[-_LAST_LINES:]])


def shorten(traceback: str) -> str:
    """Leave out the frames above the user's script."""
    kept: list[str] = []
    ours = False
    for line in traceback.splitlines():
        if line.startswith("  File "):
            ours = any(frame in line for frame in _OUR_FRAMES)
        elif not line.startswith("    "):
            ours = False
        if not ours:
            kept.append(line)
    return "\n".join(kept)


def _exception(traceback: str) -> str:
    """The exception's own line: the first one after the frames of the last traceback in a chain."""
    lines = traceback.splitlines()
    starts = [index for index, line in enumerate(lines) if line.startswith("Traceback")]
    after = lines[(starts[-1] if starts else 0) + 1 :]
    return next((line for line in after if line and not line.startswith((" ", "\t"))), lines[-1])
