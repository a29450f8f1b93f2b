"""What `train` makes of the variables that a pod gets: the hosts of the job, each pod in its place."""

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from job_file import JobFile

sys.path.insert(0, str(Path(__file__).parents[3] / "entrypoint" / "src"))
discovery: Any = importlib.import_module("shoal_entrypoint.discovery")
configuration: Any = importlib.import_module("shoal_entrypoint.configuration")

TARGET = ("--to", "kubernetes", "--dry-run", "--namespace", "ml", "--output", "pvc://results")
PLACED = (*TARGET, "--channel", "train=pvc://data")
Shoal = Callable[..., str]


def sent(shoal: Shoal, job: JobFile, kind: str) -> list[dict[str, Any]]:
    job.request["ResourceConfig"]["InstanceCount"] = 3
    return list(yaml.safe_load_all(shoal("submit", job.write(), *PLACED, "--kind", kind)))


def variables(template: dict[str, Any]) -> dict[str, str]:
    """What a container finds: Kubernetes makes `$` of `$$`."""
    env = template["spec"]["containers"][0]["env"]
    return {each["name"]: each["value"].replace("$$", "$") for each in env if "value" in each}


@pytest.mark.parametrize("index", [0, 1, 2])
def test_pods_of_a_job(shoal: Shoal, job: JobFile, tmp_path: Path, index: int) -> None:
    template = sent(shoal, job, "Job")[-1]["spec"]["template"]
    hosts_file = tmp_path / "hosts"  # as the kubelet writes it for a pod with a subdomain
    domain = f"{template['spec']['subdomain']}.ml.svc.cluster.local"
    hosts_file.write_text(f"127.0.0.1 localhost\n10.0.0.{index} digits-{index}.{domain} digits-{index}\n")
    environ = {**variables(template), "JOB_COMPLETION_INDEX": str(index)}
    found = discovery.find(environ, discovery.Here(f"digits-{index}", hosts_file, tmp_path / "nowhere"))
    assert (list(found.hosts), found.place) == ([f"digits-{each}.{domain}" for each in range(3)], index)


@pytest.mark.parametrize(
    ("role", "name", "place"), [("Launcher", "launcher", 0), ("Worker", "worker-0", 1), ("Worker", "worker-1", 2)]
)
def test_pods_of_an_mpi_job(shoal: Shoal, job: JobFile, tmp_path: Path, role: str, name: str, place: int) -> None:
    replicas = sent(shoal, job, "MPIJob")[-1]["spec"]["mpiReplicaSpecs"]
    here = discovery.Here(f"digits-{name}", tmp_path / "nowhere", tmp_path / "nowhere")
    found = discovery.find(variables(replicas[role]["template"]), here)
    assert (len(found.hosts), found.place) == (3, place)
    assert found.hosts[place].startswith(f"digits-{name}.")


def test_the_files_are_those_that_train_reads(shoal: Shoal, job: JobFile, tmp_path: Path) -> None:
    objects = {value["kind"]: value for value in sent(shoal, job, "Job")}
    files, made = objects["ConfigMap"], objects["Job"]
    for name, text in files["data"].items():
        (tmp_path / name).write_text(text)
    (tmp_path / "resourceconfig.json").write_text('{"current_host": "a", "hosts": ["a"]}')
    read = configuration.load_job(tmp_path, configuration.load_resource(tmp_path), variables(made["spec"]["template"]))
    assert (read.program, read.submit_directory) == ("train.py", "/etc/shoal/sourcedir.tar.gz")
    assert (read.user_hyperparameters, list(read.inputs)) == ({"lr": 0.1}, ["train"])
    assert read.enabled("sagemaker_torch_distributed_enabled")
    assert read.job_name == "digits"
