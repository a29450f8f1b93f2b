"""A C program built by CMake against the installed library, as another project would do it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CORE = Path(__file__).parents[2] / "smddp_core"
TOOLS = f"{Path(sys.executable).parent}:{os.environ['PATH']}"


def run(*command: str | Path, timeout: float = 600) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        env=os.environ | {"PATH": TOOLS},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built from source, under a prefix that is then moved: nothing may hold on to its path."""
    # Where the tests of the core have compiled all of it already (smddp_core/tests/run.sh).
    build, prefix = CORE / "build" / "tests", tmp_path_factory.mktemp("there") / "prefix"
    options = ("-DSMDDP_BUILD_TORCH=OFF", "-DSMDDP_BUILD_SHARED=ON", "-DCMAKE_INSTALL_LIBDIR=lib")
    run("cmake", "-S", CORE, "-B", build, "-G", "Ninja", *options)
    run("cmake", "--build", build, "--target", "smddp_shared")
    run("cmake", "--install", build, "--prefix", prefix)
    return prefix.rename(prefix.parent / "moved")


@pytest.fixture(scope="module")
def consumer(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    build = tmp_path_factory.mktemp("consumer")
    source = CORE / "tests" / "consumer"
    run("cmake", "-S", source, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={installed}")
    run("cmake", "--build", build)
    return build / "consumer"


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_c_program_runs_on_the_installed_library(consumer: Path, tmp_path: Path, size: int) -> None:
    ranks = [
        subprocess.Popen(
            [consumer, str(rank), str(size), tmp_path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in range(size)
    ]
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size, outputs
    assert all(re.match(r"\d+\.\d+\.\d+ \w+", output) for output in outputs), outputs


def test_a_rank_killed_with_its_memory_half_shared_leaves_no_name(consumer: Path, tmp_path: Path) -> None:
    before = set(Path("/dev/shm").glob("smddp-*"))
    killed = subprocess.Popen([consumer, "0", "2", tmp_path, "arena/"])
    survivor = subprocess.run(
        [consumer, "1", "2", tmp_path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60
    )
    assert killed.wait(60) == -signal.SIGKILL
    assert survivor.returncode == 1
    assert "rank 0" in survivor.stdout
    assert set(Path("/dev/shm").glob("smddp-*")) <= before


def test_the_library_shows_its_c_api_and_nothing_else(installed: Path) -> None:
    symbols = run("nm", "--dynamic", "--defined-only", installed / "lib" / "libsmddp.so").split()[2::3]
    declared = re.findall(r"(smddp_\w+)\(", (installed / "include" / "smddp" / "smddp.h").read_text())
    assert set(symbols) == set(declared) - {"smddp_options"}
