"""Entries -> one HTML file that needs nothing else: styles, scripts and data are inside, and no network is asked."""

import base64
import datetime as dt
import hashlib
from importlib.resources import files
from typing import Any

import jinja2

from shoal.image.catalogue.entries import Entry, Image, as_json
from shoal.image.catalogue.pictures import bars, timeline

ASSETS = files("shoal.image.catalogue") / "assets"
# In this order: each file uses the ones before it, and the last starts the page.
SCRIPTS = ("match.js", "registry.js", "sort.js", "packages.js", "search.js", "compare.js", "support.js", "main.js")
REGISTRY = "REGISTRY"  # what stands for the reader's own until there is one
_LABELS = {
    "torch": "PyTorch",
    "cuda": "CUDA",
    "cudnn": "cuDNN",
    "nccl": "NCCL",
    "efa": "EFA",
    "python": "Python",
    "python_full": "Python",
    "base": "system",
    "openmpi": "Open MPI",
    "lightning": "Lightning",
    "size_mb": "expected size, MB",
    "ofi_nccl": "aws-ofi-nccl",
    "mpi4py": "mpi4py",
    "ga": "available from",
    "eop": "patched until",
}


def render(entries: list[Entry], today: dt.date, registry: str) -> str:
    """Return the page; `registry` goes before each image's name where the page says how to pull it."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_asset),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(label=label, mb=lambda size: f"{size / 1e6:,.0f}", day=lambda text: text[:10])
    script = "\n".join(["(() => {", '"use strict";', *(_asset(name) for name in SCRIPTS), "})();"])
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.get_template("page.html.j2").render(
        entries=sorted(entries, key=lambda entry: not entry.images),  # what can be had comes first
        images=[image for entry in entries for image in entry.images],
        today=today.isoformat(),
        registry=registry or REGISTRY,
        style=_asset("style.css"),
        script=script,
        script_hash=f"sha256-{digest}",
        data={"entries": _data(entries)},
        bars=bars(entries),
        timeline=timeline(entries, today),
        columns=columns(entries),
        summary=summary(entries),
    )


def label(key: str) -> str:
    """Return what readers call a key of versions.yaml or of a measurement."""
    return _LABELS.get(key, key.replace("_", " "))


def columns(entries: list[Entry]) -> list[str]:
    """Return the columns of the table of rows: those which any row has something in."""
    wanted = ("torch", "python", "device", "cuda", "base", "lightning", "openmpi")
    return [key for key in wanted if any(entry.value(key) for entry in entries)]


def summary(entries: list[Entry]) -> dict[str, Any]:
    """Return the numbers at the head of the page."""
    images = [image for entry in entries for image in entry.images]
    return {
        "rows": sum(entry.declared is not None for entry in entries),
        "built": len(images),
        "supported": sum(entry.support == "supported" for entry in entries),
        "packages": len({(one.kind, one.name) for image in images for one in image.packages}),
        "ratio": max((_ratio(image) for image in images), default=0.0),
    }


def _ratio(image: Image) -> float:
    """Return how many times larger the vendor's image is."""
    return image.baseline.mb * 1e6 / image.size_bytes if image.baseline and image.size_bytes else 0.0


def _data(entries: list[Entry]) -> list[dict[str, Any]]:
    """Return what the scripts need: packages as short lists, since there may be thousands."""
    data = as_json(entries)
    for entry in data:
        for image in entry["images"]:
            image["packages"] = [
                [one["kind"], one["name"], one["version"], one["licence"]] for one in image["packages"]
            ]
    return data


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")
