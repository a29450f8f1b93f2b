"""Reads versions.yaml: fills in what rows inherit, and words what is wrong with it."""

import difflib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from shoal.errors import ShoalError
from shoal.image.versions import Base, Exclusion, Published, Row, Versions

_MODELS: Mapping[str, type[BaseModel]] = {"rows": Row, "bases": Base, "exclude": Exclusion, "published": Published}
# Where rows inherit from, each checked for keys that no row has: nobody would notice a misspelt one.
_INHERITED = ("defaults", "devices", "releases")
# The published tag grammar; a row that has such a name says this much by it.
_TAG = re.compile(r"^(\d+\.\d+\.\d+)-(cpu|gpu)-py(3)(\d+)-(?:cu(\d+)(\d)-)?([a-z]+[0-9.]+)$")


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
    """Turn the file's content into `Versions`, all that is inherited merged into every row.

    Raises:
        ShoalError: one line a problem, each with row, key, value and what is allowed.
    """
    if not isinstance(data, dict) or not isinstance(data.get("rows"), dict):
        raise ShoalError(f"{name}: expected a mapping with the keys defaults, bases and rows")
    _check_inherited(data, name)
    for key, row in data["rows"].items():
        _check_torch(f"{name}: rows.{key}.torch", str(key), row, data.get("releases") or {})
    rows = {key: _inherit(str(key), row, data) if isinstance(row, dict) else row for key, row in data["rows"].items()}
    rest = {key: value for key, value in data.items() if key not in _INHERITED}
    try:
        return Versions.model_validate({**rest, "rows": rows})
    except ValidationError as error:
        raise ShoalError("\n".join(f"{name}: {line}" for line in _lines(error))) from error


def _check_inherited(data: dict[str, Any], name: str) -> None:
    for section in _INHERITED:
        found = data.get(section) or {}
        mappings = {section: found}
        if section != "defaults" and isinstance(found, dict):
            mappings = {f"{section}.{key}": value for key, value in found.items()}
        for where, mapping in mappings.items():
            if not isinstance(mapping, dict):
                raise ShoalError(f"{name}: {where}: expected a mapping, not {mapping!r}")
            if unknown := sorted(set(map(str, mapping)) - set(Row.model_fields)):
                raise ShoalError(f"{name}: {where}: {_unknown(unknown[0], Row)}")


def _check_torch(where: str, name: str, row: object, releases: dict[str, Any]) -> None:
    """Most of a row hangs on its release: say that first, and alone."""
    if not isinstance(row, dict):
        return
    own = {**_from_name(name), **row}
    if "torch" not in own:
        raise ShoalError(f"{where}: missing")
    if not isinstance(own["torch"], str) or (own["torch"] not in releases and "ga" not in own):
        raise ShoalError(f"{where}: {own['torch']}: not one of the releases of this file: {', '.join(releases)}")


def _inherit(name: str, row: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Return `row` with what it does not say itself: the nearest source wins."""
    own = {**_from_name(name), **row}
    base = _look(data, "bases", own.get("base"))
    archive = {key: base[key] for key in ("python", "openmpi") if key in base}
    return {
        **(data.get("defaults") or {}),
        **_look(data, "devices", own.get("device")),
        **_look(data, "releases", own.get("torch")),
        **archive,
        **own,
    }


def _look(data: dict[str, Any], section: str, key: object) -> dict[str, Any]:
    mapping = data.get(section)
    found = mapping.get(key) if isinstance(mapping, dict) and isinstance(key, str) else None
    return found if isinstance(found, dict) else {}


def _from_name(name: str) -> dict[str, str]:
    """Return what a row says by its name, where that is a tag: `2.5.1-gpu-py311-cu124-ubuntu22.04`."""
    match = _TAG.match(name)
    if match is None:
        return {}
    torch, device, major, minor, cuda_major, cuda_minor, base = match.groups()
    said = {"torch": torch, "device": device, "python": f"{major}.{minor}", "base": base}
    return {**said, "cuda": f"{cuda_major}.{cuda_minor}"} if cuda_major else said


def _lines(error: ValidationError) -> list[str]:
    """Reword pydantic's problems: `rows.2.13-cpu.torch: '2.13': ...`."""
    lines = []
    for problem in error.errors():
        where = [str(part) for part in problem["loc"]]
        model = next((_MODELS[part] for part in reversed(where[:-1]) if part in _MODELS), Versions)
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
    fields = [*_INHERITED, *model.model_fields] if model is Versions else list(model.model_fields)
    near = difflib.get_close_matches(key, fields, n=1)
    hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(fields)}"
    return f"unknown key {key!r}; {hint}"
