"""Read the text of a job file, JSON or YAML, into an object. A key that is there twice is an error in both."""

import json
import re
from pathlib import Path
from typing import Any

import yaml

from shoal.errors import ShoalError
from shoal.job.shape import show


def parse(path: Path) -> dict[str, Any]:
    """Return the object a file holds; what ends in `.yaml` or `.yml` is YAML, everything else JSON.

    Raises:
        ShoalError: it cannot be read, is neither, or holds something else.
    """
    try:
        text = path.read_text(encoding="utf-8").removeprefix("\ufeff")  # which Windows' editors put there
    except (OSError, ValueError) as error:  # ValueError: not UTF-8, or a zero byte in the path
        hint = _job_files(path) if isinstance(error, IsADirectoryError) else ""
        raise ShoalError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}{hint}") from error
    try:
        if path.suffix.lower() in (".yaml", ".yml"):
            value = yaml.load(text, _Loader)
        else:
            value = json.loads(text, object_pairs_hook=_no_duplicates)
    except json.JSONDecodeError as error:
        raise ShoalError(f"{path}: is not JSON: {error} (YAML needs a name that ends in .yaml)") from error
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise ShoalError(f"{path}: is not YAML: {line}{error.problem}") from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ShoalError(f"{path}: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        raise ShoalError(f"{path}: {show(value)} is not a CreateTrainingJob request: the file must hold an object")
    return value


def _job_files(folder: Path) -> str:
    """Return what to give instead of a folder that has job files in it."""
    found = sorted(path for path in folder.iterdir() if path.suffix in (".json", ".yaml", ".yml"))
    return f": give {' or '.join(map(str, found[:3]))}" if found else ": give a job file"


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value: dict[str, object] = {}
    for key, item in pairs:
        if key in value:
            raise ValueError(f"{key!r} is there twice in one object")
        value[key] = item
    return value


class _Loader(yaml.SafeLoader):
    """YAML's safe loader, which alone would keep the last of two equal keys without a word.

    It reads YAML 1.1, where `yes`, `NO`, `010`, `12:30` and `2026-01-02` are no text; here they are, as in YAML 1.2.
    """

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Refuse a key that is written twice, before merged keys (`<<`) join those written."""
        seen: set[tuple[str, str]] = set()
        for key, _value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    line = key.start_mark.line + 1
                    raise ValueError(f"line {line}: {key.value!r} is there twice in one object")
                seen.add((key.tag, key.value))
        super().flatten_mapping(node)


def _as_in_yaml_1_2() -> None:
    changed = {
        "bool": r"true|True|TRUE|false|False|FALSE",
        "int": r"[-+]?(?:0|[1-9][0-9]*)",
        "float": r"[-+]?(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    }
    gone = {f"tag:yaml.org,2002:{name}" for name in (*changed, "timestamp", "value")}
    resolvers = {
        first: [(tag, pattern) for tag, pattern in those if tag not in gone]
        for first, those in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    _Loader.yaml_implicit_resolvers = resolvers
    for name, pattern in changed.items():
        firsts = "tTfF" if name == "bool" else "-+.0123456789"
        _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{name}", re.compile(f"^(?:{pattern})$"), list(firsts))


_as_in_yaml_1_2()
