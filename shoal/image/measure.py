"""Measured == declared == tag, or the build fails: asks the built image what is in it and compares."""

import hashlib
import json
from pathlib import Path
from typing import Any

import docker

from shoal.errors import ShoalError
from shoal.image.versions import Row

DECLARED = ("torch", "device", "python", "base", "lightning", "mpi4py", "openmpi", "cuda")
# The publisher of torch chooses these: compared where the row says them, measured everywhere.
DECLARED_IF_SAID = ("cudnn", "nccl")


def measure(client: docker.DockerClient, image: str, root: Path) -> dict[str, Any]:
    """Run images/probe.py in `image` and return what it found.

    Raises:
        ShoalError: something the image should have cannot be imported or run.
    """
    return ask(client, image, (root / "images" / "probe.py").read_text())


def probe_hash(root: Path) -> str:
    """Return what tells one probe from another."""
    return hashlib.sha256((root / "images" / "probe.py").read_bytes()).hexdigest()[:12]


def ask(client: docker.DockerClient, image: str, probe: str) -> dict[str, Any]:
    """Run a Python program in `image`, without a network, and return the JSON object it prints.

    Raises:
        ShoalError: it fails.
    """
    # Not the SDK's own waiting: logs that are followed can lack what a container said in its last moment.
    container = client.containers.run(image, ["python", "-c", probe], detach=True, network_disabled=True)
    try:
        code = container.wait()["StatusCode"]
        said = container.logs(stdout=code == 0, stderr=code != 0).decode(errors="replace")
    finally:
        container.remove(force=True)
    if code != 0:
        last = (said.strip() or "no output").splitlines()[-1]
        raise ShoalError(f"{image}: cannot be measured: {last}", exit_code=1)
    answer: dict[str, Any] = json.loads(said)
    return answer


def differences(row: Row, measured: dict[str, Any]) -> list[str]:
    """Return one line for each declared value that the image does not have."""
    said = [key for key in DECLARED_IF_SAID if getattr(row, key) is not None]
    lines = [
        f"{key}: declared {getattr(row, key)}, measured {measured[key]}"
        for key in (*DECLARED, *said)
        if str(getattr(row, key)) != str(measured[key])
    ]
    if not measured["smddp"]:
        lines.append("smddp: not registered with torch.distributed")
    if row.smp != (measured["smp"] is not None):
        lines.append(f"smp: declared {row.smp}, measured {measured['smp'] or 'nothing that can be imported'}")
    return lines


def over_budget(name: str, size_bytes: int, size_mb: int) -> str | None:
    """Return why an image of `size_bytes` may not be tagged; None when it may. The budget has 5% of tolerance."""
    limit = size_mb * 1_050_000
    if size_bytes <= limit:
        return None
    return (
        f"{name}: {size_bytes / 1e6:.0f} MB, more than its budget of {size_mb} MB + 5%: `shoal size {name}` shows where"
        f" the bytes are; if they are worth it, raise rows.{name}.size_mb in versions.yaml"
    )
