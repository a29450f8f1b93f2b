"""Runs inside an image and prints what is really in it, as one JSON object: asked of the programs, never of a list."""

import json
import platform
import re
import subprocess
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


def debian() -> dict[str, str]:
    """Return Debian's packages and their versions."""
    lines = output("dpkg-query", "-W", "-f", "${Package} ${Version}\\n").splitlines()
    return dict(line.split(" ", 1) for line in lines)


def measure() -> dict[str, object]:
    """Import, run and ask."""
    import lightning
    import mpi4py
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
        "base": release["ID"] + release["VERSION_ID"].split(".")[0],
        "lightning": lightning.__version__,
        "mpi4py": mpi4py.__version__,
        "openmpi": mpi.group() if mpi else None,
        "smddp": "smddp" in torch.distributed.Backend.backend_list,
        "packages": {dist.metadata["Name"]: dist.version for dist in metadata.distributions()},
        "licenses": {dist.metadata["Name"]: license_of(dist) for dist in metadata.distributions()},
        "debian": debian(),
    }


if __name__ == "__main__":
    print(json.dumps(measure()))  # noqa: T201 - the output is the point
