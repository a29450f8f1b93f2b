"""Manifests and bills of materials made up for these tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page

ROW, UNBUILT = "2.13-cpu", "never-built"
FULL = "pytorch-training:2.13.0-cpu-py311-debian12-sagemaker"
NEW, OLD = f"{FULL}-bbbbbbbbbbbb", f"{FULL}-aaaaaaaaaaaa"
FOREIGN = "pytorch-training:2.9.1-gpu-py312-cu126-ubuntu22.04-ec2-cccccccccccc"
# What a package may write into its metadata, and a page must not run.
HOSTILE = "</script><img src=x onerror=alert(1)><script>alert(2)</script><!--"

Shoal = Callable[..., subprocess.CompletedProcess[str]]
Open = Callable[..., Page]


def manifest(immutable: str, size: int, **measured: Any) -> dict[str, Any]:
    """Return a manifest as `shoal build` writes it."""
    full = immutable.rpartition("-")[0]
    facts = {
        "torch": "2.13.0",
        "cuda": None,
        "device": "cpu",
        "python": "3.11",
        "python_full": "3.11.2",
        "base": "debian12",
        "openmpi": "4.1.4",
        "smddp": True,
        "note": HOSTILE,
        "packages": {"numpy": "2.4.6", "Evil_Package": "1.0"},
        "licenses": {"numpy": "BSD-3-Clause", "Evil_Package": HOSTILE},
        "debian": {"libc6": "2.36-9+deb12u14", "openssh-server": "1:9.2p1-2"},
    }
    return {
        "names": {
            "aliases": ["-".join(full.split("-")[:4])],
            "full": full,
            "immutable": immutable,
        },
        "size_bytes": size,
        "measured": {**facts, **measured},
        "measured_by": "0123456789ab",
        "fresh": True,
    }


def bill(immutable: str, created: str) -> dict[str, Any]:
    """Return the part of a bill of materials that the catalogue reads."""
    return {
        "bomFormat": "CycloneDX",
        "metadata": {"timestamp": created, "component": {"version": immutable.partition(":")[2]}},
        "components": [
            {"purl": "pkg:deb/debian/libc6@2.36", "licenses": [{"license": {"id": "LGPL-2.1-or-later"}}]},
            {"purl": "pkg:pypi/evil-package@1.0", "licenses": [{"license": {"name": "not this one"}}]},
            {"purl": "no package URL", "licenses": [{"expression": "MIT"}]},
        ],
    }


MANIFESTS = {
    ROW: manifest(NEW, 1_157_000_000),
    "old": manifest(
        OLD,
        1_247_561_498,
        packages={"numpy": "1.26.4", "six": "1.17.0", "Evil_Package": "1.0"},
        debian={"libc6": "2.36-9+deb12u13", "openssh-server": "1:9.2p1-2"},
    ),
    "gpu": manifest(
        FOREIGN,
        5_500_000_000,
        torch="2.9.1",
        device="gpu",
        cuda="12.6",
        cudnn="9.7.0",
        packages={"numpy": "1.26.4", "nvidia-cudnn-cu12": "9.7.0"},
    ),
}
