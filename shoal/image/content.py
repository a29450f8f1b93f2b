"""What goes into an image, as one hash: two builds of equal inputs have the same immutable tag."""

import functools
import hashlib
from pathlib import Path

from docker.utils.build import exclude_paths

from shoal.image import base, render, wheelhouse
from shoal.image.versions import Versions


def content_hash(versions: Versions, name: str, root: Path) -> str:
    """Hash all that goes into the image of a row: its Dockerfile, how its base is made, the files of the build context.

    Of the locks, those of this row only. Wheels are left out: the locks name their hashes.
    """
    row = versions.row(name)
    dockerfile = render.render(versions, name, root) + base.recipe(versions.bases[row.base])
    patterns = (root / ".dockerignore").read_text().splitlines()
    context = exclude_paths(str(root), [*patterns, "images/locks", "wheelhouse"])
    digest = hashlib.sha256(dockerfile.encode())
    for relative in sorted({*context, *(str(path.relative_to(root)) for path in wheelhouse.locks(name, row, root))}):
        path = root / relative
        if path.is_file():
            state = path.stat()
            executable = bool(state.st_mode & 0o100)
            digest.update(f"{relative}\0{executable}\0".encode() + _digest(path, state.st_mtime_ns, state.st_size))
    return digest.hexdigest()


@functools.cache
def _digest(path: Path, *_state: int) -> bytes:
    """Hash a file once, however many rows it goes into; `_state` is what tells that it has changed."""
    return hashlib.sha256(path.read_bytes()).digest()
