"""What is in the image is what its row and its tag say."""

from pathlib import Path

import docker
import pytest
from containers import Run
from testinfra.host import Host

from shoal.image import measure
from shoal.image.names import Names
from shoal.image.versions import Row

pytestmark = pytest.mark.image

ROOT = Path(__file__).resolve().parents[4]


def test_measured_is_what_the_row_declares(client: docker.DockerClient, image: str, row: Row) -> None:
    assert measure.differences(row, measure.measure(client, image, ROOT)) == []


def test_the_tag_says_what_is_in_it(run: Run, tags: Names) -> None:
    """Asked of the programs themselves, not of the row."""
    code = (
        "import sys, torch; python = f'py{sys.version_info[0]}{sys.version_info[1]}'; cuda = torch.version.cuda;"
        " words = [torch.__version__.partition('+')[0], 'gpu' if cuda else 'cpu', python];"
        " words += ['cu' + ''.join(cuda.split('.')[:2])] if cuda else [];"
        " print('-'.join(words) + '-')"
    )
    assert tags.full.partition(":")[2].startswith(run(["python", "-c", code]).out.strip())


def test_torch_is_the_build_for_the_row_s_device(run: Run, row: Row) -> None:
    local = run(["python", "-c", "import torch; print(torch.__version__.partition('+')[2])"]).out.strip()
    assert local == "cpu" if row.device == "cpu" else not local.startswith("cpu")


def test_every_package_s_requirements_are_met(host: Host) -> None:
    done = host.run("pip check")
    assert done.rc == 0, done.stdout


def test_both_names_of_lightning_are_the_same_version(run: Run) -> None:
    code = "import lightning, pytorch_lightning as pl; print(lightning.__version__ == pl.__version__)"
    assert run(["python", "-c", code]).out == "True\n"


def test_mpi_and_mpi4py_belong_together(host: Host, row: Row) -> None:
    # Each rank in one write, or the two lines could mix.
    code = "import os; from mpi4py import MPI; os.write(1, f'{MPI.Get_library_version().split(\",\")[0]}\\n'.encode())"
    done = host.run("mpirun --allow-run-as-root --oversubscribe -np 2 python -c %s", code)
    assert done.rc == 0, done.stderr
    assert done.stdout.splitlines() == [f"Open MPI v{row.openmpi}"] * 2
