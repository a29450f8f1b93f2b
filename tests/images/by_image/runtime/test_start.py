"""Containers as careful people start them: no network, not root, nothing writable."""

import docker
import pytest
from containers import LIMIT_SECONDS, Run

from shoal.image.versions import Row

pytestmark = pytest.mark.image

IMPORT = "import torch, smdistributed.dataparallel.torch.torch_smddp; print(torch.ones(2).sum().item())"
# Two ranks add their numbers, over each back end. One meeting for both: rank 0 of a second would wait for nobody.
SUM = """
import torch, torch.distributed as dist
import smdistributed.dataparallel.torch.torch_smddp
dist.init_process_group("gloo")
for backend in ("gloo", "smddp"):
    total = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(total, group=dist.new_group(backend=backend))
    if dist.get_rank() == 0:
        print(backend, total.item(), flush=True)
dist.barrier()
dist.destroy_process_group()
"""
# Two ranks cut a model in two; each says which half it has: in one write, or the two lines could mix.
MODEL_PARALLEL = """
import os
import smdistributed.modelparallel.torch as smp
smp.init({"partitions": 2, "microbatches": 2})
line = f"{smp.rank()} of {smp.size()} stage {smp.pp_rank()} of {smp.pp_size()}\\n"
os.write(1, line.encode())
smp.barrier()
"""
TORCHRUN = "torchrun --nproc-per-node 2 --master-addr 127.0.0.1 --local-addr 127.0.0.1 --no-python python"
NOT_ROOT = "1000:1000"


def two_ranks(launcher: str, script: str = SUM) -> list[str]:
    return ["sh", "-c", f"{launcher} -c '{script}'"]


def test_an_import_without_network_as_nobody_in_particular_on_a_read_only_root(run: Run) -> None:
    done = run(["python", "-c", IMPORT], user=NOT_ROOT, read_only=True)
    assert (done.rc, done.out) == (0, "2.0\n"), done.err


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="root"),
        pytest.param({"user": NOT_ROOT}, id="not-root"),
        pytest.param({"read_only": True, "tmpfs": {"/tmp": ""}}, id="read-only"),
        pytest.param({"cap_drop": ["ALL"], "security_opt": ["no-new-privileges"]}, id="no-capabilities"),
    ],
)
def test_two_ranks_add_over_gloo_and_smddp(run: Run, options: dict[str, object]) -> None:
    done = run(two_ranks(TORCHRUN), **options)
    assert (done.rc, done.out.split("\n")) == (0, ["gloo 3.0", "smddp 3.0", ""]), done.err


def test_two_ranks_of_mpirun(run: Run) -> None:
    launcher = "mpirun --allow-run-as-root --oversubscribe -np 2 smddprun python"
    done = run(two_ranks(launcher))
    assert (done.rc, done.out.split("\n")) == (0, ["gloo 3.0", "smddp 3.0", ""]), done.err


@pytest.mark.parametrize(
    "launcher",
    [TORCHRUN, "mpirun --allow-run-as-root --oversubscribe -np 2 smddprun python"],
    ids=["torchrun", "mpirun"],
)
def test_two_ranks_share_a_model(run: Run, row: Row, launcher: str) -> None:
    done = run(two_ranks(launcher, MODEL_PARALLEL))
    if not row.smp:
        assert "No module named" in done.err
        return
    assert (done.rc, sorted(done.out.splitlines())) == (0, ["0 of 2 stage 0 of 2", "1 of 2 stage 1 of 2"]), done.err


def test_python_compiles_nothing_at_start(client: docker.DockerClient, image: str, row: Row) -> None:
    """Every container would pay for it, and each would write into its own layer."""
    code = "import torch, lightning, torch.distributed.run, smdistributed.dataparallel.torch.torch_smddp"
    code += ", smdistributed.modelparallel.torch" if row.smp else ""
    container = client.containers.run(image, ["python", "-c", code], detach=True, network_mode="none")
    try:
        assert container.wait(timeout=LIMIT_SECONDS)["StatusCode"] == 0, container.logs()
        written = [str(change["Path"]) for change in container.diff() or []]
    finally:
        container.remove(force=True)
    assert [path for path in written if not path.startswith(("/tmp", "/dev"))] == []
