"""What an image holds as a CycloneDX bill of materials, from the measurement: no scanner, nothing guessed."""

import datetime as dt
import uuid
from typing import Any

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

# The serial number is a function of the immutable tag, so that the same image has the same bill.
_NAMESPACE = uuid.UUID("6f0c9f0e-6c39-5b0a-9a7e-0c8a4f4d6b1e")


def bill(tag: str, created: str, measured: dict[str, Any]) -> str:
    """Return the bill of the image `tag`, CycloneDX 1.6 JSON: Python's and Debian's packages, with their package URLs.

    `created` is when the image was made, as the engine says it: the bill of an image is always the same.
    """
    repository, _, version = tag.rpartition(":")
    bom = Bom(serial_number=uuid.uuid5(_NAMESPACE, tag))
    bom.metadata.component = Component(name=repository, version=version, type=ComponentType.CONTAINER, bom_ref=tag)
    bom.metadata.timestamp = dt.datetime.fromisoformat(created)
    for name, number in measured["packages"].items():
        purl = PackageURL("pypi", None, name.lower().replace("_", "-"), number)
        bom.components.add(_component(purl, measured["licenses"].get(name)))
    for name, number in measured["debian"].items():
        purl = PackageURL("deb", "debian", name, number)
        bom.components.add(_component(purl, measured.get("debian_licenses", {}).get(name)))
    bom.register_dependency(bom.metadata.component, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=1)


def _component(purl: PackageURL, license_text: str | None) -> Component:
    licenses = [LicenseFactory().make_from_string(license_text)] if license_text else None
    return Component(name=purl.name, version=purl.version, purl=purl, bom_ref=purl.to_string(), licenses=licenses)
