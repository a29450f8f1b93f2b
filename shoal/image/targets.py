"""Which images a command is about: rows of versions.yaml in some of their flavours."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shoal.console import err
from shoal.errors import ShoalError
from shoal.image.names import FLAVOURS
from shoal.image.versions import Flavour, Versions
from shoal.image.wheelhouse import has_locks


@dataclass(frozen=True)
class Target:
    """One image to build: a row in one of its flavours."""

    row: str
    flavour: Flavour

    @property
    def label(self) -> str:
        """What a user sees it called."""
        return self.row if self.flavour == "sagemaker" else f"{self.row} {self.flavour}"


def choose(versions: Versions, rows: Sequence[str], *, every: bool, flavours: Sequence[str]) -> list[Target]:
    """Return the images that the arguments mean, each once.

    Raises:
        ShoalError: there is no such row, a row has no such flavour, or nothing was named.
    """
    if every == bool(rows):
        raise ShoalError("say either rows or --all (or --changed): `shoal list` shows the rows")
    if unknown := [flavour for flavour in flavours if flavour not in FLAVOURS]:
        raise ShoalError(f"--flavour: {unknown[0]!r} is not one of {', '.join(FLAVOURS)}")
    names = versions.rows if every else dict.fromkeys(map(versions.find, rows))
    targets = [Target(row, flavour) for row in names for flavour in FLAVOURS if flavour in flavours]
    there = [target for target in targets if target.flavour in versions.row(target.row).flavours]
    if not every and len(there) < len(targets):
        row, flavour = next((target.row, target.flavour) for target in targets if target not in there)
        raise ShoalError(f"{row}: --flavour {flavour}: this row has {', '.join(versions.row(row).flavours)} only")
    return there


def locked(targets: Sequence[Target], versions: Versions, root: Path) -> list[Target]:
    """Return those whose wheels are locked: of a command about all rows, the others are left out with a word."""
    left = [target for target in targets if has_locks(target.row, versions.row(target.row), root)]
    if without := {target.row for target in targets} - {target.row for target in left}:
        why = "no lock of their wheels (`shoal lock ROW` needs their publisher's index)"
        err.print(f"{len(without)} rows left out: {why}")
    return left
