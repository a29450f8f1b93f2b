"""Where data lies for pods: `pvc://CLAIM/PATH`, `nfs://SERVER/PATH`, `hostpath:///PATH` -> volumes and mounts."""

import re
from dataclasses import dataclass
from typing import Any

from shoal.errors import ShoalError

_FORMS = "pvc://CLAIM[/PATH], nfs://SERVER/PATH or hostpath:///PATH"
_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"


@dataclass(frozen=True)
class Place:
    """A folder that pods can mount: a volume's source, and the path in it (none: its root)."""

    source: tuple[str, str, str]  # kind of volume, then what it needs
    path: str

    def volume(self, name: str) -> dict[str, Any]:
        """Return the volume, under a name."""
        kind, first, second = self.source
        if kind == "pvc":
            return {"name": name, "persistentVolumeClaim": {"claimName": first}}
        if kind == "nfs":
            return {"name": name, "nfs": {"server": first, "path": second}}
        return {"name": name, "hostPath": {"path": second, "type": "Directory"}}

    def within(self, *names: str) -> str:
        """Return the path of something below this place, as a subPath of its volume."""
        return "/".join(part for part in (self.path, *names) if part)


def parse(option: str, text: str) -> Place:
    """Return the place that `text` names.

    Raises:
        ShoalError: it names none; the message begins with `option`.
    """
    scheme, _, rest = text.partition("://")
    parts = [part for part in rest.split("/") if part]
    if ".." in parts:
        raise ShoalError(f"{option}: {text!r}: `..` cannot be part of a path in a volume")
    if scheme == "pvc" and parts and re.fullmatch(_NAME, parts[0]):
        return Place(("pvc", parts[0], ""), "/".join(parts[1:]))
    if scheme == "nfs" and len(parts) > 1 and not rest.startswith("/"):
        return Place(("nfs", parts[0], "/" + "/".join(parts[1:])), "")
    if scheme == "hostpath" and parts and rest.startswith("/"):
        return Place(("hostpath", "", "/" + "/".join(parts)), "")
    raise ShoalError(f"{option}: {text!r}: write {_FORMS}")


class Volumes:
    """The volumes of a pod, each source once, and the mounts of its container."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, str, str], str] = {}
        self.volumes: list[dict[str, Any]] = []
        self.mounts: list[dict[str, Any]] = []

    def add(self, volume: dict[str, Any], **mount: Any) -> None:
        """Add a volume of its own and a mount of it."""
        if volume not in self.volumes:
            self.volumes.append(volume)
        self.mounts.append({"name": volume["name"], **mount})

    def mount(self, place: Place, target: str, *names: str, path_key: str = "subPath", **more: Any) -> None:
        """Mount what is below a place at `target`; `path_key` "subPathExpr" lets the pod's variables be in it."""
        name = self._names.setdefault(place.source, f"data-{len(self._names)}")
        path = place.within(*names)
        if path_key == "subPathExpr":  # a `$` of the place itself is no variable
            path = "/".join(part for part in (place.path.replace("$", "$$"), *names) if part)
        self.add(place.volume(name), mountPath=target, **({path_key: path} if path else {}), **more)
