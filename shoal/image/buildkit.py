"""`docker build` with BuildKit: finding a client that has it, running it, following its progress.

The Docker SDK's own build call is the engine's old builder, which knows neither mounts nor secrets.
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from shoal.errors import ShoalError
from shoal.image.progress import Progress

# `#7 [torch 2/2] RUN ...` announces a step; `#7 CACHED`, `#7 DONE 1.2s` and `#7 ERROR` end it.
_STEP = re.compile(r"^#(\d+) \[([\w-]+) +\d+/\d+\] (.*)$")
_STEP_WIDTH = 72
_WORTH_A_LINE_S = 1.0
_END = re.compile(r"^#(\d+) (CACHED|DONE|ERROR)")


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


def build(arguments: list[str], log: Path, progress: Progress) -> None:
    """Run `docker build ARGUMENTS`; the whole output goes to `log`.

    `progress` hears of every step that is not in the cache, and is told when one of a second or more is done.

    Raises:
        ShoalError: the build failed; the message has the step and the last words of its output.
    """
    command = [find_client(), "build", "--progress=plain", *arguments]
    environment = {**os.environ, "DOCKER_BUILDKIT": "1"}
    steps: dict[str, tuple[str, float]] = {}
    tail: list[str] = []
    with log.open("w") as stream:
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        assert process.stdout is not None
        for line in process.stdout:
            stream.write(line)
            tail = [*tail[-200:], line.rstrip()]
            _follow(line, steps, progress)
    if process.wait() != 0:
        raise ShoalError(f"docker build failed: {_cause(tail)} (all of it: {log})", exit_code=1)


def _follow(line: str, steps: dict[str, tuple[str, float]], progress: Progress) -> None:
    if started := _STEP.match(line):
        number, stage, instruction = started.groups()
        if number not in steps and not instruction.startswith("FROM"):
            steps[number] = (f"{stage}: {_short(instruction)}", time.monotonic())
            progress.busy(steps[number][0])
    elif ended := _END.match(line):
        step = steps.get(ended.group(1))
        if step is not None and ended.group(2) == "DONE":
            seconds = time.monotonic() - step[1]
            if seconds >= _WORTH_A_LINE_S:
                progress.done(f"{step[0]} ({seconds:.0f} s)")


def _short(instruction: str) -> str:
    """Return what an instruction runs, mounts left out: `apt-install.sh ca-certificates libgomp1 ...`."""
    words = [word for word in instruction.split() if not word.startswith("--mount") and word not in ("RUN", "\\")]
    text = " ".join(word.rsplit("/", 1)[-1] if word.startswith("/build/") else word for word in words)
    return text if len(text) <= _STEP_WIDTH else text[: _STEP_WIDTH - 4] + " ..."


def _cause(tail: list[str]) -> str:
    """Pick the line that says why: a Python exception, a compiler's, apt's or pip's error, else the last."""
    lines = [re.sub(r"^#\d+ ([\d.]+ )?[\s|+]*", "", line) for line in tail]
    for telling in (r"\w+Error: ", r"\berror: |^E: |^ERROR: "):
        if found := [line for line in lines if re.search(telling, line)]:
            return found[0].strip()
    return (lines[-1:] or ["no output"])[0].strip()


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
