"""Builds smddp's wheel for every row of versions.yaml and runs its collectives with it: row x built x tested.

matrix.py [ROW ...]     all rows by default; a line each, then one JSON line

Rows with the same torch and the same Python have the same wheel, which is built and tested once, in a virtual
environment with torch from where pip's settings say (torch_releases.py); a row whose Python this machine does not have
says so. What has passed stands in --folder and is not done again until smddp_core changes: stop when you like, and go
on another day. `--write` puts the table of all that stands there into docs/images-matrix.md.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path

from torch_releases import CORE, ROOT, Result, attempt
from torch_versions import find_python

from shoal.image.versions import Row, Versions
from shoal.image.versions_file import load

PAGE = ROOT / "docs" / "images-matrix.md"
MARKS = ("<!-- make matrix: begin -->\n", "<!-- make matrix: end -->\n")
TESTS = ("test_collectives.py",)
LINE = "{:36} {:10} {:8} {:>7} {:>9}  {}"


def sources() -> str:
    """What tells one smddp from another."""
    files = [path for part in ("src", "include", "torch", "cmake", "python") for path in (CORE / part).rglob("*.*")]
    digest = hashlib.sha256()
    for path in sorted([*files, CORE / "CMakeLists.txt"]):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(CORE)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def wheel_of(row: Row) -> str:
    """What rows that share a wheel have in common."""
    return f"{row.torch}-py{row.python}"


def record_of(row: Row, folder: Path) -> Path:
    """Where what passed is kept."""
    return folder / f"{wheel_of(row)}.json"


def on_record(row: Row, folder: Path, smddp: str) -> Result | None:
    """What stands on record of these sources of smddp."""
    record = record_of(row, folder)
    if record.is_file() and (known := json.loads(record.read_text()))["smddp"] == smddp:
        return Result(**known["result"])
    return None


def result_of(row: Row, folder: Path, smddp: str) -> Result | None:
    """What stands on record, or is found out now; None where the machine has not the row's Python."""
    if (known := on_record(row, folder, smddp)) is not None:
        return known
    interpreter = find_python(row.python)
    if interpreter is None:
        return None
    result = attempt(row.torch, interpreter, folder, tests=TESTS)
    if not result.error:
        record_of(row, folder).write_text(json.dumps({"smddp": smddp, "result": asdict(result)}))
    return result


def cells(name: str, row: Row, result: Result | None) -> tuple[str, ...]:
    """The row's line: name, torch, Python, seconds of the build, kilobytes, how the tests went."""
    if result is None:
        return (name, row.torch, row.python, "-", "-", f"no Python {row.python} here")
    built = (f"{result.build_seconds:.0f}", str(result.wheel_kb)) if result.wheel_kb else ("-", "-")
    return (name, result.torch or row.torch, result.python, *built, result.error or f"{result.passed} passed")


def lines_of_page(versions: Versions, folder: Path, smddp: str) -> list[str]:
    """The table of the documentation. What older sources passed says nothing of these: it is named, and not shown."""
    lines = ["| row | torch | Python | wheel built, s | KB | collectives |", "|---|---|---|---|---|---|"]
    for name, row in versions.rows.items():
        result = on_record(row, folder, smddp)
        why_not = "older sources" if record_of(row, folder).is_file() else "not run"
        shown = cells(name, row, result) if result else (name, row.torch, row.python, "-", "-", why_not)
        lines.append("| " + " | ".join(shown) + " |")
    return lines


def write_page(lines: list[str]) -> None:
    """Put the table into the documentation."""
    table = MARKS[0] + "\n".join(lines) + "\n" + MARKS[1]
    PAGE.write_text(re.sub(f"{MARKS[0]}.*{MARKS[1]}", lambda _: table, PAGE.read_text(), flags=re.DOTALL))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW")
    default = ROOT / ".shoal" / "matrix"
    parser.add_argument("--folder", type=Path, default=default, help="for records, environments and logs (%(default)s)")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.relative_to(ROOT)}")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    versions = load(ROOT / "versions.yaml")
    names = [versions.find(name) for name in options.rows] or list(versions.rows)
    options.folder.mkdir(parents=True, exist_ok=True)
    smddp = sources()
    tried: dict[str, Result | None] = {}
    print(LINE.format("row", "torch", "python", "built s", "wheel KB", "collectives"), flush=True)
    for name in names:
        row = versions.row(name)
        if wheel_of(row) not in tried:
            tried[wheel_of(row)] = result_of(row, options.folder, smddp)
        print(LINE.format(*cells(name, row, tried[wheel_of(row)])), flush=True)
    if options.write:
        write_page(lines_of_page(versions, options.folder, smddp))
    failed = [wheel for wheel, result in tried.items() if result is not None and result.error]
    results = {wheel: asdict(result) if result else None for wheel, result in tried.items()}
    print(json.dumps({"ok": not failed, "failed": failed, "wheels": results}))
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
