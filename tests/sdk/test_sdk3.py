"""SDK v3's `ModelTrainer` with local containers: it brings its own drivers and leaves `train` out.

Its resourceconfig.json names a network interface that no container has; the image's `mpirun` looks through it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from sdk_process import Fit, ranks
from user_scripts import RANKS, WHEEL, Source, wheel

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.timeout(600)]

MPI = """
import json, os, pathlib
from mpi4py import MPI
import greeting
everyone = MPI.COMM_WORLD.allgather(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"])
found = json.dumps([everyone, greeting.WORD])
pathlib.Path(os.environ["SM_MODEL_DIR"], f"rank-{MPI.COMM_WORLD.rank}").write_text(found)
"""


def code(folder: Path, script: str = "train.py", **more: str) -> dict[str, Any]:
    return {"source_dir": str(folder), "entry_script": script, **more}


def test_torchrun_on_two_hosts_with_smddp(fit3: Fit, source: Source, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("hello")
    first = (
        "import smdistributed.dataparallel.torch.torch_smddp\nassert os.listdir(os.environ['SM_CHANNEL_DATA']) == ['x']"
    )
    folder = source(**{"train.py": RANKS.format(first=first, backend="smddp")})
    ended = fit3(
        code(folder),
        hosts=2,
        launcher="torchrun",
        options={"process_count_per_node": 1},
        hyperparameters={"lr": 0.1},
        environment={"EXTRA": "hello there"},
        inputs={"data": str(tmp_path / "data")},
    )
    assert not ended.error, ended.log
    found = ranks(ended)
    assert [(one["host"], one["local_rank"]) for one in found] == [("1", "0"), ("2", "0")]
    assert all((one["world"], one["same"], one["extra"]) == (2, True, "hello there") for one in found)


def test_mpi_on_one_host_with_requirements(fit3: Fit, source: Source) -> None:
    folder = source(**{"train.py": MPI, "requirements.txt": f"./{WHEEL}\n", WHEEL: wheel()})
    ended = fit3(
        code(folder, requirements="requirements.txt"),
        launcher="mpi",
        options={"process_count_per_node": 2},
    )
    assert not ended.error, ended.log
    assert [json.loads(text) for text in ended.model.values()] == [[["0", "1"], "from a wheel"]] * 2
    assert "mpirun: no network interface ethwe here: using eth0" in ended.log


def test_mpi_on_two_hosts(fit3: Fit, source: Source) -> None:
    """Its driver starts as many ranks in all as it was told for each host; the option corrects it."""
    ended = fit3(
        code(source(**{"train.py": MPI, "greeting.py": "WORD = ''"})),
        hosts=2,
        launcher="mpi",
        options={"process_count_per_node": 2, "mpi_additional_options": ["-np", "4"]},
    )
    assert not ended.error, ended.log
    assert [json.loads(text) for text in ended.model.values()] == [[["0", "1", "0", "1"], ""]] * 4


def test_a_script_that_fails(fit3: Fit, source: Source) -> None:
    """What the SDK says of it is compose's business: 1.29.2, Debian 12's, gives it an exit code of 0."""
    ended = fit3(code(source(**{"train.py": "raise ValueError('no such digit')\n"})))
    assert "ValueError: no such digit" in ended.log
    assert ended.output["failure"], ended.log
    assert ended.model == {}
