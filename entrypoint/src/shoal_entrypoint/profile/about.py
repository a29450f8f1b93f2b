"""What a host is, for the report: kernel, cores, Python, and the packages that matter to a training job."""

from __future__ import annotations

import json
import os
import re
import sys

__all__ = ["describe", "leave"]

_PACKAGES = re.compile(
    r"(torch|torchvision|torchaudio|lightning|pytorch_lightning|numpy|transformers|accelerate|deepspeed|mpi4py"
    r"|smdistributed\w*|smddp\w*|shoal\w*)-([^-]+)\.dist-info"
)


def describe(cores: float) -> dict[str, object]:
    """Return it; packages by the names of their folders, because importing one takes longer than a sample may."""
    # This process runs without site-packages (start.py), so the interpreter's own are looked for beside it.
    prefix = os.path.dirname(os.path.dirname(sys.executable))
    library = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}"
    found: dict[str, str] = {}
    for place in (f"{library}/site-packages", f"local/{library}/dist-packages", "lib/python3/dist-packages"):
        try:
            names = os.listdir(os.path.join(prefix, place))
        except OSError:
            continue
        matches = [match for match in map(_PACKAGES.fullmatch, names) if match]
        found = {**{match[1]: match[2] for match in matches}, **found}
    system = os.uname()
    return {
        "Python": sys.version.split()[0],
        "Kernel": f"{system.sysname} {system.release} {system.machine}",
        "Cores": cores,
        "Packages": dict(sorted(found.items())),
    }


def leave(folder: str, node: str, cores: float) -> None:
    """Write it to `<folder>/environment/<node>.json`."""
    where = os.path.join(folder, "environment")
    os.makedirs(where, exist_ok=True)
    with open(os.path.join(where, f"{node}.json"), "w") as file:
        json.dump({"NodeId": node, **describe(cores)}, file)
