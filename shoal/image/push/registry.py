"""The few calls of a registry's own protocol that the Docker engine does not offer: reading a manifest without pulling
its layers, giving it one more tag, and asking why an upload fails.

Layers are the engine's business (shoal.image.push.transport). Protocol: https://github.com/opencontainers/distribution-spec
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

import requests

from shoal.errors import ShoalError
from shoal.image.push.login import LoginSource
from shoal.image.push.registry_http import Connection, reason

_MANIFESTS = (
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.index.v1+json",
)
_TRIAL_BYTES = 1 << 20  # more than the last free block of a full disk


@dataclass(frozen=True)
class Manifest:
    """A manifest exactly as a registry holds it."""

    body: bytes
    media_type: str

    @property
    def digest(self) -> str:
        """The digest of the bytes that came, not the one that the registry says they have."""
        return f"sha256:{hashlib.sha256(self.body).hexdigest()}"

    @property
    def image_id(self) -> str:
        """What an engine that pulls this calls the image: the digest of its configuration."""
        try:
            return str(json.loads(self.body)["config"]["digest"])
        except (ValueError, LookupError, TypeError):  # a list of images has none
            return self.digest

    def is_of(self, image_id: str) -> bool:
        """Return whether this is the manifest of an engine's image (containerd's store calls it by the manifest)."""
        return image_id in (self.digest, self.image_id)


class Registry:
    """One repository of one registry."""

    def __init__(self, host: str, repository: str, login: LoginSource, *, insecure: bool) -> None:
        self.host, self.repository = host, repository
        scope = f"repository:{repository}:pull,push"
        self._connection = Connection(host, scope, login, insecure=insecure)

    def uri(self, tag: str) -> str:
        """Return what to write where an image is asked for."""
        return f"{self.host}/{self.repository}:{tag}"

    def manifest(self, tag: str) -> Manifest | None:
        """Return the manifest that `tag` names; None: there is no such tag, or no such repository.

        Raises:
            ShoalError: the registry does not answer, or refuses.
        """
        answer = self._ask("GET", f"manifests/{tag}", headers={"Accept": ", ".join(_MANIFESTS)})
        if answer.status_code == 404:
            return None
        self._expect(answer, 200, f"{tag} cannot be read")
        found = Manifest(answer.content, answer.headers.get("Content-Type", _MANIFESTS[0]))
        said = answer.headers.get("Docker-Content-Digest", found.digest)
        if said != found.digest:
            raise ShoalError(f"{self.uri(tag)}: the registry says {said}, and sends {found.digest}", exit_code=1)
        return found

    def tag(self, tag: str, manifest: Manifest) -> None:
        """Let `tag` name `manifest`, which the repository has; it names nothing else from then on.

        Raises:
            ShoalError: the registry does not answer, or refuses.
        """
        headers = {"Content-Type": manifest.media_type}
        answer = self._ask("PUT", f"manifests/{tag}", data=manifest.body, headers=headers)
        self._expect(answer, 201, f"{tag} cannot be set")

    def complaint(self) -> str | None:
        """Begin an upload, send a little, drop it; return what the registry has against that, in its own words.

        An engine tells no more of a refused layer than the status.
        """
        try:
            begun = self._ask("POST", "blobs/uploads/", retry=False)
            if begun.status_code != 202:
                return reason(begun)
            where = urljoin(begun.url, begun.headers["Location"])
            octets = {"Content-Type": "application/octet-stream"}
            sent = self._connection.ask("PATCH", where, retry=False, data=bytes(_TRIAL_BYTES), headers=octets)
            where = urljoin(sent.url, sent.headers.get("Location", where))
            self._connection.ask("DELETE", where, retry=False)
        except ShoalError as error:
            return str(error).removeprefix(f"{self.host}: ")
        return None if sent.ok else reason(sent)

    def _ask(self, method: str, path: str, **arguments: Any) -> requests.Response:
        return self._connection.ask(method, f"{self.repository}/{path}", **arguments)

    def _expect(self, answer: requests.Response, status: int, otherwise: str) -> None:
        if answer.status_code != status:
            raise ShoalError(f"{self.host}/{self.repository}: {otherwise}: {reason(answer)}", exit_code=3)
