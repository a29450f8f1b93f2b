"""versions.yaml + manifests -> what the catalogue shows: an entry a row, with the images built of it. Pure."""

import datetime as dt
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from packaging.utils import canonicalize_name

from shoal.image.catalogue.baselines import Baseline, baseline
from shoal.image.catalogue.manifests import Record
from shoal.image.names import FLAVOURS, Names, names
from shoal.image.versions import Versions

# Shown apart from the other things that were measured, or said better by another one of them.
_NOT_FACTS = ("packages", "licenses", "debian", "debian_licenses", "python")


@dataclass(frozen=True)
class Package:
    """One package in one image."""

    kind: str  # python, debian
    name: str
    version: str
    licence: str  # empty where nobody recorded it


@dataclass(frozen=True)
class Image:
    """One image that was built and measured."""

    id: str  # its immutable tag, without the repository
    entry: str
    reference: str
    tags: list[str]  # the others; they may move on
    flavour: str
    size_bytes: int
    created: str | None  # ISO date and time
    facts: dict[str, str]
    packages: list[Package]
    baseline: Baseline | None


@dataclass(frozen=True)
class Entry:
    """A row of versions.yaml, or images that belong to none of its rows."""

    id: str
    declared: dict[str, Any] | None
    tags: list[str]
    support: str | None  # on the day the page was made
    images: list[Image]  # newest first

    @property
    def newest(self) -> Image | None:
        """Return the image that was made last."""
        return self.images[0] if self.images else None

    def value(self, key: str) -> str:
        """Return what is declared of `key`, else what was measured, else nothing."""
        if self.declared is not None and self.declared.get(key) is not None:
            return str(self.declared[key])
        return self.newest.facts.get(key, "") if self.newest is not None else ""


def entries(versions: Versions, records: Iterable[Record], today: dt.date) -> list[Entry]:
    """Return all rows in the order of versions.yaml, then images of rows that are there no more."""
    declared = {name: declared_names(versions, name) for name in versions.rows}
    row_of = {one.full: name for name, all_names in declared.items() for one in all_names}
    images: dict[str, list[Image]] = {name: [] for name in versions.rows}
    for record in records:
        full = record.manifest.names.immutable.rpartition("-")[0]
        entry = row_of.get(full, full.rpartition(":")[2])
        found = images.setdefault(entry, [])
        if record.manifest.names.immutable not in (one.reference for one in found):
            found.append(_image(versions, record, entry))
    return [
        Entry(
            id=name,
            declared=versions.rows[name].model_dump(mode="json") if name in versions.rows else None,
            tags=[tag for one in declared.get(name, ()) for tag in (*one.aliases, one.full)],
            support=versions.rows[name].support(today) if name in versions.rows else None,
            images=sorted(found, key=lambda image: (image.created or "", image.id), reverse=True),
        )
        for name, found in images.items()
    ]


def declared_names(versions: Versions, name: str) -> list[Names]:
    """Return the tags that a row's images get, a set for each flavour; the hash in the immutable one stands for any."""
    return [names(versions, name, "0" * 12, flavour) for flavour in versions.row(name).flavours]


def as_json(found: Iterable[Entry]) -> list[dict[str, Any]]:
    """Return entries as JSON has them."""
    return [asdict(entry) for entry in found]


def _image(versions: Versions, record: Record, entry: str) -> Image:
    manifest = record.manifest
    reference = manifest.names.immutable
    measured = manifest.measured
    flavour = next((one for one in FLAVOURS if f"-{one}-" in reference), FLAVOURS[0])
    return Image(
        id=reference.rpartition(":")[2],
        entry=entry,
        reference=reference,
        tags=[tag for tag in _texts(manifest.names.model_dump()) if tag != reference],
        flavour=flavour,
        size_bytes=manifest.size_bytes,
        created=record.bill.metadata.timestamp if record.bill is not None else None,
        facts=_facts(measured.model_dump()),
        packages=_packages(record),
        baseline=baseline(versions, measured.torch, measured.device, flavour),
    )


def _texts(values: dict[str, Any]) -> list[str]:
    """Return the strings of a mapping and of the lists in it, each once."""
    flat: list[object] = []
    for value in values.values():
        flat.extend(value if isinstance(value, list) else [value])
    return list(dict.fromkeys(text for text in flat if isinstance(text, str)))


def _facts(measured: dict[str, Any]) -> dict[str, str]:
    """Return all that was measured and has one value, whatever the probe asked."""
    facts = {}
    for key, value in measured.items():
        if key in _NOT_FACTS and not (key == "python" and "python_full" not in measured):
            continue
        if isinstance(value, bool):
            facts[key] = "yes" if value else "no"
        elif isinstance(value, str | int | float):
            facts[key] = str(value)
    return facts


def _packages(record: Record) -> list[Package]:
    measured = record.manifest.measured
    billed = record.bill.licences() if record.bill is not None else {}
    said = {canonicalize_name(name): text for name, text in measured.licenses.items() if text}
    packages = []
    for kind, group in (("python", measured.packages), ("debian", measured.debian)):
        for name, version in sorted(group.items(), key=lambda item: item[0].lower()):
            key = canonicalize_name(name)
            licence = (said.get(key) if kind == "python" else None) or billed.get((kind, key), "")
            packages.append(Package(kind, name, version, licence))
    return packages
