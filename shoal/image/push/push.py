"""What a push does, in order: look, refuse or plan, send the layers under the immutable tag, verify, move aliases."""

import contextlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import docker
from docker.errors import APIError, ImageNotFound

from shoal.errors import ShoalError
from shoal.image.names import Names
from shoal.image.progress import Progress
from shoal.image.push.destination import Destination
from shoal.image.push.ecr import Ecr, Repository
from shoal.image.push.login import DockerLogin, LoginSource
from shoal.image.push.registry import Manifest, Registry
from shoal.image.push.registry_http import is_insecure
from shoal.image.push.transport import Layers, Transport

Action = Literal["push", "create", "move", "keep"]


@dataclass(frozen=True)
class Step:
    """What happens to one tag."""

    tag: str
    action: Action
    digest_before: str | None


@dataclass(frozen=True)
class Plan:
    """Everything a push will do; the immutable tag's step is the first."""

    image: str
    image_id: str
    image_uri: str
    create_repository: str | None
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Pushed:
    """What a push has done. The digest is of the manifest as the registry gave it back."""

    plan: Plan
    digest: str
    layers_sent: int
    layers_there: int

    def as_json(self) -> dict[str, Any]:
        """Return it as the JSON object that `shoal push --json` prints."""
        plan = asdict(self.plan)
        rest = {key: value for key, value in asdict(self).items() if key != "plan"}
        return {**plan, **rest, "dry_run": False}


@dataclass(frozen=True)
class Options:
    """What a user may want otherwise."""

    aliases: bool = True
    keep: bool = False  # take another build of the same sources, where there is one, for this one
    patience_s: float = 120


class Push:
    """One image, one destination."""

    def __init__(self, client: docker.DockerClient, names: Names, destination: Destination, options: Options) -> None:
        self._client, self._options = client, options
        self._image = names.immutable
        moving = (names.full, *names.aliases) if options.aliases else ()
        self._tag, *self._aliases = (name.partition(":")[2] for name in (names.immutable, *moving))
        self._ecr = Ecr(destination.ecr) if destination.ecr else None
        host = destination.host or (self._ecr.host if self._ecr else "")
        self._login: LoginSource = self._ecr or DockerLogin(host)
        insecure = is_insecure(host, client.info())
        self._registry = Registry(host, destination.repository, self._login, insecure=insecure)

    def plan(self) -> Plan:
        """Look at the registry and say what is to be done; change nothing.

        Raises:
            ShoalError: the registry does not answer, or the push cannot succeed.
        """
        image_id = str(self._client.images.get(self._image).id)
        repository = self._ecr.repository(self._registry.repository) if self._ecr else None
        missing = repository is not None and not repository.exists
        there = None if missing else self._registry.manifest(self._tag)
        if there is not None and self._options.keep:
            image_id = there.image_id
        if there is not None and not there.is_of(image_id):
            raise ShoalError(
                f"{self._registry.uri(self._tag)}: names another image already ({there.digest}), and an immutable tag"
                f" is never overwritten; this machine's is {image_id}, another build of the same sources: use the one"
                " that is there (--keep), or push to another repository",
                exit_code=1,
            )
        first = Step(self._tag, "keep" if there else "push", there.digest if there else None)
        steps = [first, *(self._alias_step(tag, image_id, repository, missing) for tag in self._aliases)]
        create = self._registry.repository if missing else None
        return Plan(self._image, image_id, self._registry.uri(self._tag), create, tuple(steps))

    def carry_out(self, plan: Plan, progress: Progress) -> Pushed:
        """Do what the plan says; interrupted at any point, a new plan goes on from there.

        Raises:
            ShoalError: a step failed; the aliases then name what they named before, or the new image.
        """
        if plan.create_repository and self._ecr:
            self._ecr.create(Repository(plan.create_repository))
            progress.done(f"created the repository {plan.create_repository}: content tags immutable, scanned on push")
        layers = Layers()
        if plan.steps[0].action == "push":
            transport = Transport(self._client, self._registry, self._login, progress, self._options.patience_s, layers)
            with self._named_for_registry():
                said = transport.send(self._tag)
            manifest = self._verified(self._tag, plan.image_id, said)
            progress.done(f"{self._tag}: pushed, {len(layers.sent)} layers sent, {len(layers.there)} were there")
        else:
            manifest = self._verified(self._tag, plan.image_id, plan.steps[0].digest_before)
            progress.done(f"{self._tag}: there already")
        for step in plan.steps[1:]:
            if step.action != "keep":
                self._registry.tag(step.tag, manifest)
                self._verified(step.tag, plan.image_id, manifest.digest)
            progress.done(f"{step.tag}: {'there already' if step.action == 'keep' else f'names {manifest.digest}'}")
        return Pushed(plan, manifest.digest, len(layers.sent), len(layers.there))

    def _alias_step(self, tag: str, image_id: str, repository: Repository | None, missing: bool) -> Step:
        there = None if missing else self._registry.manifest(tag)
        if there is None:
            return Step(tag, "create", None)
        if there.is_of(image_id):
            return Step(tag, "keep", there.digest)
        if repository is not None and not repository.can_move(tag):
            raise ShoalError(
                f"{self._registry.uri(tag)}: names another image, and the repository's setting {repository.mutability}"
                " lets no tag like it move: push with --no-aliases, or change it (`aws ecr put-image-tag-mutability`)",
                exit_code=1,
            )
        return Step(tag, "move", there.digest)

    def _verified(self, tag: str, image_id: str, digest: str | None) -> Manifest:
        """Pull a tag's manifest back; return it if it is this image's."""
        found = self._registry.manifest(tag)
        if found is None or found.digest != digest or not found.is_of(image_id):
            raise ShoalError(
                f"{self._registry.uri(tag)}: was pushed as {digest}, and the registry has"
                f" {found.digest if found else 'nothing'} there: does somebody else push to it?",
                exit_code=1,
            )
        return found

    @contextlib.contextmanager
    def _named_for_registry(self) -> Iterator[None]:
        """Give the engine's image the name under which it is pushed, for as long as that takes."""
        name = self._registry.uri(self._tag)
        try:
            before = self._client.images.get(name)
        except ImageNotFound:
            before = None
        self._client.images.get(self._image).tag(name)
        try:
            yield
        finally:
            if before is None:
                with contextlib.suppress(APIError):
                    self._client.images.remove(name)
