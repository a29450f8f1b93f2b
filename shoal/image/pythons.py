"""A Python for bases whose archive has another: one of uv's builds (python-build-standalone), fetched by uv here.

It reaches the build as one tar, wheelhouse/pythons/<minor>.tar: of a folder, the build context would leave its shared
libraries out. uv checks the hash that its own release has of it; which patch it is follows from uv's version, which
requirements/ has locked. A mirror is named as for uv itself: $UV_PYTHON_INSTALL_MIRROR.
"""

import shutil
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

import uv

from shoal.errors import ShoalError
from shoal.image.children import Children
from shoal.image.exclusive import exclusive


def fetch(minor: str, root: Path, log: Path, children: Children) -> Path:
    """Return the tar of Python `minor` ("3.10"), with one folder `python` in it; download it if it is not there.

    Raises:
        ShoalError: uv does not get it.
    """
    folder = root / "wheelhouse" / "pythons"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{minor}.tar"
    with exclusive(folder / f".{minor}.lock", children.check):
        if not path.is_file():
            with TemporaryDirectory(prefix=f".{minor}-", dir=folder) as work:
                partial = Path(work) / path.name
                with tarfile.open(partial, "w") as archive:
                    archive.add(_install(minor, Path(work), log, children), "python")
                shutil.move(partial, path)
    return path


def _install(minor: str, folder: Path, log: Path, children: Children) -> Path:
    """Let uv unpack Python `minor` below `folder`; return where."""
    arguments = ["python", "install", minor, "--install-dir", str(folder), "--no-bin", "--no-config", "--color=never"]
    done = children.run([uv.find_uv_bin(), *arguments])
    with log.open("a") as stream:
        stream.write(done.stdout + done.stderr)
    found = [path for path in folder.glob(f"cpython-{minor}.*") if path.is_dir() and not path.is_symlink()]
    if done.returncode != 0 or not found:
        causes = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no Python was installed"]
        raise ShoalError(
            f"Python {minor}: uv: {causes[-1].removeprefix('cause: ')}: make its builds reachable, or name a mirror"
            f" in $UV_PYTHON_INSTALL_MIRROR (all of it: {log})",
            exit_code=3,
        )
    return found[0]
