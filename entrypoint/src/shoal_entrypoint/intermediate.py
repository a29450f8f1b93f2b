"""Output that is wanted before the job ends: /opt/ml/output/intermediate, uploaded while the script runs."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Mapping
from urllib.parse import urlsplit

from shoal_entrypoint.configuration import Job
from shoal_entrypoint.outcome import JobError
from shoal_entrypoint.paths import Paths
from shoal_entrypoint.supervise import Supervisor

__all__ = ["start"]


def start(target: str, job: Job, paths: Paths, supervisor: Supervisor, environ: Mapping[str, str]) -> None:
    """Make the folder, and start what uploads it to `target`, the job's `sagemaker_s3_output`."""
    url = urlsplit(target)
    if url.scheme not in ("s3", "file"):
        raise JobError(f"sagemaker_s3_output: {target}: s3://bucket/prefix or file:// was expected")
    paths.intermediate.mkdir(parents=True, exist_ok=True)
    if url.scheme == "file":
        return
    if not url.netloc:
        raise JobError(f"sagemaker_s3_output: {target}: the bucket is missing")
    if importlib.util.find_spec("boto3") is None:
        raise JobError(f"sagemaker_s3_output: {target}: needs boto3 in the image: pip install boto3")
    name = job.job_name or job.named
    prefix = "/".join(part for part in (url.path.strip("/"), name, "output/intermediate") if part)
    script = str(Path(__file__).resolve().parent / "uploader.py")
    region = environ.get("AWS_REGION") or job.region
    argv = [sys.executable, "-I", script, str(paths.intermediate), url.netloc, prefix, region]
    supervisor.serve(argv, "/", os.environ)
