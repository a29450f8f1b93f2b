"""Every file of every layer of an image, as the engine hands it out: also what a later layer has removed."""

import io
import re
import tarfile
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import docker

# The engine writes all layers to its own disk before it sends the first byte: five gigabytes of an image for GPUs.
_FIRST_BYTE_SECONDS = 900


class Pattern(NamedTuple):
    """What to look for, and words of which every match has one: to look for these first is a hundred times faster."""

    words: tuple[bytes, ...]
    expression: re.Pattern[bytes]

    def matches(self, content: bytes) -> Iterator[bytes]:
        """Yield each match in `content`."""
        if any(word in content for word in self.words):
            yield from (match.group() for match in self.expression.finditer(content))


class Found(NamedTuple):
    """A place where a pattern was found."""

    what: str
    path: str
    text: str


class Chunks(io.RawIOBase):
    """A file made of the chunks that an iterator gives."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = chunk
        count = min(len(view), len(self._rest))
        view[:count], self._rest = self._rest[:count], self._rest[count:]
        return count


def contents(client: docker.DockerClient, image: str) -> Iterator[tuple[str, bytes]]:
    """Yield every file of every layer of an image, and its configuration with the history, as (name, content)."""
    client.api.timeout = max(client.api.timeout, _FIRST_BYTE_SECONDS)
    # As it arrives: on disk an image for GPUs would be five gigabytes once more.
    saved = io.BufferedReader(Chunks(client.images.get(image).save(named=True)))
    with tarfile.open(fileobj=saved, mode="r|") as outer:
        for member in outer:
            stream = outer.extractfile(member) if member.isfile() else None
            if stream is None:
                continue
            if not member.name.endswith(".tar"):
                yield member.name, stream.read()
                continue
            with tarfile.open(fileobj=stream, mode="r|") as layer:
                for entry in layer:
                    content = layer.extractfile(entry) if entry.isfile() else None
                    yield entry.name, content.read() if content else entry.linkname.encode()


def search(
    client: docker.DockerClient, image: str, patterns: Mapping[str, Pattern], names: re.Pattern[str] | None = None
) -> list[Found]:
    """Return where the patterns are, in content and in names; and the files with names like `names`."""
    found = []
    for name, content in contents(client, image):
        for what, pattern in patterns.items():
            matches = [*pattern.matches(content), *pattern.matches(name.encode())]
            found += [Found(what, name, match.decode(errors="replace")) for match in matches]
        if names is not None and names.search(f"/{name}"):
            found.append(Found("name", name, ""))
    return found
