"""The job's hosts as containers of the local engine, through the Docker SDK: the only file here that talks to Docker.

A job is a network and one container a host. Both carry the job's name and the owning process as labels, so that what
a killed `shoal` left behind can be told from what a living one is using.
"""

import contextlib
import json
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from typing import IO, Any, cast
from urllib.parse import unquote, urlparse

import docker
from docker.errors import APIError, DockerException, ImageNotFound, NotFound, NullResource
from docker.models.containers import Container
from docker.types import DeviceRequest, Ulimit
from docker.types import Mount as BindMount
from requests.exceptions import RequestException

from shoal.errors import ShoalError
from shoal.job import abandoned, owner, payload, staging
from shoal.job.limits import NO_LIMITS, Limits
from shoal.job.link_rate import limit_link
from shoal.job.plan import CODE, Host, Mount, Plan
from shoal.job.side_by_side import side_by_side
from shoal.job.spec import FILE_SCHEME

JOB_LABEL = "shoal.job"
OWNER_LABEL = "shoal.owner"
STAGING_LABEL = "shoal.staging"  # of the network: the folder that is removed with it
KEPT_LABEL = "shoal.kept"  # of the network: other folders of this machine that the job writes to
_CONFLICT = 409  # a name is in use; to kill: it is not running
_NO_FOLDER = (400, 500)  # what the engine answers where a file, or a link to nowhere, is
_BUSY = (403, 409)  # to remove: a network has containers; a container is being removed
_REMOVAL_S = 10.0
_GOING = ("removing", "dead")


class NameInUseError(ShoalError):
    """Another process runs a job of this name."""

    def __init__(self, name: str) -> None:
        super().__init__(f"TrainingJobName: a job called {name!r} is running: give another name with --job-name")


class Hosts:
    """The containers of one job, from creation to removal; leaving the `with` block removes all of them."""

    def __init__(self, client: docker.DockerClient, plan: Plan, limits: Limits = NO_LIMITS) -> None:
        self._client, self._plan, self._limits = client, plan, limits
        self._labels = {JOB_LABEL: plan.name, OWNER_LABEL: owner.this_process()}
        self._containers: dict[str, Container] = {}
        self._network: Any = None
        self.left_behind: list[str] = []  # after the `with` block: what the engine would not remove

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_error: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove everything that there is of the job on the engine; what it would not remove is in `left_behind`."""
        things: list[Any] = list(self._containers.values())
        gone = side_by_side(_remove, things)
        if self._network is not None:  # which cannot go before them
            things, gone = [*things, self._network], [*gone, _remove(self._network)]
        self.left_behind = [thing.name for thing, is_gone in zip(things, gone, strict=True) if not is_gone]

    def reserve(self) -> None:
        """Make the job's network: from now on its name is in use.

        Raises:
            NameInUseError: it is already.
        """
        kept = [unquote(urlparse(each.uri).path) for each in self._plan.kept if each.uri.startswith(FILE_SCHEME)]
        labels = {
            **self._labels,
            STAGING_LABEL: str(self._plan.run_folder / staging.FOLDER),
            KEPT_LABEL: json.dumps(kept),
        }
        with _name_in_use(self._plan.name):
            self._network = self._client.networks.create(
                f"shoal-{self._plan.name}",
                driver="bridge",
                internal=self._plan.isolated,
                labels=labels,
                check_duplicate=True,
            )
        self._network.reload()
        self._stay_or_yield()

    def _stay_or_yield(self) -> None:
        """Of two that ask at once the engine may give both a network of that name: the older one stays.

        Raises:
            NameInUseError: it is not ours.
        """
        ours, deadline = self._network.attrs, time.monotonic() + _REMOVAL_S
        while True:
            there = [one.attrs for one in self._client.networks.list(names=[ours["Name"]])]
            others = [one for one in there if one["Name"] == ours["Name"] and one["Id"] != ours["Id"]]
            if not others:
                return
            if any(_age(one) < _age(ours) for one in others) or time.monotonic() > deadline:
                raise NameInUseError(self._plan.name)
            time.sleep(0.05)  # nothing can be started while there are two

    def create(self, staged: Mapping[str, Sequence[Mount]], code: IO[bytes] | None) -> None:
        """Make every container, with `/opt/ml` laid out and `staged` mounted beside what is always; start none.

        `code` is a tar archive of what `/opt/ml/code` is to hold.

        Raises:
            NameInUseError: another process has just made one of the same name.
        """
        machine = self._client.info()

        def make(host: Host) -> None:
            self._make(host, (*host.mounts, *staged.get(host.name, ())), machine)

        side_by_side(make, self._plan.hosts)
        self._stay_or_yield()  # once more: another network may have been made, but not yet been seen
        if code is not None:
            for container in self._containers.values():
                code.seek(0)
                container.put_archive(CODE, code)

    def _make(self, host: Host, mounts: Sequence[Mount], machine: dict[str, Any]) -> None:
        """Make a host's container with the folders and files of the contract in it."""
        with _name_in_use(self._plan.name):
            container = self._create_one(host, mounts, machine)
        self._containers[host.name] = container
        mounted = {mount.target for mount in mounts}
        kept = [folder.local_path for folder in self._plan.kept]
        container.put_archive("/", payload.config_archive(host.config, kept, mounted))

    def _create_one(self, host: Host, mounts: Sequence[Mount], machine: dict[str, Any]) -> Container:
        plan = self._plan
        network = self._network.id
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
            mounts=[BindMount(m.target, str(m.source), type="bind", read_only=True) for m in mounts],
            # Loader workers and collectives share memory through /dev/shm; Docker's default of 64 MB stops both.
            shm_size=min(machine["MemTotal"], self._limits.memory or machine["MemTotal"]) // 2,
            **self._limits.container_options(),
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
            if error.status_code != _CONFLICT:
                raise

    def put(self, host: str, path: str, archive: IO[bytes]) -> None:
        """Unpack a tar archive into a folder of a host."""
        self._containers[host].put_archive(path, archive)

    def stats(self, host: str) -> Iterator[dict[str, Any]]:
        """Return what the engine measures of a host, about once a second, until the host ends."""
        return cast("Iterator[dict[str, Any]]", self._containers[host].stats(stream=True, decode=True))

    def limit_link(self, host: str) -> None:
        """Limit what a host that has been started sends, as the job's limits say."""
        if self._limits.link_rate is not None:
            limit_link(self._client, self._containers[host], self._plan.image, self._limits.link_rate, self._labels)

    def state(self, host: str) -> dict[str, Any]:
        """Return the engine's account of a host: StartedAt, FinishedAt, ExitCode, OOMKilled, ...

        Raises:
            docker.errors.NotFound: somebody else has removed it, or is about to.
        """
        container = self._containers[host]
        container.reload()
        state: dict[str, Any] = container.attrs["State"]
        if state["Status"] in _GOING:
            raise NotFound(f"{host} was removed by somebody else")
        return state

    def read(self, host: str, path: str) -> Iterator[bytes] | None:
        """Return a file or folder of a host as a tar stream, or None if there is no such path."""
        try:
            chunks: Iterator[bytes] = self._containers[host].get_archive(path, chunk_size=1 << 20)[0]
        except NotFound:
            return None
        return chunks

    def read_folder(self, host: str, path: str) -> Generator[bytes, None, None] | None:
        """Return the content of a folder of a host as a tar stream; of the folder a link leads to, if it is one.

        None if there is no such folder.
        """
        try:
            chunks = self._containers[host].get_archive(f"{path}/.", chunk_size=1 << 20)[0]
        except NotFound:
            return None
        except APIError as error:
            if error.status_code in _NO_FOLDER:
                return None
            raise
        return cast("Generator[bytes, None, None]", chunks)


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
                # Before the network goes, which says where it is: this process may be killed as well.
                abandoned.tidy(labels.get(STAGING_LABEL, ""), labels.get(KEPT_LABEL, ""))
                _remove(thing)
    return sorted(jobs)


@contextlib.contextmanager
def _name_in_use(job: str) -> Iterator[None]:
    try:
        yield
    except APIError as error:
        if error.status_code == _CONFLICT:
            raise NameInUseError(job) from error
        raise


def _age(network: dict[str, Any]) -> tuple[datetime, str]:
    return datetime.fromisoformat(network["Created"]), network["Id"]


def is_running(client: docker.DockerClient, job: str) -> bool:
    """Return whether another process runs a job of this name on the engine."""
    return bool(client.networks.list(filters={"label": f"{JOB_LABEL}={job}"}))


def _remove(thing: Any) -> bool:
    """Remove a container or a network; return whether it is gone."""
    options = {"force": True, "v": True} if isinstance(thing, Container) else {}
    deadline = time.monotonic() + _REMOVAL_S
    while True:
        try:
            thing.remove(**options)
        except NotFound:
            return True
        except (DockerException, RequestException) as error:
            # Somebody else may be removing it, or a container that a network still has.
            if getattr(error, "status_code", None) not in _BUSY or time.monotonic() > deadline:
                return False
            time.sleep(0.2)
        else:
            return True
