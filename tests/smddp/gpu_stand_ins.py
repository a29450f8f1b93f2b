"""Stand-ins for the libraries of a GPU build of torch, so that it runs on a CPU without them.

A GPU build refuses to load where CUDA's libraries are missing: gigabytes of which nothing is used without a GPU. A
stand-in has a library's name and its functions; each of them says that there is no GPU.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

Symbol = tuple[str, str]  # its name and its version, "" for none
NO_DEVICE = 100  # cudaErrorNoDevice
# Functions of Python itself: the program that loads torch has them.
PYTHONS = ("Py", "_Py")


def needed(dynamic_section: str) -> set[str]:
    """The libraries that one needs, from what `readelf -d` says of it."""
    return set(re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic_section))


def symbols(listing: str) -> tuple[set[Symbol], set[Symbol]]:
    """What libraries define and what they want, as `nm -D` says."""
    defined, wanted = set(), set()
    for line in listing.splitlines():
        found = re.fullmatch(r"[0-9a-f]* *([A-Za-z]) ([^@\s]+)(?:@+(\S+))?", line.strip())
        if found and found[1] == "U":
            wanted.add((found[2], found[3] or ""))
        elif found and found[1] not in "wv":
            # Whoever asks for no version takes any.
            defined |= {(found[2], found[3] or ""), (found[2], "")}
    return defined, wanted


def source(names: Iterable[str]) -> str:
    """C functions of these names. Those that give texts must not give numbers: they are printed."""
    lines = []
    for name in sorted(names):
        if re.search("String|Name", name):
            lines.append(f'const char* {name}(void) {{ return "no GPU"; }}')
        else:
            lines.append(f"int {name}(void) {{ return {NO_DEVICE}; }}")
    return "\n".join(lines) + "\n"


def version_script(wanted: Mapping[str, str]) -> str:
    """For the linker: the loader insists on the version with which a symbol is asked for."""
    names: dict[str, list[str]] = {}
    for name, version in sorted(wanted.items()):
        names.setdefault(version or "NONE", []).append(name)
    return "".join(f"{version} {{ global: {'; '.join(members)}; }};\n" for version, members in sorted(names.items()))


def install(libraries: Path, compiler: str = "gcc") -> list[str]:
    """Puts what the libraries in this folder lack beside them, and returns the names."""
    present = sorted(path for path in libraries.iterdir() if ".so" in path.name)
    asked_for = needed(_output("readelf", "-dW", *map(str, present))) - {path.name for path in present}
    places = {name: Path(_output(compiler, f"-print-file-name={name}").strip()) for name in asked_for}
    missing = sorted(name for name, place in places.items() if not place.is_absolute())
    if not missing:
        return []
    system = [str(place) for place in places.values() if place.is_absolute()]
    defined, wanted = symbols(_output("nm", "-D", *map(str, present), *system))
    # A library may have a copy of its own, without the version that others ask for. Sorted: "" gives way to a version.
    lacking = dict(sorted(symbol for symbol in wanted - defined if not symbol[0].startswith(PYTHONS)))
    with tempfile.TemporaryDirectory() as folder:
        code, versions = Path(folder) / "stand_ins.c", Path(folder) / "versions"
        code.write_text(source(lacking))
        versions.write_text(version_script(lacking))
        for name in missing:
            options = ["-shared", "-fPIC", "-w", "-fno-builtin", f"-Wl,-soname,{name},--version-script={versions}"]
            subprocess.run([compiler, *options, "-o", str(libraries / name), str(code)], check=True)
    return missing


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
