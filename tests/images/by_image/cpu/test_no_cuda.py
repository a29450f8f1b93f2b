"""An image for CPUs has nothing of CUDA: gigabytes that nobody could use."""

import pytest
from containers import Run
from testinfra.host import Host

pytestmark = pytest.mark.image


def test_no_package_of_cuda(host: Host) -> None:
    packages = host.pip.get_packages()
    assert [name for name in packages if name.lower().startswith(("nvidia", "cuda", "triton"))] == []


def test_no_library_of_cuda(host: Host) -> None:
    names = "libcud*.so*", "libnccl.so*", "libtorch_cuda*.so*", "libc10_cuda*.so*", "libnvrtc*.so*"
    either = " -o ".join(f"-name '{name}'" for name in names)
    assert host.check_output(f"find / -xdev '(' {either} ')' ! -path '/proc/*'") == ""


def test_torch_knows_that_there_is_none(run: Run) -> None:
    code = "import torch; print(torch.version.cuda, torch.cuda.is_available(), torch.backends.cuda.is_built())"
    assert run(["python", "-c", code]).out == "None False False\n"


def test_the_environment_asks_for_no_gpu(run: Run) -> None:
    settings = run(["env"]).out.splitlines()
    assert [line for line in settings if line.startswith(("NVIDIA_", "CUDA_"))] == []
