"""Measured == declared == tag, or the build fails: asks the built image what is in it and compares."""

import json
from pathlib import Path
from typing import Any

import docker
from docker.errors import ContainerError

from shoal.errors import ShoalError
from shoal.image.versions import Row

DECLARED = ("torch", "device", "python", "base", "lightning", "mpi4py", "openmpi")


def measure(client: docker.DockerClient, image: str, root: Path) -> dict[str, Any]:
    """Run images/probe.py in `image` and return what it found.

    Raises:
        ShoalError: something the image should have cannot be imported or run.
    """
    probe = (root / "images" / "probe.py").read_text()
    try:
        output = client.containers.run(image, ["python", "-c", probe], remove=True, network_disabled=True)
    except ContainerError as error:
        said = error.stderr if isinstance(error.stderr, str) else (error.stderr or b"").decode(errors="replace")
        last = (said.strip() or "no output").splitlines()[-1]
        raise ShoalError(f"{image}: cannot be measured: {last}", exit_code=1) from error
    measured: dict[str, Any] = json.loads(output)
    return measured


def differences(row: Row, measured: dict[str, Any]) -> list[str]:
    """Return one line for each declared value that the image does not have."""
    lines = [
        f"{key}: declared {getattr(row, key)}, measured {measured[key]}"
        for key in DECLARED
        if str(getattr(row, key)) != str(measured[key])
    ]
    return lines if measured["smddp"] else [*lines, "smddp: not registered with torch.distributed"]
