"""`--to slurm` on a real Slurm of two nodes: jobs that complete, fail, are stopped, wait; and what is refused."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from job_file import JobFile
from slurm_cluster import NODES, SlurmCluster, missing_tools, until

from shoal.submit.slurm import queue
from shoal.submit.slurm.target import Slurm

TO = ("--to", "slurm")
NO_CONTAINER = ("--container", "none")
Shoal = Callable[..., str]

SCRIPT = """
import os, pathlib, socket, sys
rank, channel = os.environ["RANK"], pathlib.Path(os.environ["SM_CHANNEL_TRAIN"])
assert sys.argv[1:] == ["--lr", "0.1"], sys.argv
model = pathlib.Path(os.environ["SM_MODEL_DIR"])
(model / f"rank-{rank}").write_text((channel / "x").read_text() + os.environ["WORLD_SIZE"])
print(f"rank {rank} on", os.environ["SM_CURRENT_HOST"], os.environ["PRICE"])
assert "SHOAL_JOB_SECRET_FILE" not in os.environ
print("secret of ranks:", os.environ["SMDDP_JOB_SECRET"])
"""
FAILS = """
import os, sys
if os.environ["RANK"] == "1":
    raise ValueError("boom")
"""
SAVES = """
import os, pathlib, signal, sys, time
def save(*_):
    pathlib.Path(os.environ["SM_MODEL_DIR"], "saved-" + os.environ["RANK"]).touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    if lacking := missing_tools():
        pytest.skip(f"a real Slurm needs {', '.join(lacking)}")
    cluster = SlurmCluster(tmp_path_factory.mktemp("slurm") / "cluster")
    yield cluster
    cluster.close()


@pytest.fixture
def slurm(cluster: SlurmCluster, job: JobFile, monkeypatch: pytest.MonkeyPatch) -> JobFile:
    """A job of a name that no other test has, whose channel is here, and Slurm's commands on PATH."""
    monkeypatch.setenv("PATH", f"{cluster.bin}:{os.environ['PATH']}")
    (job.path / "data").mkdir()
    (job.path / "data" / "x").write_text("hello ")
    job.request["TrainingJobName"] = f"job-{job.path.name}".replace("_", "-")[:63].rstrip("-")
    job.request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] = "file://data"
    job.request["OutputDataConfig"]["S3OutputPath"] = "file://runs"
    del job.request["HyperParameters"]["sagemaker_torch_distributed_enabled"]  # one process a host is enough here
    return job


def name(job: JobFile) -> str:
    return str(job.request["TrainingJobName"])


def run_folder(job: JobFile) -> Path:
    return job.path / "runs" / name(job)


def ended(shoal: Shoal, job: JobFile, exit_code: int = 0) -> dict[str, object]:
    """Wait for a job's end; return its description."""
    told: dict[str, object] = {}

    def is_over() -> bool:
        return Slurm().status(name(job)).state not in ("InProgress", "Stopping")

    until(is_over, f"end of {name(job)}", 120)
    told.update(json.loads(shoal("status", name(job), *TO, "--json", exit_code=exit_code)))
    return told


def write(job: JobFile, script: str) -> str:
    (job.path / "source" / "train.py").write_text(script)
    return job.write()


def test_a_job_of_two_nodes(slurm: JobFile, shoal: Shoal) -> None:
    file = write(slurm, SCRIPT)
    printed = shoal("submit", file, *TO, *NO_CONTAINER, "--dry-run")
    assert not (slurm.path / "runs").exists()
    assert shoal("submit", file, *TO, *NO_CONTAINER).endswith(f": {run_folder(slurm)}\n")
    assert (run_folder(slurm) / "job.sh").read_text() == printed
    lines = shoal("logs", name(slurm), *TO, "--follow").splitlines()
    assert ended(shoal, slurm)["TrainingJobStatus"] == "Completed"
    for rank, node in enumerate(NODES):
        assert f"{node} | rank {rank} on {node} $(HOME) $5" in "\n".join(lines)
        assert (run_folder(slurm) / "model" / f"rank-{rank}").read_text() == "hello 2"
    assert (run_folder(slurm) / "output" / "success").exists()
    secret = run_folder(slurm) / "config" / "secret"
    assert (secret.stat().st_mode & 0o777, len(secret.read_text().strip())) == (0o400, 64)
    of_ranks = [line.rpartition("secret of ranks: ")[2] for line in lines if "secret of ranks: " in line]
    assert len(of_ranks) == len(NODES)
    assert len(set(of_ranks)) == 1
    assert secret.read_text().strip() not in "\n".join(lines)


def test_a_job_that_fails(slurm: JobFile, shoal: Shoal) -> None:
    shoal("submit", write(slurm, FAILS), *TO, *NO_CONTAINER)
    told = ended(shoal, slurm, exit_code=1)
    assert (told["TrainingJobStatus"], told["SecondaryStatus"]) == ("Failed", "FAILED")
    assert "ValueError: boom" in str(told["FailureReason"])


def test_a_job_that_is_stopped_saves(slurm: JobFile, shoal: Shoal) -> None:
    shoal("submit", write(slurm, SAVES), *TO, *NO_CONTAINER)
    logs = [run_folder(slurm) / "logs" / f"{node}.log" for node in NODES]
    until(lambda: all(log.exists() and "ready" in log.read_text() for log in logs), "both hosts ready", 120)
    assert shoal("status", name(slurm), *TO).startswith(f"{name(slurm)}: InProgress (RUNNING)")
    shoal("stop", name(slurm), *TO)
    assert ended(shoal, slurm, exit_code=130)["TrainingJobStatus"] == "Stopped"
    assert sorted(path.name for path in (run_folder(slurm) / "model").iterdir()) == ["saved-0", "saved-1"]
    assert shoal("stop", name(slurm), *TO) == f"{name(slurm)}: has ended already\n"


def test_a_job_that_waits(slurm: JobFile, shoal: Shoal) -> None:
    shoal("submit", slurm.write(), *TO, *NO_CONTAINER, "--sbatch=--begin=now+1hour")
    assert "InProgress (PENDING" in shoal("status", name(slurm), *TO)
    shoal("stop", name(slurm), *TO)
    assert ended(shoal, slurm, exit_code=130)["SecondaryStatus"] == "CANCELLED"


def test_what_slurm_refuses_leaves_nothing(slurm: JobFile, refused: Shoal) -> None:
    line = refused("submit", slurm.write(), *TO, *NO_CONTAINER, "--sbatch=--partition=nowhere")
    assert line.startswith("sbatch: sbatch: error: invalid partition specified: nowhere")
    assert not run_folder(slurm).exists()


def test_a_run_folder_that_is_there(slurm: JobFile, refused: Shoal) -> None:
    run_folder(slurm).mkdir(parents=True)
    assert "is there already: give another name with --job-name" in refused("submit", slurm.write(), *TO)
    assert list(run_folder(slurm).iterdir()) == []


@pytest.mark.parametrize("verb", ["status", "logs", "stop"])
def test_a_job_that_slurm_does_not_know(slurm: JobFile, refused: Shoal, verb: str) -> None:
    assert refused(verb, "nobody", *TO).startswith("nobody: Slurm knows no such job of yours, or has forgotten it")


def test_a_line_of_the_accounting() -> None:
    found = queue.parse_accounted("7|CANCELLED by 1000|2|/fs/runs/digits")
    assert found == queue.QueuedJob("7", "CANCELLED", "", 2, Path("/fs/runs/digits"))


def test_nothing_is_kept_by_slurm_alone(slurm: JobFile, refused: Shoal) -> None:
    assert refused("stop", "any", *TO, "--remove").startswith("--remove: Slurm keeps its own records")


PLACED = (*TO, "--dry-run", "--output", "/fs/runs", "--channel", "train=/fs/data")


def test_a_container_of_pyxis(job: JobFile, shoal: Shoal) -> None:
    text = shoal("submit", job.write(), *PLACED, "--checkpoints", "/fs/saved")
    assert "--container-image='registry.example#train:1'" in text
    assert "--container-env=PRICE,EMPTY,TRAINING_JOB_NAME,SHOAL_JOB_SECRET_FILE" in text
    assert "export SHOAL_JOB_SECRET_FILE=/opt/ml/input/config/secret\n" in text
    mounts = text.partition("--container-mounts=")[2].split()[0].split(",")
    assert mounts == [
        "/fs/runs/digits/config/hyperparameters.json:/opt/ml/input/config/hyperparameters.json:ro",
        "/fs/runs/digits/config/inputdataconfig.json:/opt/ml/input/config/inputdataconfig.json:ro",
        "/fs/runs/digits/config/secret:/opt/ml/input/config/secret:ro",
        "/fs/runs/digits/code:/opt/ml/code",
        "/fs/runs/digits/model:/opt/ml/model",
        "/fs/runs/digits/output:/opt/ml/output",
        "/fs/data:/opt/ml/input/data/train:ro",
        "/fs/saved:/opt/ml/checkpoints",
    ]


def test_a_folder_of_checkpoints_in_the_job_file_is_the_nodes_too(job: JobFile, shoal: Shoal) -> None:
    job.request["CheckpointConfig"] = {"S3Uri": "file://saved", "LocalPath": "/opt/ml/mine"}
    text = shoal("submit", job.write(), *PLACED)
    assert f",{job.path}/saved:/opt/ml/mine" in text
    assert text.index(f"mkdir -p {job.path}/saved\n") < text.index("exec srun")
    assert f"ln -s {job.path}/saved " in shoal("submit", job.write(), *PLACED, *NO_CONTAINER)


def test_a_job_with_a_secret_of_its_own_gets_no_other(job: JobFile, shoal: Shoal) -> None:
    job.request["Environment"]["SHOAL_JOB_SECRET"] = "mine"
    text = shoal("submit", job.write(), *PLACED)
    assert "SHOAL_JOB_SECRET_FILE" not in text
    assert "config/secret" not in text


@pytest.mark.parametrize(
    ("image", "expected"),
    [("train:1", "'docker://train:1'"), ("/fs/train.sif", "/fs/train.sif"), ("a.b/c:1", "docker://a.b/c:1")],
)
def test_a_container_of_apptainer(job: JobFile, shoal: Shoal, image: str, expected: str) -> None:
    text = shoal("submit", job.write(), *PLACED, "--container", "apptainer", "--image", image)
    assert text.endswith(f"    {expected.strip(chr(39))} train\n")
    assert "apptainer exec --nv --writable-tmpfs --no-home" in text


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("train:1", "train:1"),
        ("a/b:1", "a/b:1"),
        ("localhost:5000/b", "'localhost:5000#b'"),
        ("/fs/a.sqsh", "/fs/a.sqsh"),
    ],
)
def test_images_as_enroot_writes_them(job: JobFile, shoal: Shoal, image: str, expected: str) -> None:
    text = shoal("submit", job.write(), *PLACED, "--image", image)
    assert f"--container-image={expected} " in text.replace("\n", " ")


@pytest.mark.parametrize("container", ["pyxis", "apptainer", "none"])
def test_the_shell_reads_the_script(job: JobFile, shoal: Shoal, container: str) -> None:
    job.request["Environment"]["QUOTED"] = 'it\'s "a"\nnew $line `ls`'
    text = shoal("submit", job.write(), *PLACED, "--container", container)
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    shellcheck = shutil.which("shellcheck")
    assert shellcheck
    # SC2016: the nodes' shell expands what this one must not.
    done = subprocess.run([shellcheck, "-e", "SC2016", "-"], input=text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stdout
    values = text.replace("exec srun", "env -0; exit\nexec srun")
    done = subprocess.run(["bash", "-c", values], text=True, capture_output=True, check=True)
    assert 'QUOTED=it\'s "a"\nnew $line `ls`' in done.stdout.split("\0")


def test_the_time_limit_leaves_the_grace(job: JobFile, shoal: Shoal) -> None:
    job.request["StoppingCondition"]["MaxRuntimeInSeconds"] = 601
    text = shoal("submit", job.write(), *PLACED)
    assert "#SBATCH --time=13\n#SBATCH --signal=TERM@120\n" in text


def nothing(job: JobFile) -> None:
    pass


def entrypoint(job: JobFile) -> None:
    job.request["AlgorithmSpecification"]["ContainerEntrypoint"] = ["run"]


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        (nothing, (*TO, "--output", "/fs"), "channel 'train' is not where the hosts are: give --channel train=PLACE"),
        (nothing, (*TO, "--channel", "train=/d"), "OutputDataConfig.S3OutputPath: 's3://bucket/runs' is no folder"),
        (nothing, (*PLACED, "--container", "podman"), "--container: 'podman' is not one of pyxis, apptainer, none"),
        (nothing, (*PLACED, "--sbatch", "partition"), "--sbatch 'partition': an option of sbatch was expected"),
        (nothing, (*PLACED, "--sbatch", "-p\nrm"), "an option of sbatch was expected"),
        (nothing, (*PLACED, "--output", "/fs/a b"), "--output: '/fs/a b/digits': Slurm takes no path with blanks"),
        (nothing, (*PLACED, "--channel", "train=/a:b"), "--channel 'train=/a:b': train is given twice"),
        (nothing, (*PLACED[:-1], "train=/a:b"), "'/a:b': pyxis mounts no path with a comma or a colon in it"),
        (
            entrypoint,
            (*PLACED, *NO_CONTAINER),
            "ContainerEntrypoint: needs a container: --container pyxis or apptainer",
        ),
    ],
)
def test_what_is_refused(
    job: JobFile, refused: Shoal, change: Callable[[JobFile], None], options: tuple[str, ...], expected: str
) -> None:
    change(job)
    assert expected in refused("submit", job.write(), *options)


def test_a_machine_without_slurm(job: JobFile, refused: Shoal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    placed = [option for option in PLACED if option != "--dry-run"]
    placed[placed.index("/fs/runs")] = str(job.path / "runs")
    assert refused("submit", job.write(), *placed).startswith("there is no sbatch on this machine: run this where")
    assert not (job.path / "runs" / "digits").exists()
