"""`--to kubernetes`: the verbs, on manifests and a cluster."""

import re
import secrets
from functools import partial
from typing import Any

import yaml

from shoal.errors import ShoalError
from shoal.job import spec
from shoal.submit import logs, portable
from shoal.submit.kubernetes import options as options_
from shoal.submit.kubernetes import places
from shoal.submit.kubernetes.kinds import manifests
from shoal.submit.kubernetes.options import Options
from shoal.submit.state import JobState
from shoal.submit.target import Submission

_NO_TEXT = re.compile(r"[-+]?\.?[0-9]|[yYnN]$")
_KEPT = "it stays in the cluster until `shoal stop --remove`"


class _PlainDumper(yaml.SafeDumper):
    """Writes what is there twice twice: a reader of the manifest should not have to look up anchors."""

    def ignore_aliases(self, _data: object) -> bool:
        return True

    def text(self, data: str) -> yaml.ScalarNode:
        """Write text so that it is text to kubectl as well, whose YAML has more numbers (`1e-3`) and booleans (`y`)."""
        return self.represent_scalar("tag:yaml.org,2002:str", data, style="'" if _NO_TEXT.match(data) else None)


_PlainDumper.add_representer(str, _PlainDumper.text)


class Kubernetes:
    """A namespace of the cluster that the kubeconfig, or one of its contexts, names."""

    def __init__(self, context: str | None, namespace: str | None) -> None:
        self._context, self._namespace = context, namespace

    @property
    def _named(self) -> str:
        if self._namespace is not None:
            return options_.namespace(self._namespace)
        # Imported here, as below: the client takes half a second, and --dry-run with --namespace needs none of it.
        from shoal.submit.kubernetes.cluster import default_namespace

        return default_namespace(self._context)

    def _cluster(self) -> Any:
        from shoal.submit.kubernetes.cluster import Cluster

        return Cluster(self._context, self._named)

    def _manifests(self, submission: Submission) -> list[dict[str, Any]]:
        request, channels = submission.request, options_.channels(submission.channels)
        spec.refuse(submission.job.path, portable.refusals(request, channels))
        if submission.output is None:
            raise ShoalError("--output is needed: where the model is to lie, such as pvc://CLAIM/PATH")
        extra: Any = submission.extra
        account: str | None = extra["service_account"]
        checkpoints = submission.checkpoints
        job = portable.portable(submission.job, request)
        return manifests(
            job,
            Options(
                kind=options_.kind_of(extra["kind"]),
                namespace=self._named,
                channels=channels,
                output=places.parse("--output", submission.output),
                checkpoints=places.parse("--checkpoints", checkpoints) if checkpoints is not None else None,
                limits=options_.limits(extra["limit"]),
                node_selector=options_.node_selector(extra["node_selector"]),
                service_account=options_.object_name("--service-account", account) if account is not None else None,
                pull_secrets=tuple(options_.object_name("--pull-secret", name) for name in extra["pull_secret"]),
                runtime=options_.object_name("--runtime", extra["runtime"]),
                secret=secrets.token_hex(32) if extra["job_secret"] and not job.has_secret else "",
                network_policy=extra["network_policy"],
            ),
        )

    def dry_run(self, submission: Submission) -> str:
        """Return the YAML of all objects, in the order of their creation."""
        objects = self._manifests(submission)
        return yaml.dump_all(objects, Dumper=_PlainDumper, sort_keys=False, explicit_start=True, width=10**9)

    def submit(self, submission: Submission) -> str:
        """Create the objects."""
        objects = self._manifests(submission)
        self._cluster().create(objects)
        kind, name = objects[-1]["kind"], objects[-1]["metadata"]["name"]
        return f"{kind} {name} created in namespace {self._named}; {_KEPT}"

    def status(self, name: str) -> JobState:
        """Return how a job and its pods are."""
        from shoal.submit.kubernetes.status import job_state

        cluster = self._cluster()
        return job_state(cluster.find(name), cluster.pods(name))

    def logs(self, name: str, *, follow: bool) -> None:
        """Print what its pods wrote."""
        cluster = self._cluster()
        cluster.find(name)
        pods = [str(pod.metadata.name) for pod in cluster.pods(name)]
        if not pods:
            raise ShoalError(f"{name}: has no pods: they are made when it starts, and removed when it is stopped")
        logs.show({pod: partial(cluster.log, pod, follow=follow) for pod in pods}, live=follow)

    def stop(self, name: str, *, remove: bool) -> str:
        """Suspend a job, or delete it."""
        cluster = self._cluster()
        job = cluster.find(name)
        if remove:
            cluster.delete(job)
            return f"{name}: removed; its pods get SIGTERM and 120 s"
        cluster.suspend(job)
        return f"{name}: suspended; its pods get SIGTERM and 120 s; {_KEPT}"
