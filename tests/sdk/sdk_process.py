"""An SDK in a process of its own, with its own interpreter, and how its jobs ended."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).parent / "programs"
OPT_OUT = "SchemaVersion: '1.0'\nSageMaker:\n  PythonSDK:\n    Modules:\n      TelemetryOptOut: true\n"
# No proxy answers there: what an SDK would ask of AWS fails at once, and so a job that passes needed none of it.
NOWHERE = "http://127.0.0.1:9"


Fit = Callable[..., "Ended"]


@dataclass(frozen=True)
class Ended:
    """What a job left: files by name, the SDK's answer, all that was written meanwhile."""

    log: str
    error: str = ""
    value: Any = None
    model: dict[str, str] = field(default_factory=dict)
    output: dict[str, str] = field(default_factory=dict)


class Sdk:
    """One of programs/, running."""

    def __init__(self, python: Path, program: str, folder: Path, **environment: str) -> None:
        config = folder / "config.yaml"
        config.write_text(OPT_OUT)
        settings = {
            "SAGEMAKER_USER_CONFIG_OVERRIDE": str(config),
            "SAGEMAKER_ADMIN_CONFIG_OVERRIDE": str(config),
            "SAGEMAKER_SUPPRESS_V2_WARNING": "1",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_DEFAULT_REGION": "us-east-1",
            "HTTPS_PROXY": NOWHERE,
            "HOME": str(folder),
            **environment,
        }
        clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        ours, theirs = os.pipe()
        self._answers = os.fdopen(ours)
        with (folder / "import.log").open("w") as log:
            self._process = subprocess.Popen(
                [python, PROGRAMS / f"{program}.py", str(theirs)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                cwd=folder,
                env={**clean, **settings},
                pass_fds=[theirs],
            )
        os.close(theirs)
        self._log = folder / "import.log"

    def run(self, job: dict[str, Any], log: Path) -> Ended:
        """Let it run a job; return its answer and what was written to `log`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**job, "log": str(log)}) + "\n")
        self._process.stdin.flush()
        line = self._answers.readline()
        assert line, f"the SDK's process ended with {self._process.wait()}: {self._log.read_text()}"
        answer = json.loads(line)
        error = answer.get("error", "")
        return Ended(f"{log.read_text(errors='replace')}\n{error}", error, answer.get("value"))

    def close(self) -> None:
        self._process.communicate(timeout=30)
        self._answers.close()


def with_archives(ended: Ended, archives: Mapping[str, bytes]) -> Ended:
    """Return `ended` with what model.tar.gz and output.tar.gz hold, if the job came so far."""
    model, output = (
        _unpacked(archives[name]) if name in archives else {} for name in ("model.tar.gz", "output.tar.gz")
    )
    return replace(ended, model=model, output=output)


def _unpacked(archive: bytes) -> dict[str, str]:
    """Return the text of each file of a tar.gz archive, by its path in it."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        found = {member.name: tar.extractfile(member) for member in tar.getmembers() if member.isfile()}
        return {name: file.read().decode(errors="replace") for name, file in found.items() if file is not None}


def ranks(ended: Ended) -> list[dict[str, Any]]:
    """What the ranks of `RANKS` left, in their order."""
    return [json.loads(text) for _, text in sorted(ended.model.items())]
