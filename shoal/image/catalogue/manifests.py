"""Reads what `shoal build` wrote about images: the manifest, and the bill of materials beside it."""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from packageurl import PackageURL
from packaging.utils import canonicalize_name
from packaging.version import Version
from pydantic import BaseModel, Field, NonNegativeInt, ValidationError, field_validator

from shoal.errors import ShoalError

Model = TypeVar("Model", bound=BaseModel)
_KINDS = {"pypi": "python", "deb": "debian"}


class _Names(BaseModel, extra="allow"):
    immutable: str = Field(pattern=r"^[^\s:]+(:\d+/[^\s:]+)?:[\w][\w.-]{0,127}$")


class _Measured(BaseModel, extra="allow"):
    torch: str
    device: str
    packages: dict[str, str]
    debian: dict[str, str] = {}
    licenses: dict[str, str | None] = {}

    @field_validator("torch")
    @classmethod
    def _is_a_version(cls, text: str) -> str:
        Version(text)  # raises InvalidVersion, a ValueError
        return text


class Manifest(BaseModel, extra="allow"):
    """`.shoal/<row>.json`. What a newer or older probe asks may be there or not; what is here must be."""

    names: _Names
    size_bytes: NonNegativeInt
    measured: _Measured


class _Component(BaseModel):
    purl: str | None = None
    licenses: list[dict[str, Any]] = []


class _Subject(BaseModel):
    version: str


class _Metadata(BaseModel):
    timestamp: str
    component: _Subject


class Bill(BaseModel):
    """`.shoal/<row>.cdx.json`, CycloneDX: the part of it that the catalogue needs."""

    metadata: _Metadata
    components: list[_Component] = []

    def licences(self) -> dict[tuple[str, str], str]:
        """Return (python or debian, canonical name) -> licence, of each package whose licence it has."""
        found: dict[tuple[str, str], str] = {}
        for component in self.components:
            texts = [_licence(one) for one in component.licenses]
            if component.purl is not None and any(texts):
                with contextlib.suppress(ValueError):  # not a package URL: nothing that the manifest would name
                    purl = PackageURL.from_string(component.purl)
                    if kind := _KINDS.get(purl.type):
                        found[kind, canonicalize_name(purl.name)] = "; ".join(filter(None, texts))
        return found


@dataclass(frozen=True)
class Record:
    """One image's manifest and its bill, where there is one."""

    manifest: Manifest
    bill: Bill | None


def read(path: Path) -> Record:
    """Read a manifest and the bill of materials beside it.

    Raises:
        ShoalError: the manifest is missing, or either is not whole, not of its kind, or not of the same image.
    """
    manifest = _load(path, Manifest, "a manifest of an image")
    beside = path.with_name(f"{path.stem}.cdx.json")
    if not beside.exists():
        return Record(manifest, None)
    bill = _load(beside, Bill, "a CycloneDX bill of materials")
    tag = manifest.names.immutable.rpartition(":")[2]
    if bill.metadata.component.version != tag:
        raise ShoalError(
            f"{beside}: a bill of {bill.metadata.component.version}, but {path.name} is of {tag}: "
            "build the row again, or remove the bill"
        )
    return Record(manifest, bill)


def _load(path: Path, model: type[Model], kind: str) -> Model:
    try:
        return model.model_validate(json.loads(path.read_bytes()))
    except OSError as error:
        raise ShoalError(
            f"{path}: cannot be read: {error.strerror}: `shoal build ROW` writes .shoal/ROW.json"
        ) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "top level"
        raise ShoalError(
            f"{path}: not {kind}: {where}: {first['msg']}: `shoal build ROW` writes one to .shoal/"
        ) from error
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise ShoalError(f"{path}: not {kind}: {why}: build the row again, or remove the file") from error


def _licence(entry: dict[str, Any]) -> str:
    named = entry.get("license")
    texts = [entry.get("expression"), *((named.get("id"), named.get("name")) if isinstance(named, dict) else ())]
    return next((text for text in texts if isinstance(text, str)), "")
