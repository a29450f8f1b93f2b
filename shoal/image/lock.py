"""versions.yaml -> images/locks/<row>.txt: every Python package of an image with its version and hashes, by uv."""

import subprocess
import sys
from pathlib import Path

import uv

from shoal.errors import ShoalError
from shoal.image.versions import Row

# What compiles smddp and builds wheels; never in a final image.
BUILD_TOOLS = ("cmake", "ninja", "scikit-build-core", "setuptools", "wheel")


def requirements(row: Row) -> list[str]:
    """Return the packages a row names; what they depend on is uv's to find."""
    variant = f"+{row.device}" if row.device == "cpu" else ""
    return [
        f"torch=={row.torch}{variant}",
        f"lightning=={row.lightning}",
        f"mpi4py=={row.mpi4py}",
        "numpy",
        "setuptools",
    ]


def lock(name: str, row: Row, root: Path) -> list[Path]:
    """Write the locks of row `name`; return their paths.

    Raises:
        ShoalError: uv finds no set of packages that fits.
    """
    folder = root / "images" / "locks"
    wanted = {
        folder / f"{name}.txt": requirements(row),
        folder / f"build-py{row.python.replace('.', '')}.txt": list(BUILD_TOOLS),
    }
    for path, packages in wanted.items():
        _compile(name, row, packages, path)
    return list(wanted)


def _compile(name: str, row: Row, packages: list[str], path: Path) -> None:
    command = [
        uv.find_uv_bin(),
        "pip",
        "compile",
        "--quiet",
        "--generate-hashes",
        "--no-emit-index-url",
        "--no-emit-find-links",
    ]
    command += ["--no-annotate", "--custom-compile-command", f"shoal lock {name}", "--python-version", row.python]
    command += ["--python-platform", "x86_64-manylinux_2_28", "--output-file", str(path), "-"]
    for folder in _find_links():
        command += ["--find-links", folder]
    if row.torch_index is not None and not _find_links():
        command += ["--extra-index-url", row.torch_index]
    done = subprocess.run(command, input="\n".join(packages), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ShoalError(f"{path.name}: uv: {done.stderr.strip()}", exit_code=1)


def _find_links() -> list[str]:
    """Return pip's find-links folders: uv does not read pip's configuration."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    values = [line.partition("=")[2].strip("'\"") for line in done.stdout.splitlines() if "find-links=" in line]
    return sorted({folder for value in values for folder in value.split()})
