"""The jobs of benchmarks/jobs.py, and both ways to run one: `shoal run`, and local mode of SageMaker's Python SDK."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker

from harness.build import SOURCES, Cache, UnavailableError

ROOT = Path(__file__).resolve().parents[2]
HOSTS = 2
LIMIT_SECONDS = 300
_LABEL = "com.docker.compose.project.working_dir"
_NETWORK = "sagemaker-local"

# Each host's part in the model, so that no side is quick because it lost one.
_PLAIN = """\
import os, pathlib
host = os.environ["SM_CURRENT_HOST"].split("-")[1]
pathlib.Path(os.environ["SM_MODEL_DIR"], f"host-{host}").write_text("here")
"""
_TORCH = """\
import os, pathlib, torch, torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp
dist.init_process_group("smddp")
total = torch.ones(1)
dist.all_reduce(total)
host = os.environ["SM_CURRENT_HOST"].split("-")[1]
pathlib.Path(os.environ["SM_MODEL_DIR"], f"host-{host}").write_text("here" if total.item() == 2 else "alone")
dist.barrier()
dist.destroy_process_group()
"""


@dataclass(frozen=True)
class Job:
    """A trivial job of two hosts."""

    name: str
    script: str
    distribution: dict[str, Any] | None


JOBS = (
    Job("plain", _PLAIN, None),
    Job("torchrun", _TORCH, {"torch_distributed": {"enabled": True}}),
    Job("mpi", _TORCH, {"smdistributed": {"dataparallel": {"enabled": True}}}),
)


@dataclass(frozen=True)
class Ran:
    """Seconds of one job: of the whole command, and of `fit` alone where there is one."""

    whole: float
    fit: float | None = None


def by_shoal(job: Job, image: str, folder: Path) -> Ran:
    """Run `shoal run` of this tree in `folder`.

    Raises:
        UnavailableError: the job failed.
    """
    (folder / "job.json").write_text(json.dumps(request(job, image)))
    seconds, _ = _timed([sys.executable, "-m", "shoal", "run", str(folder / "job.json")], job, PYTHONPATH=str(ROOT))
    _require_whole(folder / "runs" / "job" / "output" / "model.tar.gz", job)
    return Ran(seconds)


def by_sdk(job: Job, image: str, folder: Path, python: Path) -> Ran:
    """Run a program that fits the same script with the SDK of the interpreter `python`.

    Raises:
        UnavailableError: the job failed.
    """
    config = folder / "config.yaml"
    config.write_text("SchemaVersion: '1.0'\nSageMaker:\n  PythonSDK:\n    Modules:\n      TelemetryOptOut: true\n")
    (folder / "root").mkdir()
    settings = {
        "root": str(folder / "root"),
        "image_uri": image,
        "instance_count": HOSTS,
        "entry_point": "train.py",
        "source_dir": str(folder / "source"),
        "output_path": f"file://{folder}",
        **({"distribution": job.distribution} if job.distribution else {}),
    }
    environment = {"SAGEMAKER_USER_CONFIG_OVERRIDE": str(config), "SAGEMAKER_SUPPRESS_V2_WARNING": "1"}
    argv = [str(python), str(SOURCES / "sdk_local_mode.py"), json.dumps(settings)]
    try:
        seconds, output = _timed(argv, job, AWS_DEFAULT_REGION="us-east-1", **environment)
    finally:
        _remove_what_it_leaves(folder)
    _require_whole(folder / "model.tar.gz", job)
    return Ran(seconds, json.loads(output.splitlines()[-1])["fit"])


def request(job: Job, image: str) -> dict[str, Any]:
    """Return the job file; `distribution` becomes the hyperparameters that the SDK sends."""
    return {
        "TrainingJobName": "job",
        "RoleArn": "arn:aws:iam::000000000000:role/local",
        "AlgorithmSpecification": {"TrainingImage": image, "TrainingInputMode": "File"},
        "OutputDataConfig": {"S3OutputPath": "file://runs"},
        "ResourceConfig": {"InstanceType": "ml.c5.xlarge", "InstanceCount": HOSTS, "VolumeSizeInGB": 1},
        "StoppingCondition": {"MaxRuntimeInSeconds": LIMIT_SECONDS},
        "HyperParameters": {"sagemaker_program": "train.py", "sagemaker_submit_directory": "file://source"},
        **({"distribution": job.distribution} if job.distribution else {}),
    }


def write_source(job: Job, folder: Path) -> None:
    """Lay out what both sides take."""
    (folder / "source").mkdir(parents=True)
    (folder / "source" / "train.py").write_text(job.script)


def sdk_environment(cache: Cache) -> Path:
    """Return the interpreter of an environment with the SDK that the tests have, made if need be.

    Raises:
        UnavailableError: it cannot be installed.
    """
    lock = ROOT / "requirements" / "sdk2.txt"
    # The lock's content is part of the requirement, so that another one is another environment.
    state = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    return cache.environment("--require-hashes", f"--config-settings=lock={state}", "-r", str(lock)) / "bin" / "python"


@contextmanager
def network_as_it_was() -> Iterator[None]:
    """Remove the network that the SDK makes and leaves, if it was not there before."""
    client = docker.from_env()
    before = client.networks.list(names=[_NETWORK])
    try:
        yield
    finally:
        for network in [] if before else client.networks.list(names=[_NETWORK]):
            with suppress(docker.errors.APIError):  # another job of an SDK is in it
                network.remove()
        client.close()


def _timed(argv: list[str], job: Job, **environment: str) -> tuple[float, str]:
    """Return the seconds from the start of a command to its exit, and what it printed."""
    began = time.perf_counter()
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False, timeout=LIMIT_SECONDS, env={**os.environ, **environment}
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(f"{job.name}: {Path(argv[0]).name}: not done after {LIMIT_SECONDS} s") from None
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        said = (done.stderr + done.stdout).strip().splitlines() or ["nothing said"]
        raise UnavailableError(f"{job.name}: {' '.join(argv[:4])} ended with {done.returncode}: {said[-1]}")
    return seconds, done.stdout


def _require_whole(model: Path, job: Job) -> None:
    with tarfile.open(model) as archive:
        found = sorted(Path(name).name for name in archive.getnames() if "host-" in name)
    if found != [f"host-{number + 1}" for number in range(HOSTS)]:
        raise UnavailableError(f"{job.name}: the model is of {found}, not of all hosts")


def _remove_what_it_leaves(folder: Path) -> None:
    client = docker.from_env()
    for container in client.containers.list(all=True, filters={"label": _LABEL}, ignore_removed=True):
        if container.labels[_LABEL].startswith(f"{folder}/"):
            container.remove(force=True, v=True)
    client.close()


def new_folder(base: Path) -> Path:
    """Return a folder of its own for one job."""
    return base / uuid.uuid4().hex[:8]
