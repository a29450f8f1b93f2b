"""The model of versions.yaml: what a row may say, and which combinations are possible.

Pure data: no file is read but the one given to `load`, and nothing here knows Docker.
"""

import datetime as dt
import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from shoal.errors import ShoalError

# Three numbers, as upstream publishes it: `2.13` would be a floor, not a version.
Release = Annotated[str, StringConstraints(pattern=r"^\d+\.\d+\.\d+$")]
# A row's name is the name of files and of tags.
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
PythonMinor = Annotated[str, StringConstraints(pattern=r"^3\.\d+$")]

# The Python versions each torch minor has wheels for, first and last (source: the registry's file lists).
TORCH_PYTHONS: Mapping[tuple[int, int], tuple[int, int]] = {
    (1, 11): (7, 10),
    (1, 12): (7, 10),
    (1, 13): (7, 11),
    (2, 0): (8, 11),
    (2, 1): (8, 11),
    (2, 2): (8, 12),
    (2, 3): (8, 12),
    (2, 4): (8, 12),
    (2, 5): (9, 13),
    (2, 6): (9, 13),
    (2, 7): (9, 13),
    (2, 8): (9, 13),
    (2, 9): (10, 13),
    (2, 10): (10, 13),
    (2, 11): (10, 13),
    (2, 12): (10, 13),
    (2, 13): (10, 13),
    (2, 14): (10, 13),
    (2, 15): (11, 13),
}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Base(_Strict):
    """An operating system an image can begin from."""

    pull: str = Field(description="image to pull where a registry answers")
    suite: str = Field(description="Debian suite to bootstrap where none does")
    python: PythonMinor = Field(description="the Python its archive has")
    openmpi: Release = Field(description="the Open MPI its archive has")


class Row(_Strict):
    """One image: everything in it that has a version."""

    torch: Release
    device: Literal["cpu"]
    python: PythonMinor
    base: str
    lightning: Release
    mpi4py: Release
    openmpi: Release
    size_mb: int = Field(
        gt=0, description="what the image may take uncompressed, in 10^6 bytes; 5% more fails its build"
    )
    torch_index: str | None = Field(default=None, description="pip index to fall back to for torch")
    ga: dt.date = Field(description="day the torch release became generally available")
    eop: dt.date = Field(description="end of patches")

    @model_validator(mode="after")
    def _possible(self) -> "Row":
        major, minor = Version(self.torch).release[:2]
        if (major, minor) not in TORCH_PYTHONS:
            known = ", ".join(f"{a}.{b}" for a, b in TORCH_PYTHONS)
            raise ValueError(f"torch: {self.torch}: unknown torch minor version; known are {known}")
        first, last = TORCH_PYTHONS[major, minor]
        if not first <= int(self.python.split(".")[1]) <= last:
            raise ValueError(f"python: {self.python}: torch {self.torch} has wheels for 3.{first} to 3.{last} only")
        if self.eop <= self.ga:
            raise ValueError(f"eop: {self.eop}: not after ga {self.ga}")
        return self

    def support(self, today: dt.date) -> Literal["planned", "supported", "ended"]:
        """Return where `today` lies in the row's support: from `ga` to `eop`, both included."""
        if today < self.ga:
            return "planned"
        return "supported" if today <= self.eop else "ended"


class Versions(_Strict):
    """The whole file, rows with the defaults filled in."""

    bases: dict[Name, Base]
    rows: dict[Name, Row]

    @model_validator(mode="after")
    def _bases_fit(self) -> "Versions":
        for name, row in self.rows.items():
            base = self.bases.get(row.base)
            if base is None:
                raise ValueError(f"rows.{name}.base: {row.base!r} is not one of {', '.join(self.bases)}")
            for key in ("python", "openmpi"):
                if getattr(row, key) != getattr(base, key):
                    raise ValueError(
                        f"rows.{name}.{key}: {getattr(row, key)}: {row.base} has {key} {getattr(base, key)} only"
                    )
        return self

    def row(self, name: str) -> Row:
        """Return the row called `name`.

        Raises:
            ShoalError: there is none; the message lists those there are.
        """
        if name not in self.rows:
            near = difflib.get_close_matches(name, self.rows, n=1, cutoff=0.5)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ShoalError(f"versions.yaml: no row {name!r}{hint} (rows: {', '.join(self.rows)})")
        return self.rows[name]


_MODELS: Mapping[str, type[BaseModel]] = {"rows": Row, "bases": Base}


class _UniqueKeyLoader(yaml.SafeLoader):
    """YAML lets a key be written twice and keeps the last; here that is a mistake."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key.value!r} is written twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def load(path: Path) -> Versions:
    """Read and validate versions.yaml.

    Raises:
        ShoalError: the file is missing, is not YAML, or says something it may not.
    """
    try:
        data = yaml.load(path.read_text(), _UniqueKeyLoader)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ShoalError(f"{path.name}: cannot be read: {why} ({path})") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f" line {mark.line + 1}, column {mark.column + 1}:" if mark else ""
        raise ShoalError(f"{path.name}:{where} {error.problem}") from error
    except (yaml.YAMLError, RecursionError, TypeError, ValueError) as error:
        # A zero byte, a thousand brackets, a key that is a list, the 45th of a 13th month.
        raise ShoalError(f"{path.name}: not a file of versions: {' '.join(str(error).split())}") from error
    return parse(data, path.name)


def parse(data: object, name: str = "versions.yaml") -> Versions:
    """Turn the file's content into `Versions`, defaults merged into every row.

    Raises:
        ShoalError: one line a problem, each with row, key, value and what is allowed.
    """
    if not isinstance(data, dict) or not isinstance(data.get("rows"), dict):
        raise ShoalError(f"{name}: expected a mapping with the keys defaults, bases and rows")
    defaults = data.get("defaults") or {}
    if not isinstance(defaults, dict):
        raise ShoalError(f"{name}: defaults: expected a mapping, not {defaults!r}")
    if unknown := set(defaults) - set(Row.model_fields):
        raise ShoalError(f"{name}: defaults: {_unknown(sorted(unknown)[0], Row)}")
    rows = {key: {**defaults, **row} if isinstance(row, dict) else row for key, row in data["rows"].items()}
    rest = {key: value for key, value in data.items() if key != "defaults"}
    try:
        return Versions.model_validate({**rest, "rows": rows})
    except ValidationError as error:
        raise ShoalError("\n".join(f"{name}: {line}" for line in _lines(error))) from error


def _lines(error: ValidationError) -> list[str]:
    """Reword pydantic's problems: `rows.2.13-cpu.torch: '2.13': ...`."""
    lines = []
    for problem in error.errors():
        where = [str(part) for part in problem["loc"]]
        model = _MODELS.get(where[0], Versions) if where else Versions
        prefix = ".".join(where)
        if problem["type"] == "extra_forbidden":
            lines.append(f"{'.'.join(where[:-1]) or 'top level'}: {_unknown(where[-1], model)}")
        elif problem["type"] == "missing":
            lines.append(f"{prefix}: missing")
        elif problem["type"] == "value_error":
            text = re.sub(r"^Value error, ", "", problem["msg"])
            lines.append(f"{prefix}: {text}" if prefix else text)
        else:
            lines.append(f"{prefix}: {problem['input']!r}: {problem['msg']}")
    return lines


def _unknown(key: str, model: type[BaseModel]) -> str:
    near = difflib.get_close_matches(key, model.model_fields, n=1)
    hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(model.model_fields)}"
    return f"unknown key {key!r}; {hint}"
