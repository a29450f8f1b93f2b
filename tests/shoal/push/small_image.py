"""Images of a few random bytes, made without a builder: an archive as `docker save` writes it."""

import hashlib
import io
import json
import os
import tarfile

import docker


def load(client: docker.DockerClient, tag: str, *layer_bytes: int) -> str:
    """Load an image with a layer of each size; return its id."""
    layers = [_tar({"data": os.urandom(size), f"layer-{number}": b""}) for number, size in enumerate(layer_bytes)]
    diff_ids = [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    rootfs = {"type": "layers", "diff_ids": diff_ids}
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {}, "rootfs": rootfs}).encode()
    names = [f"{number}.tar" for number in range(len(layers))]
    manifest = [{"Config": "config.json", "RepoTags": [tag], "Layers": names}]
    files = {
        "config.json": config,
        "manifest.json": json.dumps(manifest).encode(),
        **dict(zip(names, layers, strict=True)),
    }
    (image,) = client.images.load(_tar(files))
    return str(image.id)


def _tar(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
