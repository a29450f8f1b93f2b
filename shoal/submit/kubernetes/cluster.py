"""A Kubernetes cluster, through the official client: the only file here that talks to one.

Everything that belongs to a job carries the label `shoal.job`; its parts are owned by the job object, so that the
cluster removes them with it.
"""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from kubernetes.config.config_exception import ConfigException
from urllib3.exceptions import HTTPError
from yaml import YAMLError

from shoal.errors import ShoalError
from shoal.submit.kubernetes.options import KINDS, Kind
from shoal.submit.kubernetes.pod import LABEL

Manifest = dict[str, Any]

_NOT_FOUND = 404
_CONFLICT = 409
_TIMEOUT_S = 60
_LONGEST_SILENCE_S = 28 * 24 * 3600  # a job's longest run
# kind of a part -> as the client's functions call it
_PARTS = {"ConfigMap": "config_map", "Secret": "secret", "NetworkPolicy": "network_policy", "Service": "service"}
# kind -> API group, version, plural, where in the spec it is suspended
_APIS: dict[Kind, tuple[str, str, str, tuple[str, ...]]] = {
    "Job": ("batch", "v1", "jobs", ("suspend",)),
    "MPIJob": ("kubeflow.org", "v2beta1", "mpijobs", ("runPolicy", "suspend")),
    "PyTorchJob": ("kubeflow.org", "v1", "pytorchjobs", ("runPolicy", "suspend")),
    "TrainJob": ("trainer.kubeflow.org", "v1alpha1", "trainjobs", ("suspend",)),
}


def _kubeconfig() -> str:
    # Not left to the client: it looks once, when it is imported.
    return os.environ.get("KUBECONFIG") or str(Path("~/.kube/config").expanduser())


def _connect(context: str | None) -> Any:
    settings = client.Configuration()
    if "KUBECONFIG" not in os.environ and "KUBERNETES_SERVICE_HOST" in os.environ and context is None:
        config.load_incluster_config(settings)
    else:
        config.load_kube_config(_kubeconfig(), context, client_configuration=settings)
    return client.ApiClient(settings)


def default_namespace(context: str | None) -> str:
    """Return the namespace that a context of the kubeconfig names; "default" where there is none."""
    try:
        contexts, active = config.list_kube_config_contexts(_kubeconfig())
    except (ConfigException, OSError, TypeError, YAMLError):  # said when it is needed: Cluster
        return "default"
    chosen = next((each for each in contexts if each["name"] == context), active if context is None else None)
    return str((chosen or {}).get("context", {}).get("namespace") or "default")


class Cluster:
    """One namespace of a cluster."""

    def __init__(self, context: str | None, namespace: str) -> None:
        """Read the kubeconfig, or in a pod its service account's.

        Raises:
            ShoalError: neither is there, or the kubeconfig has no such context.
        """
        self.namespace = namespace
        try:
            api = _connect(context)
        except (ConfigException, OSError, TypeError, YAMLError) as error:
            raise ShoalError(
                f"no Kubernetes cluster is configured: {' '.join(str(error).split())}: set KUBECONFIG, or give another"
                " --context",
                exit_code=3,
            ) from error
        self._core, self._custom = client.CoreV1Api(api), client.CustomObjectsApi(api)
        self._networking = client.NetworkingV1Api(api)

    def create(self, manifests: list[Manifest]) -> None:
        """Create a job: its parts, then itself. If anything is refused, what was created is removed again.

        Raises:
            ShoalError: the cluster refuses it, or cannot be reached.
        """
        created: list[Manifest] = []
        *parts, job = manifests
        try:
            with _sentences(f"creating {job['kind']} {job['metadata']['name']}"):
                for part in parts:
                    self._create_part(part)
                    created.append(part)
                made = self._create_job(job)
        except BaseException:
            for part in created:
                self._delete_part(part)
            raise
        owner = {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": job["metadata"]["name"],
            "uid": made["metadata"]["uid"],
        }
        with _sentences(f"handing the parts of {owner['name']} to it"):
            for part in parts:
                self._own(part, owner)

    def _part(self, verb: str, part: Manifest) -> Callable[..., Any]:
        """Return the client's function that does something with a part of a job."""
        api = self._networking if part["kind"] == "NetworkPolicy" else self._core
        function: Callable[..., Any] = getattr(api, f"{verb}_namespaced_{_PARTS[part['kind']]}")
        return function

    def _create_part(self, part: Manifest) -> None:
        self._part("create", part)(self.namespace, part, field_validation="Strict", _request_timeout=_TIMEOUT_S)

    def _delete_part(self, part: Manifest) -> None:
        with _sentences(f"removing {part['kind']} {part['metadata']['name']}"):
            self._part("delete", part)(part["metadata"]["name"], self.namespace, _request_timeout=_TIMEOUT_S)

    def _own(self, part: Manifest, owner: Manifest) -> None:
        body = {"metadata": {"ownerReferences": [owner]}}
        self._part("patch", part)(part["metadata"]["name"], self.namespace, body, _request_timeout=_TIMEOUT_S)

    def _create_job(self, job: Manifest) -> Manifest:
        group, version, plural, _suspend = _APIS[job["kind"]]
        made: Manifest = self._custom.create_namespaced_custom_object(
            group, version, self.namespace, plural, job, field_validation="Strict", _request_timeout=_TIMEOUT_S
        )
        return made

    def find(self, name: str) -> Manifest:
        """Return the job of a name, of whatever kind.

        Raises:
            ShoalError: there is none.
        """
        with _sentences(f"looking for {name}"):
            for kind in KINDS:
                group, version, plural, _suspend = _APIS[kind]
                try:
                    found: Manifest = self._custom.get_namespaced_custom_object(
                        group, version, self.namespace, plural, name, _request_timeout=_TIMEOUT_S
                    )
                except ApiException as error:
                    if error.status != _NOT_FOUND:  # so is a kind that the cluster does not know
                        raise
                else:
                    return found
        raise ShoalError(f"{name}: there is no such job in namespace {self.namespace}: `shoal submit` makes one")

    def pods(self, name: str) -> list[Any]:
        """Return the pods of a job, in the order of their names."""
        with _sentences(f"listing the pods of {name}"):
            found = self._core.list_namespaced_pod(
                self.namespace, label_selector=f"{LABEL}={name}", _request_timeout=_TIMEOUT_S
            )
        return sorted(found.items, key=lambda pod: str(pod.metadata.name))

    def log(self, pod: str, *, follow: bool) -> Iterator[bytes]:
        """Return what a pod wrote, as it comes; nothing if its container has not started."""
        with _sentences(f"reading the log of {pod}"):
            silence_s = _LONGEST_SILENCE_S if follow else _TIMEOUT_S
            try:
                response = self._core.read_namespaced_pod_log(
                    pod, self.namespace, follow=follow, _preload_content=False, _request_timeout=(_TIMEOUT_S, silence_s)
                )
            except ApiException as error:
                if error.status in (400, _NOT_FOUND):  # waiting to start; gone meanwhile
                    return
                raise
            yield from response.stream()

    def suspend(self, job: Manifest) -> None:
        """Stop the pods of a job, with their grace, and keep the job."""
        group, version, plural, path = _APIS[job["kind"]]
        spec: Manifest = {path[-1]: True}
        for key in reversed(path[:-1]):
            spec = {key: spec}
        name = job["metadata"]["name"]
        with _sentences(f"stopping {name}"):
            self._custom.patch_namespaced_custom_object(
                group, version, self.namespace, plural, name, {"spec": spec}, _request_timeout=_TIMEOUT_S
            )

    def delete(self, job: Manifest) -> None:
        """Remove a job with everything that it owns."""
        group, version, plural, _suspend = _APIS[job["kind"]]
        name = job["metadata"]["name"]
        with _sentences(f"removing {name}"):
            self._custom.delete_namespaced_custom_object(
                group,
                version,
                self.namespace,
                plural,
                name,
                propagation_policy="Background",
                _request_timeout=_TIMEOUT_S,
            )


@contextmanager
def _sentences(doing: str) -> Iterator[None]:
    """Say in one line what the cluster has against something, or that it does not answer."""
    try:
        yield
    except ApiException as error:
        raise ShoalError(f"Kubernetes, {doing}: {_words(error)}", exit_code=_exit_code(error)) from error
    except (HTTPError, OSError) as error:
        raise ShoalError(f"Kubernetes, {doing}: no answer: {error}", exit_code=3) from error


def _words(error: ApiException) -> str:
    try:
        message = str(json.loads(error.body)["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{error.status} {error.reason}"
    message = " ".join(message.split())
    if error.status == _CONFLICT:
        return f"{message}: give another name with --job-name, or remove that job with `shoal stop --remove`"
    if error.status == _NOT_FOUND:
        return f"{message}: is the namespace there, and the operator of this --kind installed?"
    return message


def _exit_code(error: ApiException) -> int:
    return 2 if error.status is not None and 400 <= error.status < 500 else 3
