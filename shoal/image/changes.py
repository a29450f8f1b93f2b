"""What changed between two images, by their manifests: the note that goes with a new one."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

# Of a manifest's `measured`: what has one version.
_SINGLE = ("torch", "cuda", "python_full", "base", "openmpi")
_GROUPS = ("packages", "debian")


@dataclass(frozen=True)
class Change:
    """One version that is not the same; None where the package is not there."""

    kind: str  # image, packages (Python's), debian
    name: str
    before: str | None
    after: str | None


@dataclass(frozen=True)
class Changes:
    """All of them, and the sizes."""

    before: str
    after: str
    size_before: int
    size_after: int
    changes: list[Change]

    def as_json(self) -> dict[str, Any]:
        """Return it as the JSON object that `shoal diff --json` prints."""
        return asdict(self)

    def note(self) -> str:
        """Return it as Markdown."""
        delta = (self.size_after - self.size_before) / 1e6
        lines = [
            f"# {self.after}",
            "",
            f"Compared with {self.before}: {self.size_after / 1e6:.0f} MB, {delta:+.1f} MB.",
            "",
        ]
        if not self.changes:
            return "\n".join([*lines, "No version differs.", ""])
        lines += ["| | what | before | after |", "|---|---|---|---|"]
        lines += [f"| {one.kind} | {one.name} | {one.before or '-'} | {one.after or '-'} |" for one in self.changes]
        return "\n".join([*lines, ""])


def changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> Changes:
    """Compare two manifests."""
    return Changes(
        before["names"]["immutable"],
        after["names"]["immutable"],
        before["size_bytes"],
        after["size_bytes"],
        list(_different(before["measured"], after["measured"])),
    )


def _different(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Change]:
    for name in _SINGLE:
        if before.get(name) != after.get(name):
            yield Change("image", name, before.get(name), after.get(name))
    for kind in _GROUPS:
        if kind not in before or kind not in after:
            continue  # measured before that was asked
        old, new = before[kind], after[kind]
        for name in sorted({*old, *new}, key=str.lower):
            if old.get(name) != new.get(name):
                yield Change(kind, name, old.get(name), new.get(name))
