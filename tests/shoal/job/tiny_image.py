"""A training image of two megabytes, made without a network: static busybox, and a `train` that does what $SCRIPT says.

It shows how the runner treats hosts; what happens inside a training image is the business of other tests.
"""

import io
import subprocess
import tarfile
from pathlib import Path

import docker

BUSYBOX = Path("/bin/busybox")  # Debian package busybox-static
NAME = "shoal-test-hosts"
TRAIN = b'#!/bin/sh\neval "$SCRIPT"\n'


def make(client: docker.DockerClient) -> str:
    """Import the image; return its tag."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in ("bin", "tmp", "opt", "opt/ml", "etc"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        _file(archive, "bin/busybox", BUSYBOX.read_bytes())
        for applet in subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout.split():
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
        _file(archive, "bin/train", TRAIN)
    client.api.import_image_from_data(buffer.getvalue(), repository=NAME, tag="1", changes=["ENV PATH=/bin"])
    return f"{NAME}:1"


def _file(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o755
    archive.addfile(info, io.BytesIO(data))
