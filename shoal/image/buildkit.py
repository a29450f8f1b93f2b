"""`docker build` with BuildKit: finding a client that has it, running it, following its progress.

The Docker SDK's own build call is the engine's old builder, which knows neither mounts nor secrets.
"""

import os
import re
import shutil
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from shoal.errors import ShoalError
from shoal.image.children import Children
from shoal.image.progress import Reporter

# `#7 [torch 2/2] RUN ...` announces a step; `#7 CACHED`, `#7 DONE 1.2s` and `#7 ERROR` end it.
_STEP = re.compile(r"^#(\d+) \[([\w-]+) +\d+/\d+\] (.*)$")
_STEP_WIDTH = 72
_WORTH_A_LINE_S = 1.0
_END = re.compile(r"^#(\d+) (CACHED|DONE|ERROR)")
_EXPORT = re.compile(r"^#\d+ exporting (to image|layers)$")
_LAST_LINES = 12
# What clients say of an engine that went away: "unexpected EOF", "rpc error: code = Unavailable desc = ...",
# "Cannot connect to the Docker daemon", "connection reset by peer".
_CONNECTION = re.compile(r"\bEOF\b|\bUnavailable\b|\b[Cc]onnect(ion)?\b")


def find_client(environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of a docker client that can run BuildKit.

    Two clients may be installed, and the first on PATH may be a newer one without its buildx plug-in. In order:
    $DOCKER, any on PATH with a working buildx, any on PATH of version 22 or older, which has BuildKit built in.

    Raises:
        ShoalError: there is none.
    """
    candidates = [environ["DOCKER"]] if environ.get("DOCKER") else list(_on_path("docker", environ.get("PATH", "")))
    for candidate in candidates:
        if _says(candidate, "buildx", "version") is not None:
            return candidate
    for candidate in candidates:
        major = re.match(r"\d+", _says(candidate, "version", "--format", "{{.Client.Version}}") or "")
        if major is not None and int(major.group()) <= 22:
            return candidate
    seen = ", ".join(candidates) or "none on PATH"
    raise ShoalError(
        f"no docker client with BuildKit (looked at: {seen}): install the docker-buildx plug-in or Debian's docker.io, "
        "or name a client in $DOCKER",
        exit_code=3,
    )


class BuildFailedError(ShoalError):
    """A build failed; `tail` has the last lines of the step that did."""

    def __init__(self, message: str, tail: Sequence[str], exit_code: int = 1) -> None:
        super().__init__(message, exit_code=exit_code)
        self.tail = tuple(tail)


def build(arguments: list[str], log: Path, progress: Reporter, children: Children | None = None) -> None:
    """Run `docker build ARGUMENTS`; the whole output goes to `log`.

    `progress` hears of every step that is not in the cache, and is told when one of a second or more is done.

    Raises:
        BuildFailedError: the build failed; the message has the step's cause, or that the engine has ended.
    """
    children = children or Children()
    client = find_client()
    command = [client, "build", "--progress=plain", *arguments]
    follower = _Follower(progress)
    tail: deque[str] = deque(maxlen=200)
    with log.open("w", buffering=1) as stream:  # a line at a time: for those who look while it builds
        process = children.start(
            command,
            env={**os.environ, "DOCKER_BUILDKIT": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        for line in process.stdout:
            stream.write(line)
            tail.append(line.rstrip())
            follower.hear(line)
    if children.wait(process) == 0:
        return
    cause = _cause(list(tail))
    # A step's own cause is no less true where the engine has ended since.
    if _CONNECTION.search(cause) and _says(client, "version") is None:
        raise BuildFailedError(
            f"the Docker engine ended during the build ({cause}; all of it: {log}): start it again (`make engine`); a "
            "second run continues",
            (),
            exit_code=3,
        )
    raise BuildFailedError(f"docker build failed: {cause} (all of it: {log})", _last_lines(list(tail)))


class _Follower:
    """Turns a build's plain output into reports. Of steps side by side, the oldest that still runs is shown."""

    def __init__(self, progress: Reporter) -> None:
        self._progress = progress
        self._running: dict[str, tuple[str, float]] = {}
        self._seen: set[str] = set()

    def hear(self, line: str) -> None:
        if started := _STEP.match(line):
            number, stage, instruction = started.groups()
            if number not in self._seen and not instruction.startswith("FROM"):
                self._running[number] = (f"{stage}: {_short(instruction)}", time.monotonic())
                self._show()
            self._seen.add(number)
        elif (ended := _END.match(line)) and (step := self._running.pop(ended.group(1), None)) is not None:
            seconds = time.monotonic() - step[1]
            if ended.group(2) == "DONE" and seconds >= _WORTH_A_LINE_S:
                self._progress.done(f"{step[0]} ({seconds:.0f} s)")
            self._show()
        elif "exporting" in line and _EXPORT.match(line):
            self._progress.busy("export: layers")

    def _show(self) -> None:
        if self._running:
            self._progress.busy(next(iter(self._running.values()))[0])


def _short(instruction: str) -> str:
    """Return what an instruction runs, mounts left out: `apt-install.sh ca-certificates libgomp1 ...`."""
    words = [word for word in instruction.split() if not word.startswith("--mount") and word not in ("RUN", "\\")]
    text = " ".join(word.rsplit("/", 1)[-1] if word.startswith("/build/") else word for word in words)
    return text if len(text) <= _STEP_WIDTH else text[: _STEP_WIDTH - 4] + " ..."


def _cause(tail: list[str]) -> str:
    """Pick the line that says why: a Python exception, a compiler's, apt's or pip's error, else the last."""
    lines = [re.sub(r"^#\d+ ([\d.]+ )?[\s|+]*", "", line) for line in tail if not _STEP.match(line)]
    for telling in (r"No space left on device", r"\w+Error: ", r"\berror: |^E: |^ERROR: "):
        for group in (_last_lines(tail), lines):
            if found := [line for line in group if re.search(telling, line)]:
                return found[0].strip()
    return (lines[-1:] or ["no output"])[0].strip()


def _last_lines(tail: list[str]) -> list[str]:
    """Return what the failed step said last; nothing where no step failed."""
    failed = next((match.group(1) for line in tail if (match := _END.match(line)) and match.group(2) == "ERROR"), None)
    said = re.compile(rf"#{failed} [\d.]+ (.*)")
    return [match.group(1) for line in tail if (match := said.match(line))][-_LAST_LINES:]


def _on_path(program: str, path: str) -> Iterator[str]:
    for folder in dict.fromkeys(path.split(os.pathsep)):
        if found := shutil.which(program, path=folder):
            yield found


def _says(*command: str) -> str | None:
    """Return a command's output, or None where it cannot be run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
