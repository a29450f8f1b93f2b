"""`shoal wheel`: the wheel of a row works in a container that has the row's torch and nothing else of ours."""

import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from rich.console import Console

from shoal.image.progress import Progress
from shoal.image.stages import build_stage
from shoal.image.versions import Versions

pytestmark = pytest.mark.image

ROOT = Path(__file__).resolve().parents[2]
NAME = "2.13-cpu"
TORCH_ALONE = "shoal-test-torch:wheel"
# Two ranks over loopback; the sum of their ranks is 1.
SCRIPT = """
import sys

import torch
import torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp
dist.init_process_group("smddp")
tensor = torch.full((5,), float(dist.get_rank()))
dist.all_reduce(tensor)
sys.stdout.write(f"{tensor.tolist()}\\n")
dist.destroy_process_group()
"""


@pytest.fixture
def torch_alone(client: docker.DockerClient, versions: Versions) -> Iterator[str]:
    """Build the stage that has torch but not smddp: somebody's own container."""
    build_stage(client, versions, NAME, ROOT, "torch", ["--tag", TORCH_ALONE], Progress(Console(file=io.StringIO())))
    yield TORCH_ALONE
    client.images.remove(TORCH_ALONE, force=True)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel as the command makes it."""
    folder = tmp_path_factory.mktemp("wheels")
    command = [sys.executable, "-m", "shoal", "wheel", NAME, "--output", str(folder), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    [path] = json.loads(done.stdout)["wheels"]
    assert [str(one) for one in folder.iterdir()] == [path]
    return Path(path)


def test_it_asks_for_no_newer_system_than_the_documentation_says(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        [library] = [name for name in archive.namelist() if name.endswith(".so")]
        path = archive.extract(library, tmp_path)
    symbols = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=True).stdout
    newest = {
        library: max(tuple(map(int, found.split("."))) for found in re.findall(rf"\({library}_([\d.]+)\)", symbols))
        for library in ("GLIBC", "GLIBCXX")
    }
    assert newest["GLIBC"] <= (2, 34)
    assert newest["GLIBCXX"] <= (3, 4, 30)


def test_the_wheel_works_where_there_is_that_torch(
    client: docker.DockerClient, torch_alone: str, wheel: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "wheels"
    folder.mkdir()
    shutil.copy(wheel, folder)
    (folder / "two_ranks.py").write_text(SCRIPT)
    inside = (
        "pip install --quiet --root-user-action=ignore --no-index --no-deps /wheels/*.whl"
        " && torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --master-port 29500 /wheels/two_ranks.py"
    )
    mounts = {str(folder): {"bind": "/wheels", "mode": "ro"}}
    said = client.containers.run(
        torch_alone, ["sh", "-c", inside], remove=True, network_mode="none", volumes=mounts, shm_size="256m"
    )
    assert said.decode().splitlines() == [str([1.0] * 5)] * 2


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "shoal", "wheel", NAME, "--output", str(tmp_path / "file" / "wheels")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"shoal: --output {tmp_path}/file/wheels: cannot be made: Not a directory\n"
