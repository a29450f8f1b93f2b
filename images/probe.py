"""Runs inside an image and prints what is really in it, as one JSON object: asked of the programs, never of a list."""

from __future__ import annotations  # rows have Python 3.8 and 3.9 too

import gc
import json
import os
import platform
import re
import subprocess
import sys
from importlib import metadata


def output(*command: str) -> str:
    """Return what a program says of itself."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def os_release() -> dict[str, str]:
    """Return /etc/os-release as a mapping."""
    with open("/etc/os-release") as lines:  # noqa: PTH123
        pairs = (line.strip().split("=", 1) for line in lines if "=" in line)
        return {key: value.strip('"') for key, value in pairs}


def license_of(dist: metadata.Distribution) -> str | None:
    """Return what a package says of its licence: an SPDX expression, else classifiers, else a text's first line."""
    expression = dist.metadata.get("License-Expression")
    if expression:
        return str(expression)
    classifiers = [
        line.rpartition(" :: ")[2] for line in dist.metadata.get_all("Classifier", []) if line.startswith("License :: ")
    ]
    text = (dist.metadata.get("License") or "").strip()
    return "; ".join(classifiers) or (text.splitlines()[0] if text else None)


def first_version(prefix: str) -> str | None:
    """Return the version of the first package whose name begins so."""
    found = [dist.version for dist in metadata.distributions() if dist.metadata["Name"].startswith(prefix)]
    return found[0] if found else None


def smp() -> str | None:
    """Return the version of smdistributed.modelparallel; None where there is none, or its import fails."""
    try:
        import smdistributed.modelparallel.torch  # noqa: F401

        return metadata.version("shoal-smp")
    except (ImportError, metadata.PackageNotFoundError):
        return None


def debian() -> dict[str, str]:
    """Return Debian's packages and their versions."""
    lines = output("dpkg-query", "-W", "-f", "${Package} ${Version}\\n").splitlines()
    return dict(line.split(" ", 1) for line in lines)


def debian_licenses(packages: dict[str, str]) -> dict[str, str]:
    """Return the licences named in each package's copyright file, where that is written for machines (DEP 5)."""
    found = {}
    for package in packages:
        try:
            with open(f"/usr/share/doc/{package}/copyright", errors="replace") as lines:  # noqa: PTH123
                named = [line.partition(":")[2].strip() for line in lines if line.startswith("License:")]
        except OSError:
            continue
        if licenses := sorted({name for name in named if name}):
            found[package] = "; ".join(licenses)
    return found


def measure() -> dict[str, object]:
    """Import, run and ask."""
    import mpi4py
    import pytorch_lightning
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 - registers the back end
    import torch

    release = os_release()
    mpi = re.search(r"\d+\.\d+\.\d+", output("mpirun", "--version"))
    return {
        "torch": torch.__version__.split("+")[0],
        "cuda": torch.version.cuda,
        "device": "gpu" if torch.version.cuda else "cpu",
        "python": ".".join(platform.python_version_tuple()[:2]),
        "python_full": platform.python_version(),
        "cudnn": first_version("nvidia-cudnn-cu"),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None,
        "base": release["ID"] + release["VERSION_ID"],
        "lightning": pytorch_lightning.__version__,
        "mpi4py": mpi4py.__version__,
        "openmpi": mpi.group() if mpi else None,
        "smddp": "smddp" in torch.distributed.Backend.backend_list,
        "smp": smp(),
        "packages": {dist.metadata["Name"]: dist.version for dist in metadata.distributions()},
        "licenses": {dist.metadata["Name"]: license_of(dist) for dist in metadata.distributions()},
        "debian": (packages := debian()),
        "debian_licenses": debian_licenses(packages),
    }


if __name__ == "__main__":
    # Somebody waits for a build: no collections while packages are imported, and none of what Python does at the end of
    # a process that has imported torch. That is half a second.
    gc.disable()
    print(json.dumps(measure()))  # noqa: T201 - the output is the point
    sys.stdout.flush()
    os._exit(0)
