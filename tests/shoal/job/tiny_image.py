"""The tiny image of these tests: a static busybox, and a `train` that does what $SCRIPT says."""

import io
import subprocess
import tarfile
from pathlib import Path

BUSYBOX = Path("/bin/busybox")
IMAGE = "shoal-test-hosts:1"


def root_file_system() -> bytes:
    """Return its content, as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for folder in ("bin", "tmp", "opt", "opt/ml"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        applets = subprocess.run([BUSYBOX, "--list"], check=True, capture_output=True, text=True).stdout.split()
        for applet in applets:
            if applet != "busybox":
                link = tarfile.TarInfo(f"bin/{applet}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                archive.addfile(link)
        for name, data in (("bin/busybox", BUSYBOX.read_bytes()), ("bin/train", b'#!/bin/sh\neval "$SCRIPT"\n')):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()
