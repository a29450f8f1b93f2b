"""The wheel's version: the project's, and behind it the torch release that the binary is for (0.1.0+torch2.13).

A binary fits one minor release of torch; so wheels for several lie side by side, and pip shows which one is installed.
Read by scikit-build-core: see [tool.scikit-build.metadata] in pyproject.toml.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

__all__ = ["dynamic_metadata"]


def dynamic_metadata(field: str, _settings: object = None, _project: object = None) -> str:
    """The value of `field`, which can only be "version"."""
    if field != "version":
        raise ValueError(f"torch_version.py: no value for {field!r}, only for 'version'")
    found = re.search(r"^project\(smddp VERSION ([0-9.]+)", Path("CMakeLists.txt").read_text(), re.MULTILINE)
    if not found:
        raise ValueError("torch_version.py: CMakeLists.txt has no line 'project(smddp VERSION ...'")
    major, minor = _torch_release().split(".")[:2]
    return f"{found[1]}+torch{major}.{minor}"


def _torch_release() -> str:
    try:
        return metadata.version("torch")
    except metadata.PackageNotFoundError:
        # One that was built and not installed; importing it takes seconds, twice a wheel.
        import torch

        return str(torch.__version__)
