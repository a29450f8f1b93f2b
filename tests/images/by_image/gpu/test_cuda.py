"""What an image with CUDA has to be, as far as that shows without a GPU and without a driver."""

import re
from collections import defaultdict
from pathlib import PurePosixPath

import docker
import pytest
from containers import Run
from testinfra.host import Host

from shoal.image.names import Names
from shoal.image.versions import Row

pytestmark = pytest.mark.image

# Of the driver: the NVIDIA container runtime mounts these when a container starts.
DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1"}
# All that torch's libraries need, and where the loader finds that. Plug-ins for other people's hardware are left out.
LINKED = """
import os, pathlib, re, subprocess, sysconfig
folder = pathlib.Path(sysconfig.get_path("platlib"), "torch", "lib")
for library in [*folder.glob("libtorch*.so"), *folder.glob("libc10*.so")]:
    said = subprocess.run(["ldd", library], capture_output=True, text=True).stdout
    for name, found in re.findall(r"(\\S+) => (not found|\\S+)", said):
        print(library.name, name, "not-found" if found == "not found" else os.path.realpath(found))
"""


def python(run: Run, code: str) -> str:
    done = run(["python", "-c", code])
    assert done.rc == 0, done.err
    return done.out.strip()


@pytest.fixture(scope="module")
def linked(run: Run) -> list[tuple[str, str, str]]:
    """Return (library, what it needs, where the loader finds that)."""
    lines = [line.split() for line in python(run, LINKED).splitlines()]
    return [(library, needed, found) for library, needed, found in lines]


def test_cuda_is_the_tag_s(run: Run, tags: Names) -> None:
    tagged = re.search(r"-cu(\d+)-", tags.full)
    assert tagged is not None
    measured = python(run, "import torch; print(torch.version.cuda)")
    assert "".join(measured.split(".")[:2]) == tagged.group(1)


def test_torch_s_cuda_library_is_there_and_loads(run: Run) -> None:
    """Loading it resolves all its symbols; only those of the driver are looked up at run time."""
    code = (
        "import ctypes, os, pathlib, torch;"
        " path = pathlib.Path(torch.__file__).parent / 'lib' / 'libtorch_cuda.so';"
        " ctypes.CDLL(str(path), mode=os.RTLD_NOW); print(torch.backends.cuda.is_built())"
    )
    assert python(run, code) == "True"


def test_every_library_is_found_but_the_driver_s(linked: list[tuple[str, str, str]]) -> None:
    assert "libtorch_cuda.so" in {library for library, _, _ in linked}
    missing = [(library, needed) for library, needed, found in linked if found == "not-found" and needed not in DRIVER]
    assert missing == []


def test_cuda_is_found_in_one_place(linked: list[tuple[str, str, str]]) -> None:
    """Two copies of a library in one process have two states; whichever is loaded first wins."""
    places: dict[str, set[str]] = defaultdict(set)
    for _, needed, found in linked:
        if needed.startswith(("libcu", "libnccl", "libnv")) and found != "not-found":
            places[needed].add(found)
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
    assert any(name.startswith("libcudart.so") for name in places)


def test_the_image_has_each_library_once(host: Host) -> None:
    """A second CUDA, of Debian or of NVIDIA's base image, would be gigabytes. Triton has a CUPTI of its own."""
    names = "-name 'libcu*.so*' -o -name 'libnccl*.so*' -o -name 'libnv*.so*'"
    listed = host.check_output(f"find / -xdev -type f '(' {names} ')' ! -path '/proc/*' ! -path '*/triton/*'")
    copies: dict[str, list[str]] = defaultdict(list)
    for path in listed.split():
        copies[PurePosixPath(path).name.partition(".so")[0]].append(path)
    assert {name: paths for name, paths in copies.items() if len(paths) > 1} == {}


def test_no_compiler_of_cuda(host: Host) -> None:
    programs = "nvcc", "ptxas", "cicc", "fatbinary", "cudafe++"
    either = " -o ".join(f"-name '{name}'" for name in programs)
    # Triton brings its own ptxas: it compiles kernels for the GPU that it finds.
    found = host.check_output(f"find / -xdev -type f '(' {either} ')' ! -path '/proc/*' ! -path '*/triton/*'")
    assert found == ""


def test_nothing_to_link_statically(host: Host) -> None:
    found = host.check_output("find / -xdev -type f -name 'lib*_static*.a' ! -path '/proc/*'")
    assert found == ""


def test_nccl_is_the_one_installed(run: Run, row: Row) -> None:
    """Asked of the library that torch loads, against the package, and against the row where that declares it."""
    code = "import torch; print('.'.join(map(str, torch.cuda.nccl.version()[:3])))"
    loaded = python(run, code)
    packaged = python(
        run,
        "from importlib.metadata import distributions as d;"
        " print(*(x.version for x in d() if x.metadata['Name'].lower().startswith('nvidia-nccl')))",
    )
    assert packaged in ("", loaded) or packaged.startswith(loaded)
    declared = getattr(row, "nccl", None)
    assert declared in (None, loaded)


def test_cudnn_is_the_one_installed(run: Run, row: Row) -> None:
    code = "import torch; v = torch.backends.cudnn.version(); print(v)"
    number = int(python(run, code))
    scale = 10_000 if number >= 90_000 else 1_000  # cuDNN 9 counts anew
    loaded = f"{number // scale}.{number % scale // 100}.{number % 100}"
    declared = getattr(row, "cudnn", None)
    assert declared is None or ".".join(str(declared).split(".")[:3]) == loaded


def test_the_container_runtime_is_asked_for_the_gpus(client: docker.DockerClient, image: str) -> None:
    settings = dict(entry.split("=", 1) for entry in client.images.get(image).attrs["Config"]["Env"])
    assert settings["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert settings["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"


def test_without_a_driver_torch_says_no_and_goes_on(run: Run) -> None:
    done = run(["python", "-c", "import torch; print(torch.cuda.is_available(), torch.cuda.device_count())"])
    assert (done.rc, done.out) == (0, "False 0\n"), done.err


def test_smddp_was_built_against_this_torch(run: Run) -> None:
    code = (
        "import torch, smdistributed.dataparallel.torch.torch_smddp;"
        " import smdistributed.dataparallel._C as c; print(c.__file__)"
    )
    assert "smdistributed/dataparallel/_C" in python(run, code)
