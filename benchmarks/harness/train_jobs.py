"""Jobs for `train`: a folder like /opt/ml, a script that notes when it ran, and what came of it."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from harness.build import UnavailableError
from harness.train_commands import Command

_LIMIT_SECONDS = 300

# Its first statement takes the time; then it asks how much memory the process that started it has used at most.
FIRST_LINE = """\
import time
began = time.monotonic_ns()
import json, os
with open(f"/proc/{os.getppid()}/status") as status:
    peak = next(line for line in status if line.startswith("VmHWM"))
rank = os.environ.get("OMPI_COMM_WORLD_RANK", "0")
with open(f"{os.environ['SM_MODEL_DIR']}/{rank}.json", "w") as file:
    json.dump({"began": began, "peak_kib": int(peak.split()[1]), "ended": time.monotonic_ns()}, file)
"""

# As fast as a script can: the pipe is what is measured. {above} processes stand between it and `train`.
LINES = """\
import json, os, sys, time
line = b"x" * 99 + b"\\n"
block, count = line * 640, {count}
began = time.monotonic_ns()
out = sys.stdout.buffer
for _ in range(count):
    out.write(block)
out.flush()
ended = time.monotonic_ns()
def of(pid, name):
    with open(f"/proc/{{pid}}/status") as status:
        return int(next(line for line in status if line.startswith(name)).split()[1])
train = os.getppid()
for _ in range({above}):
    train = of(train, "PPid:")
with open(f"{{os.environ['SM_MODEL_DIR']}}/{{os.environ.get('RANK', '0')}}.json", "w") as file:
    note = {{"began": began, "ended": ended, "bytes": count * len(block), "peak_kib": of(train, "VmHWM:")}}
    json.dump(note, file)
"""


@dataclass(frozen=True)
class Ran:
    """Times in seconds, memory in KiB."""

    to_first_line: float
    after_last_line: float
    between: float
    whole: float
    peak_kib: int
    written: int


def write_job(base: Path, script: str, hyperparameters: dict[str, str], hosts: list[str], current: str) -> None:
    """What the platform and the user put under /opt/ml."""
    for folder in ("input/config", "code", "model", "output"):
        (base / folder).mkdir(parents=True, exist_ok=True)
    (base / "code" / "train.py").write_text(script)
    config = base / "input" / "config"
    (config / "hyperparameters.json").write_text(json.dumps({"sagemaker_program": "train.py", **hyperparameters}))
    resource = {"current_host": current, "hosts": hosts, "network_interface_name": "eth0" if len(hosts) > 1 else "lo"}
    (config / "resourceconfig.json").write_text(json.dumps(resource))
    (config / "inputdataconfig.json").write_text("{}")


def run_job(command: Command, base: Path, *, with_torch: bool) -> Ran:
    """Run one host's job to its end.

    Raises:
        UnavailableError: it failed.
    """
    for file in [*(base / "model").glob("*.json"), *(base / "output").glob("[sf]*")]:
        file.unlink()
    env = {**command.env(with_torch=with_torch), "SAGEMAKER_BASE_DIR": str(base)}
    with (base / "out").open("wb") as out, (base / "err").open("wb") as err:
        began = time.monotonic_ns()
        try:
            done = subprocess.run(command.argv, env=env, stdout=out, stderr=err, check=False, timeout=_LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"{command.name} did not end in {_LIMIT_SECONDS} s: {last_words(base)}") from None
    if done.returncode != 0:
        raise UnavailableError(f"{command.name} ended with {done.returncode}: {last_words(base)}")
    return read(base, began, time.monotonic_ns())


def read(base: Path, began: int, ended: int) -> Ran:
    """What the ranks of this host noted."""
    notes = [json.loads(file.read_text()) for file in sorted((base / "model").glob("*.json"))]
    if not notes:
        raise UnavailableError(f"no rank has run: {last_words(base)}")
    first, last = max(note["began"] for note in notes), max(note["ended"] for note in notes)
    return Ran(
        to_first_line=(first - began) / 1e9,
        after_last_line=(ended - last) / 1e9,
        between=(last - min(note["began"] for note in notes)) / 1e9,
        whole=(ended - began) / 1e9,
        peak_kib=max(int(note.get("peak_kib", 0)) for note in notes),
        written=sum(int(note.get("bytes", 0)) for note in notes),
    )


def last_words(base: Path) -> str:
    """Its failure file in one line, else the last line of its stderr."""
    failure = base / "output" / "failure"
    if failure.exists():
        return " ".join(failure.read_text(errors="replace").split())
    lines = (base / "err").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
