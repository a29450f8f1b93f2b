"""The commands and libraries of every image that trains."""

import pytest
from containers import Run
from testinfra.host import Host

from shoal.image.versions import Row

pytestmark = pytest.mark.image

# Of every shared library: what the loader does not find for it.
MISSING = """
import pathlib, re, subprocess, sysconfig
for library in pathlib.Path(sysconfig.get_path("platlib")).rglob("*.so*"):
    said = subprocess.run(["ldd", library], capture_output=True, text=True).stdout
    for name in re.findall(r"(\\S+) => not found", said):
        print(library.name, name)
"""
# smddp's binding is loaded behind torch's libraries, which are in the process then. mpi4py has one library for each MPI
# there is, and takes the one that is here. libcuda and NVIDIA's management library are part of the driver.
TORCH = ("libtorch", "libc10")
OTHER_MPI = {"libmpi.so.12", "libmpi.so.20", "libmpi.so.40", "libmpi_abi.so.0", "libmpi_abi.so.1"}
DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1"}
# Plug-ins that NVIDIA's libraries load where there is such hardware, and its libraries with it. (Triton's own are
# linked to its compiler, which loads them.)
PLUGINS = ("nvshmem_", "libcufile_rdma")
# torch 2.15's wheel has this without what it needs; nothing in the wheel needs it.
STRAYS = {("libgfortran.so.5", "libquadmath.so.0")}
# The solver for several GPUs, which torch does not load, comes without the path to what it needs.
UNUSED = "libcusolverMg.so"


@pytest.mark.parametrize("program", ["python", "pip", "bash", "mpirun", "torchrun", "smddprun", "smddp", "ssh", "sshd"])
def test_programs_are_on_path(host: Host, program: str) -> None:
    assert host.run("command -v %s", program).rc == 0


def test_every_library_finds_what_it_is_linked_to(run: Run) -> None:
    missing = [line.split() for line in run(["python", "-c", MISSING]).out.splitlines()]
    unexpected = [
        (library, name)
        for library, name in missing
        if name not in DRIVER
        and not library.startswith(PLUGINS)
        and name != "libtriton.so"
        and (library, name) not in STRAYS
        and not library.startswith(UNUSED)
        and not (library.startswith("_C.") and name.startswith(TORCH))
        and not (library.startswith("MPI.") and name in OTHER_MPI)
    ]
    assert unexpected == []


def test_smddp_is_a_back_end(run: Run) -> None:
    code = (
        "import torch.distributed as dist, smdistributed.dataparallel.torch.torch_smddp; "
        "print('smddp' in dist.Backend.backend_list)"
    )
    assert run(["python", "-c", code]).out == "True\n"


def test_imports_have_nothing_to_say(run: Run, row: Row) -> None:
    """A warning at import is in the log of every rank of every job."""
    code = "import torch, lightning, mpi4py.MPI, smdistributed.dataparallel.torch.torch_smddp"
    code += ", smdistributed.modelparallel.torch" if row.smp else ""
    done = run(["python", "-c", code])
    assert (done.rc, done.out, done.err) == (0, "", "")


def test_no_test_suites_of_packages(host: Host) -> None:
    found = host.check_output("find /opt/venv/lib/python3*/site-packages -type d -name tests ! -path '*/pip/*'")
    assert found == ""
    assert host.run("ls /opt/venv/lib/python3*/site-packages/torch/test").rc != 0


def test_numpy_s_own_testing_module_still_works(run: Run) -> None:
    code = "import numpy.testing, torch.testing; numpy.testing.assert_allclose([1.0], [1.0]); print('works')"
    assert run(["python", "-c", code]).out == "works\n"


def test_the_ssh_server_takes_no_passwords_for_root(run: Run) -> None:
    """Its effective configuration, with a host key as `train` makes one."""
    script = (
        "mkdir -p /run/sshd && ssh-keygen -q -t ed25519 -N '' -f /tmp/key"
        " && { [ -x /usr/lib/openssh/sshd ] && sshd=/usr/lib/openssh/sshd || sshd=/usr/sbin/sshd; }"
        " && $sshd -T -h /tmp/key"
    )
    done = run(["sh", "-c", script])
    assert done.rc == 0, done.err
    settings = dict(line.split(" ", 1) for line in done.out.splitlines() if " " in line)
    assert settings["permitemptypasswords"] == "no"
    assert settings["permitrootlogin"] in ("without-password", "prohibit-password", "forced-commands-only", "no")
    assert settings["pubkeyauthentication"] == "yes"
    assert settings["strictmodes"] == "yes"
