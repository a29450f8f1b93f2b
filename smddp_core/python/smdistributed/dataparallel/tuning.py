"""The tuning table: what `smddp tune` measured, and what rank 0 takes from it when a group is made.

A JSON file. ``topologies`` has one entry for each ``hosts x ranks a host``, such as ``2x4``: its ``settings``
(environment variable -> value) and, for the reader, ``machine`` and the measurements that led to them. No torch here.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from smdistributed.dataparallel.digits import is_whole_number
from smdistributed.dataparallel.exceptions import SMDDPUsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FORMAT = 1
NO_TABLE = "none"
_AGAIN = "run smddp tune again"
# smddp tune keeps what a file has of other topologies, so one that cannot be read is in its way.
_REPLACE = "remove or move it and run smddp tune again"
_OUT_OF_THE_WAY = "remove or move it, or give --output another file"


def table_path(environ: Mapping[str, str]) -> tuple[Path | None, bool]:
    """Where the table is, and whether the user said so by ``SMDDP_TUNE_FILE``, whose ``none`` means no table at all."""
    named = environ.get("SMDDP_TUNE_FILE")
    if named:
        return (None if named == NO_TABLE else Path(named)), True
    home = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME") or "/") / ".config")
    return Path(home) / "smddp" / "tuning.json", False


def title(path: Path, environ: Mapping[str, str]) -> str:
    """What messages call the file: with the variable, if that names it."""
    named = environ.get("SMDDP_TUNE_FILE")
    return f"SMDDP_TUNE_FILE={path}" if named and Path(named) == path else str(path)


def exists(path: Path) -> bool:
    """As ``path.exists()``, but False in a folder that this user may not look into, which may be an image's HOME."""
    try:
        return path.exists()
    except OSError:
        return False


def topology_key(ranks: Iterable[int], environ: Mapping[str, str]) -> str | None:
    """``2x4`` for ranks on two hosts, four on each; None where hosts differ or the launcher does not say.

    Launchers fill hosts one after another, so ``LOCAL_WORLD_SIZE`` consecutive ranks share one.
    """
    local_size = environ.get("LOCAL_WORLD_SIZE", "")
    if not is_whole_number(local_size) or int(local_size) == 0:
        return None
    hosts = Counter(rank // int(local_size) for rank in ranks)
    sizes = set(hosts.values())
    return f"{len(hosts)}x{sizes.pop()}" if len(sizes) == 1 else None


def machine() -> dict[str, Any]:
    """What a measurement depends on: processor and number of cores."""
    return {"cpu": _cpu_model(), "cores": os.cpu_count()}


def settings_for(
    key: str | None, environ: Mapping[str, str], known: Iterable[str], expected_instead: Callable[[str, str], str]
) -> dict[str, str]:
    """Settings measured for a topology; empty where nothing was.

    Args:
        key: see :func:`topology_key`.
        environ: names the file.
        known: settings that the compiled library has.
        expected_instead: of a setting and a value, what is accepted if that is not; empty if it is.

    Raises:
        SMDDPUsageError: the file that ``SMDDP_TUNE_FILE`` names is missing or broken. With the default
            file there is only a warning.
    """
    path, named = table_path(environ)
    if path is None or (not named and not exists(path)):
        return {}
    file = title(path, environ)
    try:
        entry = load(path, file).get(key or "", {})
        settings: dict[str, str] = entry.get("settings", {})
        check_settings(f"{file}: {key}", settings, known, expected_instead)
        # A home directory may be shared by machines of several kinds; who names a file means it.
        if not named and settings and entry.get("machine") != machine():
            raise SMDDPUsageError(f"smddp: {file}: {key}: measured on {entry.get('machine')!r}, this is {machine()}")
    except SMDDPUsageError as error:
        if named:
            raise
        warnings.warn(f"{error} (the file is ignored)", RuntimeWarning, stacklevel=2)
        return {}
    return settings


def check_settings(
    where: str, settings: Mapping[str, str], known: Iterable[str], expected_instead: Callable[[str, str], str]
) -> None:
    """Find out here, where the file is known, what the library would refuse when a group is made.

    Raises:
        SMDDPUsageError: one line with ``where`` (the file and the entry), the setting and what is accepted.
    """
    unknown = sorted(set(settings) - set(known))
    if unknown:
        raise SMDDPUsageError(f"smddp: {where}: no such setting: {', '.join(unknown)}; {_AGAIN}")
    for name, value in sorted(settings.items()):
        expected = expected_instead(name, value)
        if expected:
            raise SMDDPUsageError(f"smddp: {where}: {name}={value}: expected {expected}; {_AGAIN}")


def load(path: Path, file: str = "", advice: str = _REPLACE) -> dict[str, dict[str, Any]]:
    """The table's topologies.

    Args:
        path: where the table is.
        file: what messages call it, see :func:`title`; empty for ``path`` itself.
        advice: what to do about a broken one.

    Raises:
        SMDDPUsageError: one line with the file and what is wrong with it.
    """
    file = file or str(path)
    try:
        table = json.loads(path.read_text())
    except OSError as error:
        found = "smddp tune writes this file" if advice == _REPLACE else advice
        raise SMDDPUsageError(f"smddp: {file}: {error.strerror}: {found}") from error
    except RecursionError as error:
        raise SMDDPUsageError(f"smddp: {file}: not a table: JSON nested too deeply to be read: {advice}") from error
    except ValueError as error:
        raise SMDDPUsageError(f"smddp: {file}: not JSON: {error}: {advice}") from error
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise SMDDPUsageError(f"smddp: {file}: expected a table of format {FORMAT}: {advice}")
    topologies = table.get("topologies")
    if not isinstance(topologies, dict) or not all(_is_entry(entry) for entry in topologies.values()):
        raise SMDDPUsageError(f"smddp: {file}: expected topologies, each with settings of text values: {advice}")
    return topologies


def check_output(path: Path, file: str = "") -> None:
    """Find out, before anything is measured for it, that :func:`save` will work; makes the folder.

    Raises:
        SMDDPUsageError: the file, which messages call ``file``, is there and broken, or cannot be written.
    """
    file = file or str(path)
    if exists(path):
        load(path, file, _OUT_OF_THE_WAY)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.") as temporary:
            temporary.write(b"\n")
    except OSError as error:
        raise SMDDPUsageError(f"smddp: {file}: {error.strerror}") from error


def save(path: Path, key: str, entry: dict[str, Any], file: str = "") -> None:
    """Put ``entry`` under ``key`` beside what the file has; readers see the old file or the new one, nothing between.

    Raises:
        SMDDPUsageError: the file, which messages call ``file``, is there and broken, or cannot be written.
    """
    file = file or str(path)
    topologies = load(path, file, _OUT_OF_THE_WAY) if exists(path) else {}
    table = {"format": FORMAT, "topologies": {**topologies, key: entry}}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, prefix=f".{path.name}.", delete=False) as temporary:
            _put(table, temporary, path)
    except OSError as error:
        raise SMDDPUsageError(f"smddp: {file}: {error.strerror}") from error


def _put(table: dict[str, Any], temporary: IO[str], path: Path) -> None:
    """Write ``table`` to ``temporary``, which then takes the place of ``path`` or, on an error, is removed."""
    try:
        json.dump(table, temporary, indent=1)
        temporary.write("\n")
        temporary.flush()
        os.fsync(temporary.fileno())
        os.chmod(temporary.name, 0o644)  # noqa: PTH101  (a temporary file is its owner's only)
        os.replace(temporary.name, path)  # noqa: PTH105
    except OSError:
        os.unlink(temporary.name)  # noqa: PTH108
        raise


def _is_entry(entry: object) -> bool:
    settings = entry.get("settings") if isinstance(entry, dict) else None
    # JSON has texts that UTF-8 has not, which the library could not be asked about.
    return isinstance(settings, dict) and all(
        name.isprintable() and isinstance(value, str) and value.isprintable() for name, value in settings.items()
    )


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            # Arm has no name there; its part number tells generations apart.
            if line.startswith(("model name", "CPU part")):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()
