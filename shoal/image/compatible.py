"""Which Python and which CUDA each release of torch has wheels for, and where those wheels are."""

from collections.abc import Mapping

from packaging.version import Version

# First and last minor of Python 3 (source: the registry's file lists).
PYTHONS: Mapping[tuple[int, int], tuple[int, int]] = {
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

# The CUDA of the package registry's wheel comes first, then those that only torch's publisher has.
CUDAS: Mapping[tuple[int, int], tuple[str, ...]] = {
    (1, 11): ("10.2", "11.3", "11.5"),
    (1, 12): ("10.2", "11.3", "11.6"),
    (1, 13): ("11.7", "11.6"),
    (2, 0): ("11.7", "11.8"),
    (2, 1): ("12.1", "11.8"),
    (2, 2): ("12.1", "11.8"),
    (2, 3): ("12.1", "11.8"),
    (2, 4): ("12.1", "11.8", "12.4"),
    (2, 5): ("12.4", "11.8", "12.1"),
    (2, 6): ("12.4", "11.8", "12.6"),
    (2, 7): ("12.6", "11.8", "12.8"),
    (2, 8): ("12.8", "12.6", "12.9"),
    (2, 9): ("12.8", "12.6", "13.0"),
    (2, 10): ("12.8", "12.6", "13.0"),
    (2, 11): ("13.0",),
    (2, 12): ("13.0",),
    (2, 13): ("13.0",),
    (2, 14): ("13.0",),
    (2, 15): ("13.2",),
}
# As modelparallel/pyproject.toml says; a test compares.
FIRST_TORCH_OF_SMP = (2, 0)
PUBLISHER = "https://download.pytorch.org/whl"


def minor_of(torch: str) -> tuple[int, int]:
    """Return (2, 5) for "2.5.1".

    Raises:
        ValueError: no such minor is known; the message lists those that are.
    """
    major, minor = Version(torch).release[:2]
    if (major, minor) not in PYTHONS:
        known = ", ".join(f"{a}.{b}" for a, b in PYTHONS)
        raise ValueError(f"torch: {torch}: unknown torch minor version; known are {known}")
    return major, minor


def check(torch: str, python: str, cuda: str | None) -> None:
    """Check that there can be a wheel of `torch` for `python` ("3.11") and `cuda` ("12.4"; None: without CUDA).

    Raises:
        ValueError: there is none; the message says what there is.
    """
    release = minor_of(torch)
    first, last = PYTHONS[release]
    if not first <= int(python.split(".")[1]) <= last:
        raise ValueError(f"python: {python}: torch {torch} has wheels for 3.{first} to 3.{last} only")
    if cuda is not None and cuda not in CUDAS[release]:
        raise ValueError(f"cuda: {cuda}: torch {torch} has wheels for CUDA {', '.join(CUDAS[release])} only")


def variant(torch: str, cuda: str | None) -> str:
    """Return how the publisher's wheel is told from the registry's: `+cpu`, `+cu118`, or nothing."""
    if cuda is None:
        return "+cpu"
    return "" if cuda == CUDAS[minor_of(torch)][0] else f"+cu{cuda.replace('.', '')}"


def index(torch: str, cuda: str | None) -> str | None:
    """Return the publisher's index that has the wheel; None where the package registry has it."""
    local = variant(torch, cuda)
    return f"{PUBLISHER}/{local.removeprefix('+')}" if local else None
