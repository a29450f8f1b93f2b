"""The parts of `make torch-releases` that need no torch: its releases, and stand-ins for libraries that are missing."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import gpu_stand_ins
import pytest
from torch_versions import RELEASES, at_least, check_releases, find_python


def test_releases_are_compared_as_numbers() -> None:
    assert [release for release in RELEASES if at_least(release, "2.9")] == [f"2.{minor}" for minor in range(9, 16)]
    assert not at_least("1.13", "2.0")


def test_all_releases_unless_some_are_named() -> None:
    assert check_releases([]) == RELEASES
    assert check_releases(["2.10", "1.12"]) == ["2.10", "1.12"]
    with pytest.raises(SystemExit, match=r"^torch 2\.99: not a release that is known here: 1\.12, "):
        check_releases(["2.99"])


def test_no_python_is_found_where_there_is_none() -> None:
    assert find_python("2.1") is None
    found = find_python("{}.{}".format(*sys.version_info))
    assert found is None or found.exists()  # None where Python's headers are not installed


def compiled(folder: Path, name: str, code: str, *options: str) -> None:
    source = folder / f"{name}.c"
    source.write_text(code)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(folder / name), str(source), *options], check=True)


def test_a_library_loads_without_the_one_that_it_needs(tmp_path: Path) -> None:
    """The missing one gives its symbols a version, as CUDA's libraries do: the loader looks for it."""
    (tmp_path / "versions").write_text("GPU_12 { global: *; };")
    gpu = 'int gpu_count(void) { return 8; } const char* gpuGetName(void) { return "H"; }'
    compiled(tmp_path, "libgpu.so.12", gpu, "-Wl,-soname,libgpu.so.12", f"-Wl,--version-script={tmp_path / 'versions'}")
    user = (
        "int gpu_count(void); const char* gpuGetName(void);"
        "int count(void) { return gpu_count(); } const char* name(void) { return gpuGetName(); }"
    )
    options = [f"-L{tmp_path}", "-l:libgpu.so.12", "-Wl,-rpath,$ORIGIN", "-Wl,-z,now"]
    libraries = tmp_path / "lib"
    libraries.mkdir()
    compiled(tmp_path, "libuser.so", user, *options)
    (tmp_path / "libuser.so").rename(libraries / "libuser.so")
    with pytest.raises(OSError, match=r"libgpu\.so\.12"):
        ctypes.CDLL(str(libraries / "libuser.so"))
    assert gpu_stand_ins.install(libraries) == ["libgpu.so.12"]
    library = ctypes.CDLL(str(libraries / "libuser.so"))
    library.name.restype = ctypes.c_char_p
    assert library.count() == gpu_stand_ins.NO_DEVICE
    assert library.name() == b"no GPU"
    assert gpu_stand_ins.install(libraries) == [], "nothing is missing any more"
