"""The pod that every host of a job is: one container that sees `/opt/ml` as on SageMaker. Pure functions."""

import base64
import io
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError
from shoal.job.plan import ML
from shoal.submit.kubernetes.options import Options
from shoal.submit.kubernetes.places import Volumes
from shoal.submit.portable import Portable
from shoal.submit.source import ARCHIVE, pack

LABEL = "shoal.job"
_STOP_GRACE_S = 120  # as on SageMaker; `train` gives the script 110 of them
_FILES = "/etc/shoal"  # where the ConfigMap's archive is seen
_LARGEST_CONFIG_MAP = 1 << 20  # Kubernetes' own limit, of keys and values together


def labels(job: Portable) -> dict[str, str]:
    """Return the labels of everything that belongs to a job."""
    return {LABEL: job.name}


def config_map(job: Portable, options: Options) -> dict[str, Any]:
    """Return the ConfigMap with the job's files, and the folder with its script if that is on this machine.

    Raises:
        ShoalError: they are larger than Kubernetes lets a ConfigMap be.
    """
    archive = _archive(job.code) if job.code is not None else b""
    data = job.config(f"{_FILES}/{ARCHIVE}")
    size = len(archive) + sum(len(name) + len(text.encode()) for name, text in data.items())
    if size > _LARGEST_CONFIG_MAP:
        raise ShoalError(
            f"{job.code}: packed, the job's files are {size} bytes, and Kubernetes takes {_LARGEST_CONFIG_MAP}: put the"
            " folder into the image or a channel, or upload it and give sagemaker_submit_directory its s3:// address"
        )
    body: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": job.name, "namespace": options.namespace, "labels": labels(job)},
        "data": data,
    }
    if archive:
        body["binaryData"] = {ARCHIVE: base64.b64encode(archive).decode()}
    return body


def _archive(folder: Path) -> bytes:
    buffer = io.BytesIO()
    pack(folder, buffer)
    return buffer.getvalue()


def volumes(job: Portable, options: Options) -> Volumes:
    """Return the volumes of a host and where its container sees them."""
    found = Volumes()
    config = f"{ML}/input/config"
    # Writable, so that `train` can add resourceconfig.json; the ConfigMap's own mount is read-only.
    found.add({"name": "config", "emptyDir": {}}, mountPath=config)
    files = {"name": "job", "configMap": {"name": job.name}}
    for name in job.config(""):
        found.add(files, mountPath=f"{config}/{name}", subPath=name, readOnly=True)
    if job.code is not None:
        found.add(files, mountPath=_FILES, readOnly=True)
    # Loader workers and collectives share memory; a pod has 64 MB of it by default.
    found.add({"name": "shm", "emptyDir": {"medium": "Memory"}}, mountPath="/dev/shm")
    for name, place in options.channels.items():
        found.mount(place, f"{ML}/input/data/{name}", readOnly=True)
    found.mount(options.output, f"{ML}/model", job.name, "model")
    found.mount(options.output, f"{ML}/output/data", job.name, "output", "$(SHOAL_POD)", path_key="subPathExpr")
    if options.checkpoints is not None:
        found.mount(options.checkpoints, job.checkpoints)
    return found


def environment(job: Portable, options: Options, *more: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the variables of a host."""
    values: list[dict[str, Any]] = [{"name": name, "value": literal(text)} for name, text in job.environment.items()]
    values.append({"name": "SHOAL_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}})
    if options.kind == "Job":
        values.append({"name": "SHOAL_HOST_COUNT", "value": str(job.hosts)})
    return [*values, *more]


def literal(text: str) -> str:
    """Return a text in which Kubernetes finds no `$(NAME)` of its own to replace."""
    return text.replace("$", "$$")


def command(job: Portable) -> dict[str, list[str]]:
    """Return what is started, where it is not the image's own."""
    words = {"command": job.entrypoint, "args": job.arguments}
    return {key: [literal(word) for word in value] for key, value in words.items() if value}


def container(job: Portable, options: Options, name: str, env: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the one container of a host."""
    body: dict[str, Any] = {"name": name, "image": job.image, **command(job), "env": env}
    if options.limits:
        body["resources"] = {"limits": options.limits}
    body["volumeMounts"] = volumes(job, options).mounts
    # The pod's status then says why the host failed, as FailureReason does.
    body["terminationMessagePath"] = f"{ML}/output/failure"
    body["terminationMessagePolicy"] = "FallbackToLogsOnError"
    return body


def placement(options: Options) -> dict[str, Any]:
    """Return what a pod's spec says about where and as whom it runs."""
    body: dict[str, Any] = {"terminationGracePeriodSeconds": _STOP_GRACE_S}
    if options.node_selector:
        body["nodeSelector"] = options.node_selector
    if options.service_account is not None:
        body["serviceAccountName"] = options.service_account
    if options.pull_secrets:
        body["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]
    return body


def template(job: Portable, options: Options, name: str, env: list[dict[str, Any]], **spec: Any) -> dict[str, Any]:
    """Return the template of a host's pod."""
    return {
        "metadata": {"labels": labels(job)},
        "spec": {
            **spec,
            **placement(options),
            "containers": [container(job, options, name, env)],
            "volumes": volumes(job, options).volumes,
        },
    }
