"""What keeps strangers out of a job: a secret that only its hosts know, and a network that only they reach."""

from typing import Any

from shoal.submit.kubernetes.options import Options
from shoal.submit.kubernetes.pod import labels
from shoal.submit.portable import JOB_SECRET, Portable

_KEY = "secret"


def secret(job: Portable, options: Options) -> dict[str, Any]:
    """Return the Secret with the job's secret."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": _metadata(job, options),
        "type": "Opaque",
        "immutable": True,
        "stringData": {_KEY: options.secret},
    }


def secret_variable(job: Portable) -> dict[str, Any]:
    """Return the variable in which `train` finds it: unlike a file, any user that the image names can read it."""
    return {"name": JOB_SECRET, "valueFrom": {"secretKeyRef": {"name": job.name, "key": _KEY}}}


def network_policy(job: Portable, options: Options) -> dict[str, Any]:
    """Return the policy that lets only pods of the job reach pods of the job. What they reach themselves stays open."""
    own = {"matchLabels": labels(job)}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(job, options),
        "spec": {"podSelector": own, "policyTypes": ["Ingress"], "ingress": [{"from": [{"podSelector": own}]}]},
    }


def _metadata(job: Portable, options: Options) -> dict[str, Any]:
    return {"name": job.name, "namespace": options.namespace, "labels": labels(job)}
