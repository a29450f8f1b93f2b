"""What a Kubernetes cluster must be told beside the job: from the command line to frozen values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from shoal.errors import ShoalError
from shoal.submit.kubernetes import places
from shoal.submit.kubernetes.places import Place
from shoal.submit.portable import Portable

Kind = Literal["Job", "MPIJob", "PyTorchJob", "TrainJob"]
KINDS: tuple[Kind, ...] = get_args(Kind)
_LONGEST_LABEL = 63
_NAME = r"[a-z]([-a-z0-9]*[a-z0-9])?"  # what a Service may be called, RFC 1035
_LABEL_KEY = r"([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?"  # a resource's name has the same form
_LABEL_VALUE = r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?"
_NAMESPACE = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_QUANTITY = r"[0-9]+(\.[0-9]+)?(m|[kMGTPE]|[KMGTPE]i)?"
_OBJECT = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"  # what an account, a secret, a runtime may be called, RFC 1123


@dataclass(frozen=True)
class Options:
    """Where and how the pods run."""

    kind: Kind
    namespace: str
    channels: dict[str, Place]
    output: Place
    checkpoints: Place | None
    limits: dict[str, str]  # resource -> quantity, for each host
    node_selector: dict[str, str]
    service_account: str | None
    pull_secrets: tuple[str, ...]
    runtime: str  # of a TrainJob
    secret: str  # of the job; empty: it has none, or its own
    network_policy: bool  # only its pods reach its pods


def kind_of(text: str) -> Kind:
    """Return a kind by its name.

    Raises:
        ShoalError: there is no such kind.
    """
    for kind in KINDS:
        if kind.lower() == text.lower():
            return kind
    raise ShoalError(f"--kind: {text!r} is not one of {', '.join(KINDS)}")


def channels(given: Mapping[str, str]) -> dict[str, Place]:
    """Return the place of each channel."""
    return {name: places.parse(f"--channel {name}", text) for name, text in given.items()}


def limits(given: Mapping[str, str]) -> dict[str, str]:
    """Return resource limits: `cpu`, `memory`, `nvidia.com/gpu`, ..."""
    for resource, quantity in given.items():
        if not re.fullmatch(_LABEL_KEY, resource, re.ASCII):
            raise ShoalError(
                f"--limit {resource}={quantity}: no resource is called so: cpu, memory, nvidia.com/gpu, ..."
            )
        if not re.fullmatch(_QUANTITY, quantity):
            raise ShoalError(f"--limit {resource}={quantity}: a quantity was expected, such as 8, 500m or 64Gi")
    return dict(given)


def node_selector(given: Mapping[str, str]) -> dict[str, str]:
    """Return the labels that nodes must have."""
    for label, value in given.items():
        if not (re.fullmatch(_LABEL_KEY, label, re.ASCII) and re.fullmatch(_LABEL_VALUE, value, re.ASCII)):
            raise ShoalError(f"--node-selector {label}={value}: is no label: letters, digits, - _ and . were expected")
    return dict(given)


def object_name(option: str, name: str) -> str:
    """Return the name of an object of the cluster, if it can be one."""
    if not re.fullmatch(_OBJECT, name):
        raise ShoalError(f"{option} {name!r}: small letters, digits, - and . were expected, 253 at most")
    return name


def namespace(name: str) -> str:
    """Return the name of a namespace, if it can be one."""
    if not re.fullmatch(_NAMESPACE, name):
        raise ShoalError(f"--namespace {name!r}: small letters, digits and - were expected, 63 at most")
    return name


def check_name(job: Portable, kind: Kind) -> None:
    """Refuse a job name that hosts of this kind cannot be called after."""
    suffix = {
        "Job": f"-{job.hosts - 1}",
        "MPIJob": max("-launcher", f"-worker-{max(0, job.hosts - 2)}", key=len),
        "PyTorchJob": max("-master-0", f"-worker-{max(0, job.hosts - 2)}", key=len),
        "TrainJob": f"-node-0-{job.hosts - 1}",
    }[kind]
    longest = _LONGEST_LABEL - len(suffix)
    if not re.fullmatch(_NAME, job.name) or len(job.name) > longest:
        raise ShoalError(
            f"TrainingJobName: {job.name!r} cannot name a {kind} of {job.hosts} hosts: a small letter first, then small"
            f" letters, digits and -, {longest} characters at most: give another name with --job-name"
        )
