"""The commands that benchmarks/entrypoint.py compares: this project's `train`, and the existing toolkit's."""

from __future__ import annotations

import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from harness.build import Cache, UnavailableError

_ENTRYPOINT = Path(__file__).resolve().parents[2] / "entrypoint"
_TOOLKIT = ("sagemaker-training==5.1.4", "sagemaker-pytorch-training==3.0.0")
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

OURS, THEIRS = "train", "toolkit"


@dataclass(frozen=True)
class Command:
    """One side of the comparison, in a virtual environment of its own."""

    name: str
    environment: Path
    versions: str
    variables: dict[str, str]

    @property
    def argv(self) -> list[str]:
        return [str(self.environment / "bin" / "train")]

    def env(self, *, with_torch: bool) -> dict[str, str]:
        """What its process gets; torch and mpi4py come from this interpreter's own packages."""
        values = {"PATH": f"{self.environment / 'bin'}:{_PATH}", "HOME": "/root", "LANG": "C.UTF-8", **self.variables}
        if with_torch:
            # Its own first: another `train` may be installed where torch is.
            own = self.environment.glob("lib/python3*/site-packages")
            values["PYTHONPATH"] = os.pathsep.join([*map(str, own), packages()])
            values["PATH"] += f":{Path(sys.executable).parent}"  # last: for torchrun alone
        return values


def packages() -> str:
    """The folder from which this interpreter has torch.

    Raises:
        UnavailableError: it has none.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        raise UnavailableError("this interpreter has no torch: start this with .venv/bin/python")
    return str(Path(found.origin).parents[1])


def commands(cache: Cache) -> list[Command]:
    """Both sides, installed if need be; the toolkit takes about a minute, once.

    Raises:
        UnavailableError: one cannot be installed.
    """
    newest = max(file.stat().st_mtime_ns for file in (_ENTRYPOINT / "src").rglob("*.*") if file.suffix != ".pyc")
    # Its sources' age is part of the requirement, so that another state is another environment.
    ours = cache.environment(f"{os.fspath(_ENTRYPOINT)}", "--no-cache-dir", f"--config-settings=state={newest}")
    theirs = cache.environment("setuptools<81", *_TOOLKIT)
    module = {"SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main"}
    return [
        Command(OURS, ours, "this tree", {}),
        Command(THEIRS, theirs, " ".join(_TOOLKIT).replace("==", " "), module),
    ]
