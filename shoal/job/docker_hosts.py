"""The job's hosts as containers of the local engine, through the Docker SDK: the only file here that talks to Docker.

A job is a network and one container a host. Both carry the job's name and the owning process as labels, so that what
a killed `shoal` left behind can be told from what a living one is using.
"""

import tempfile
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlparse

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound, NullResource
from docker.models.containers import Container
from docker.types import DeviceRequest, Ulimit
from docker.types import Mount as BindMount
from requests.exceptions import RequestException

from shoal.errors import ShoalError
from shoal.job import owner, payload
from shoal.job.plan import CODE, Host, Plan

JOB_LABEL = "shoal.job"
OWNER_LABEL = "shoal.owner"
NOT_RUNNING = 409


class Hosts:
    """The containers of one job, from creation to removal; leaving the `with` block removes all of them."""

    def __init__(self, client: docker.DockerClient, plan: Plan) -> None:
        self._client, self._plan = client, plan
        self._labels = {JOB_LABEL: plan.name, OWNER_LABEL: owner.this_process()}
        self._containers: dict[str, Container] = {}
        self._network: Any = None
        self.left_behind: list[str] = []  # after the `with` block: what the engine would not remove

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_error: object) -> None:
        things = [*self._containers.values(), *([self._network] if self._network is not None else [])]
        self.left_behind = [thing.name for thing in things if not _remove(thing)]

    def create(self) -> None:
        """Make the network and every container, with `/opt/ml` laid out; start none."""
        self._network = self._client.networks.create(
            f"shoal-{self._plan.name}", driver="bridge", internal=self._plan.isolated, labels=self._labels
        )
        machine = self._client.info()
        with tempfile.TemporaryFile() as code:
            if self._plan.code is not None:
                payload.write_code_archive(self._plan.code, code)
            for host in self._plan.hosts:
                container = self._create_one(host, machine)
                self._containers[host.name] = container
                container.put_archive("/", payload.config_archive(host.config))
                if self._plan.code is not None:
                    code.seek(0)
                    container.put_archive(CODE, code)

    def _create_one(self, host: Host, machine: dict[str, Any]) -> Container:
        plan = self._plan
        network = self._network.name
        options: dict[str, Any] = {"entrypoint": list(plan.entrypoint)} if plan.entrypoint is not None else {}
        if "nvidia" in machine.get("Runtimes", {}):
            options["device_requests"] = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
            # NCCL pins its buffers. Not without GPUs: an engine that is itself in a container may not raise limits.
            options["ulimits"] = [Ulimit(name="memlock", soft=-1, hard=-1)]
        return self._client.containers.create(
            plan.image,
            list(plan.command),
            name=f"{plan.name}-{host.name}",
            hostname=host.name,
            network=network,
            networking_config={network: self._client.api.create_endpoint_config(aliases=[host.name])},
            labels=self._labels,
            # A signal that arrives before the command has installed its handlers would be lost to process 1.
            init=True,
            environment=plan.environment,
            mounts=[BindMount(m.target, str(m.source), type="bind", read_only=True) for m in host.mounts],
            # Loader workers and collectives share memory through /dev/shm; Docker's default of 64 MB stops both.
            shm_size=machine["MemTotal"] // 2,
            **options,
        )

    def output(self, host: str) -> Iterator[bytes]:
        """Return everything a host will write, as it comes. Call before `start`; ends when the host ends.

        Attached, not read from the engine's log: its driver may be off, and the JSON one alters bytes not UTF-8.
        """
        chunks: Iterator[bytes] = self._containers[host].attach(stream=True, logs=False, stdout=True, stderr=True)
        return chunks

    def start(self, host: str) -> None:
        """Start a host.

        Raises:
            docker.errors.APIError: its command cannot be executed.
        """
        self._containers[host].start()

    def wait(self, host: str) -> int:
        """Block until a host ends; return its exit code."""
        return int(self._containers[host].wait(timeout=None)["StatusCode"])

    def signal(self, host: str, name: str) -> None:
        """Send a signal to a host; nothing happens if it has ended."""
        try:
            self._containers[host].kill(signal=name)
        except NotFound:
            return
        except APIError as error:
            if error.status_code != NOT_RUNNING:
                raise

    def state(self, host: str) -> dict[str, Any]:
        """Return the engine's account of a host: StartedAt, FinishedAt, ExitCode, OOMKilled, ..."""
        container = self._containers[host]
        container.reload()
        state: dict[str, Any] = container.attrs["State"]
        return state

    def read(self, host: str, path: str) -> Iterator[bytes] | None:
        """Return a file or folder of a host as a tar stream, or None if there is no such path."""
        try:
            chunks: Iterator[bytes] = self._containers[host].get_archive(path, chunk_size=1 << 20)[0]
        except NotFound:
            return None
        return chunks


def require_local(client: docker.DockerClient) -> None:
    """Refuse an engine of another machine: the channels are mounted from the file system of this one."""
    if not is_local(client.api.base_url):
        raise ShoalError(
            f"the Docker engine is elsewhere ({client.api.base_url}), and channels are mounted from its file system: "
            "use an engine on this machine"
        )


def is_local(base_url: str) -> bool:
    """Return whether an engine's address, as the SDK has it, is on this machine."""
    # The SDK's own words: http+docker://localhost is a Unix socket, http+docker://ssh is ssh to anywhere.
    return urlparse(base_url).hostname in ("localhost", "localnpipe", "127.0.0.1", "::1")


def require_image(client: docker.DockerClient, name: str, similar: Callable[[str, list[str]], list[str]]) -> None:
    """Refuse an image that the engine does not have."""
    try:
        client.images.get(name)
    except (ImageNotFound, NullResource, APIError) as error:
        tags = sorted(tag for image in client.images.list() for tag in image.tags)
        close = similar(name, tags)
        have = f"; there is {', '.join(close)}" if close else ""
        raise ShoalError(
            f"AlgorithmSpecification.TrainingImage: no image {name!r} on this machine{have}: "
            f"build it (`shoal build`) or pull it (`docker pull {name}`)"
        ) from error


def sweep(client: docker.DockerClient) -> list[str]:
    """Remove containers and networks whose owning process is gone; return the names of their jobs."""
    jobs: set[str] = set()
    for kind in (
        client.containers.list(all=True, filters={"label": OWNER_LABEL}, ignore_removed=True),
        client.networks.list(filters={"label": OWNER_LABEL}),
    ):
        for thing in kind:
            labels = thing.attrs.get("Labels") or thing.attrs.get("Config", {}).get("Labels") or {}
            if owner.is_gone(labels.get(OWNER_LABEL, "")):
                jobs.add(str(labels.get(JOB_LABEL, thing.name)))
                _remove(thing)
    return sorted(jobs)


def is_running(client: docker.DockerClient, job: str) -> bool:
    """Return whether another process runs a job of this name on the engine."""
    return bool(client.networks.list(filters={"label": f"{JOB_LABEL}={job}"}))


def _remove(thing: Any) -> bool:
    """Remove a container or a network; return whether it is gone."""
    options = {"force": True, "v": True} if isinstance(thing, Container) else {}
    try:
        thing.remove(**options)
    except NotFound:
        return True
    except (DockerException, RequestException):
        return False
    return True
