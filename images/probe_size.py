"""Runs inside an image and prints how many bytes each package takes, as one JSON object. Files are counted as they are,
each once, whatever a package's own records say of its size."""

from __future__ import annotations  # rows have Python 3.8 and 3.9 too

import json
import os
import re
import subprocess
import sysconfig
from collections import Counter
from importlib import metadata

# What is no file of the image: the kernel's, and what the engine puts in.
_NOT_THE_IMAGE_S = ("/proc", "/sys", "/dev", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf")


def files() -> dict[str, int]:
    """Return every file of the image and its size; of several hard links one."""
    found, seen = {}, set()
    for folder, folders, names in os.walk("/"):
        folders[:] = [name for name in folders if not os.path.join(folder, name).startswith(_NOT_THE_IMAGE_S)]  # noqa: PTH118
        for name in names:
            path = os.path.join(folder, name)  # noqa: PTH118
            try:
                status = os.lstat(path)
            except OSError:
                continue  # a temporary file, gone already
            if path.startswith(_NOT_THE_IMAGE_S) or (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            found[path] = status.st_size
    return found


def debian_owners() -> dict[str, str]:
    """Return the package each file of Debian's belongs to, under the path where it really is."""
    owners = {}
    listed = subprocess.run(["dpkg-query", "-W", "-f", "${Package}\\n"], capture_output=True, text=True, check=True)
    for package in listed.stdout.split():
        paths = subprocess.run(["dpkg-query", "-L", package], capture_output=True, text=True, check=True).stdout
        for path in paths.splitlines():
            if path.startswith("/"):
                owners[os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))] = package  # noqa: PTH118, PTH119, PTH120
    return owners


def python_owners() -> dict[str, str]:
    """Return the distribution each file below site-packages belongs to; of a folder, the first with files in it."""
    owners: dict[str, str] = {}
    for distribution in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        for file in distribution.files or ():
            if file.parts[0] not in ("..", "__pycache__"):
                owners[str(file)] = name
                for folder in list(file.parents)[:-1]:
                    owners.setdefault(str(folder), name)
    return owners


def nearest(owners: dict[str, str], path: str) -> str:
    """Return whose `path` is; of what was compiled here, and is on no list, the owner of the folder it is in."""
    place = path
    while place:
        if place in owners:
            return owners[place]
        place = place.rpartition("/")[0]
    return path.split("/")[0]


def measure() -> dict[str, object]:
    """Sum up."""
    debian, python = debian_owners(), python_owners()
    packages = os.path.realpath(sysconfig.get_path("purelib")) + "/"
    sizes: dict[str, Counter[str]] = {"python": Counter(), "debian": Counter(), "other": Counter()}
    for path, size in files().items():
        if path.startswith(packages):
            sizes["python"][nearest(python, path[len(packages) :])] += size
        elif path in debian:
            sizes["debian"][debian[path]] += size
        else:
            sizes["other"]["/".join(path.split("/")[:3])] += size
    return {kind: dict(counted.most_common()) for kind, counted in sizes.items()}


if __name__ == "__main__":
    print(json.dumps(measure()))  # noqa: T201 - the output is the point
