"""Manifests: what the cluster's own schemas say of them, what a host sees in them, and what is refused."""

import base64
import io
import json
import random
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
import schemas
import yaml
from job_file import JobFile

TARGET = ("--to", "kubernetes", "--dry-run", "--namespace", "ml", "--output", "pvc://results/runs")
PLACED = (*TARGET, "--channel", "train=nfs://filer/export/digits")
EVERYTHING = (
    *("--kind", "Job", "--checkpoints", "hostpath:///mnt/checkpoints", "--limit", "nvidia.com/gpu=8"),
    *("--limit", "memory=64Gi", "--node-selector", "gpu=h100", "--service-account", "trainer", "--pull-secret", "key"),
    "--network-policy",
)
KINDS = ("Job", "MPIJob", "PyTorchJob", "TrainJob")

Shoal = Callable[..., str]


def objects(text: str) -> dict[str, dict[str, Any]]:
    return {value["kind"]: value for value in yaml.safe_load_all(text)}


def needs(kind: str) -> None:
    if not schemas.has(kind):
        pytest.skip(f"the CRD of {kind} is not here: SHOAL_CRD_SCHEMAS names the folder that has it")


@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_the_schemas_accept_what_is_sent(job: JobFile, shoal: Shoal, kind: str, hosts: int) -> None:
    needs(kind)
    job.request["ResourceConfig"]["InstanceCount"] = hosts
    sent = objects(shoal("submit", job.write(), *PLACED, *EVERYTHING, "--kind", kind))
    assert {name: schemas.problem(value) for name, value in sent.items()} == dict.fromkeys(sent)
    assert list(sent)[-1] == kind


@pytest.mark.parametrize("kind", KINDS)
def test_the_schemas_refuse_a_misspelt_field(job: JobFile, shoal: Shoal, kind: str) -> None:
    needs(kind)
    sent = objects(shoal("submit", job.write(), *PLACED, "--kind", kind))[kind]
    sent["spec"]["activeDeadlineSecond"] = 3
    assert "activeDeadlineSecond" in str(schemas.problem(sent))


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_host_s_name_fits(job: JobFile, shoal: Shoal, refused: Shoal, kind: str) -> None:
    job.request["ResourceConfig"]["InstanceCount"] = 11
    line = refused("submit", job.write(), *PLACED, "--kind", kind, "--job-name", "a" * 63)
    longest = int(line.partition(" characters at most")[0].rpartition(" ")[2])
    assert line.startswith(f"TrainingJobName: '{'a' * 63}' cannot name a {kind} of 11 hosts")
    shoal("submit", job.write(), *PLACED, "--kind", kind, "--job-name", "a" * longest)
    suffix = {"Job": "-10", "MPIJob": "-worker-9", "PyTorchJob": "-worker-9", "TrainJob": "-node-0-10"}[kind]
    assert longest + len(suffix) == 63 or kind == "MPIJob"  # MPIJob's launcher has the longer one


def test_a_host_of_a_job(job: JobFile, shoal: Shoal) -> None:
    sent = objects(shoal("submit", job.write(), *PLACED, *EVERYTHING))
    spec = sent["Job"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["activeDeadlineSeconds"]) == (2, 2, 600)
    pod = spec["template"]["spec"]
    assert pod["subdomain"] == sent["Service"]["metadata"]["name"] == "digits"
    container = pod["containers"][0]
    assert (container["image"], container["args"]) == ("registry.example/train:1", ["train"])
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "8", "memory": "64Gi"}
    values = {each["name"]: each.get("value") for each in container["env"]}
    assert values["SHOAL_HOST_COUNT"] == "2"
    assert values["PRICE"] == "$$(HOME) $$5"  # Kubernetes makes one of two
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert mounts["/opt/ml/input/data/train"]["readOnly"]
    assert mounts["/opt/ml/model"]["subPath"] == "runs/digits/model"
    assert mounts["/opt/ml/output/data"]["subPathExpr"] == "runs/digits/output/$(SHOAL_POD)"
    assert "/opt/ml/checkpoints" in mounts
    assert {each["mountPath"] for each in container["volumeMounts"] if each["name"] == "job"} == {
        "/etc/shoal",
        "/opt/ml/input/config/hyperparameters.json",
        "/opt/ml/input/config/inputdataconfig.json",
    }
    assert {each["name"] for each in pod["volumes"]} == {each["name"] for each in container["volumeMounts"]}


def test_the_job_s_files(job: JobFile, shoal: Shoal) -> None:
    files = objects(shoal("submit", job.write(), *PLACED))["ConfigMap"]
    parameters = json.loads(files["data"]["hyperparameters.json"])
    archive = json.loads(parameters["sagemaker_submit_directory"])
    assert archive == "/etc/shoal/sourcedir.tar.gz"
    assert parameters["lr"] == "0.1"
    assert json.loads(files["data"]["inputdataconfig.json"])["train"]["ContentType"] == "text/csv"
    content = base64.b64decode(files["binaryData"]["sourcedir.tar.gz"])
    with tarfile.open(fileobj=io.BytesIO(content)) as packed:
        assert packed.getnames() == ["train.py"]


def containers(value: Any) -> list[dict[str, Any]]:
    """Return everything in an object that has variables."""
    if isinstance(value, dict):
        return [value] * ("env" in value) + [found for each in value.values() for found in containers(each)]
    return [found for each in value for found in containers(each)] if isinstance(value, list) else []


@pytest.mark.parametrize("kind", KINDS)
def test_every_host_knows_the_job_s_secret(job: JobFile, shoal: Shoal, kind: str) -> None:
    sent = objects(shoal("submit", job.write(), *PLACED, "--kind", kind))
    reference = {"secretKeyRef": {"name": sent["Secret"]["metadata"]["name"], "key": "secret"}}
    found = containers(sent[kind])
    assert len(found) == (2 if kind in ("MPIJob", "PyTorchJob") else 1)
    for each in found:
        assert {"name": "SHOAL_JOB_SECRET", "valueFrom": reference} in each["env"]


def test_a_job_without_a_secret_or_with_its_own_gets_none(job: JobFile, shoal: Shoal) -> None:
    text = shoal("submit", job.write(), *PLACED, "--no-job-secret")
    assert "Secret" not in objects(text)
    assert "JOB_SECRET" not in text
    job.request["Environment"]["SHOAL_JOB_SECRET_FILE"] = "/mine"
    text = shoal("submit", job.write(), *PLACED)
    assert "Secret" not in objects(text)
    assert text.count("JOB_SECRET") == 1


def test_only_pods_of_the_job_reach_its_pods(job: JobFile, shoal: Shoal) -> None:
    assert "NetworkPolicy" not in objects(shoal("submit", job.write(), *PLACED))
    sent = objects(shoal("submit", job.write(), *PLACED, "--network-policy"))
    labels = sent["Job"]["spec"]["template"]["metadata"]["labels"]
    policy = sent["NetworkPolicy"]["spec"]
    assert policy["podSelector"]["matchLabels"] == labels
    assert policy["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]
    assert policy["policyTypes"] == ["Ingress"]


def test_mpi_hosts_are_those_of_the_operator_s_hostfile(job: JobFile, shoal: Shoal) -> None:
    spec = objects(shoal("submit", job.write(), *PLACED, "--kind", "MPIJob"))["MPIJob"]["spec"]
    env = spec["mpiReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]["env"]
    hosts = {each["name"]: each.get("value") for each in env}["SHOAL_HOSTS"]
    assert hosts == "digits-launcher.digits.ml.svc,digits-worker-0.digits.ml.svc"


def test_what_is_left_out_is_named(job: JobFile, shoal: Any) -> None:
    job.request["Tags"] = [{"Key": "a", "Value": "b"}]
    job.request["StoppingCondition"]["MaxWaitTimeInSeconds"] = 900
    shoal("submit", job.write(), *PLACED)
    assert shoal.err == "no effect there: Tags, StoppingCondition.MaxWaitTimeInSeconds\n"


def test_checkpoints_that_nobody_keeps_are_told(job: JobFile, shoal: Any) -> None:
    job.request["CheckpointConfig"] = {"S3Uri": "s3://bucket/saved"}
    shoal("submit", job.write(), *PLACED)
    assert "no effect there: CheckpointConfig (to keep checkpoints, give --checkpoints PLACE)" in shoal.err
    shoal("submit", job.write(), *PLACED, "--checkpoints", "pvc://saved")
    assert shoal.err == ""


def test_text_is_text_to_every_reader_of_yaml(job: JobFile, shoal: Shoal) -> None:
    values = {"LR": "1e-3", "MODE": "0o17", "YES": "y", "HALF": ".5", "WORD": "train", "LINES": "1\n2"}
    job.request["Environment"] = values
    job.request["AlgorithmSpecification"]["ContainerArguments"] = ["--lr", "1E5"]
    text = shoal("submit", job.write(), *PLACED)
    found = {each["name"]: each.get("value") for each in containers(objects(text)["Job"])[0]["env"]}
    assert values.items() <= found.items()
    for word in ("1e-3", "0o17", "y", ".5"):
        assert f"value: '{word}'\n" in text
    assert "- '1E5'\n" in text
    assert "value: train\n" in text


def test_slots_are_a_number_that_the_operator_takes(job: JobFile, shoal: Shoal) -> None:
    for given, sent in (("0", 1), ("8", 8), ("99999999999", 2147483647), ("many", 1)):
        job.request["HyperParameters"]["sagemaker_mpi_num_of_processes_per_host"] = given
        found = objects(shoal("submit", job.write(), *PLACED, "--kind", "MPIJob"))["MPIJob"]
        assert found["spec"]["slotsPerWorker"] == sent


def test_a_dollar_in_a_place_is_no_variable(job: JobFile, shoal: Shoal) -> None:
    sent = objects(shoal("submit", job.write(), *PLACED, "--output", "pvc://results/$(HOME)"))
    mounts = {m["mountPath"]: m for m in sent["Job"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]}
    assert mounts["/opt/ml/model"]["subPath"] == "$(HOME)/digits/model"
    assert mounts["/opt/ml/output/data"]["subPathExpr"] == "$$(HOME)/digits/output/$(SHOAL_POD)"


def large(job: JobFile) -> None:
    (job.path / "source" / "weights").write_bytes(random.Random(1).randbytes(1 << 20))


def groups(job: JobFile) -> None:
    group = {"InstanceType": "ml.c5.xlarge", "InstanceCount": 1}
    names = [{**group, "InstanceGroupName": name} for name in ("a", "b")]
    job.request["ResourceConfig"] = {"InstanceGroups": names, "VolumeSizeInGB": 1}


def pipe(job: JobFile) -> None:
    job.request["InputDataConfig"][0]["InputMode"] = "Pipe"


def manifest(job: JobFile) -> None:
    job.request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3DataType"] = "ManifestFile"


def sharded(job: JobFile) -> None:
    job.request["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3DataDistributionType"] = "ShardedByS3Key"


def isolated(job: JobFile) -> None:
    job.request["EnableNetworkIsolation"] = True


def no_source(job: JobFile) -> None:
    job.request["HyperParameters"]["sagemaker_submit_directory"] = "file://nowhere"


def kept_over_data(job: JobFile) -> None:
    job.request["CheckpointConfig"] = {"S3Uri": "s3://bucket/saved", "LocalPath": "/opt/ml/input/data"}


def nothing(job: JobFile) -> None:
    pass


@pytest.mark.parametrize(
    ("change", "options", "expected"),
    [
        (nothing, TARGET, "InputDataConfig[0]: channel 'train' is not where the hosts are: give --channel train=PLACE"),
        (nothing, (*PLACED, "--channel", "x=pvc://a"), "--channel: 'x' is not a channel of this job"),
        (nothing, (*PLACED[:-1], "train=/data"), "--channel train: '/data': write pvc://CLAIM[/PATH], nfs://"),
        (nothing, (*PLACED[:-1], "train=pvc://a/../b"), "`..` cannot be part of a path in a volume"),
        (nothing, (*PLACED[:-1], "train"), "--channel 'train': write NAME=PLACE"),
        (nothing, PLACED[:5] + PLACED[7:], "--output is needed: where the model is to lie"),
        (nothing, (*PLACED, "--kind", "Jobs"), "--kind: 'Jobs' is not one of Job, MPIJob, PyTorchJob, TrainJob"),
        (nothing, (*PLACED, "--namespace", "Bad Name"), "--namespace 'Bad Name': small letters, digits and - were"),
        (nothing, (*PLACED, "--limit", "a b=3"), "--limit a b=3: no resource is called so: cpu, memory,"),
        (nothing, (*PLACED, "--node-selector", "gpu=h 100"), "--node-selector gpu=h 100: is no label: letters"),
        (nothing, (*PLACED, "--limit", "cpu=many"), "--limit cpu=many: a quantity was expected"),
        (nothing, (*PLACED, "--job-name", "Digits"), "TrainingJobName: 'Digits' cannot name a Job of 2 hosts"),
        (nothing, (*PLACED, "--limit", "memory=64ki"), "--limit memory=64ki: a quantity was expected"),
        (nothing, (*PLACED, "--service-account", "A b"), "--service-account 'A b': small letters, digits, - and ."),
        (nothing, (*PLACED, "--pull-secret", ""), "--pull-secret '': small letters, digits, - and . were expected"),
        (nothing, (*PLACED, "--kind", "TrainJob", "--runtime", "a_b"), "--runtime 'a_b': small letters"),
        (kept_over_data, PLACED, "CheckpointConfig.LocalPath: '/opt/ml/input/data' cannot be kept: the default is"),
        (large, PLACED, "bytes, and Kubernetes takes 1048576: put the folder into the image"),
        (groups, PLACED, "ResourceConfig.InstanceGroups: there are 2: only one kind of host can be"),
        (pipe, PLACED, "InputDataConfig[0]: Pipe mode needs SageMaker: use File or FastFile"),
        (
            manifest,
            PLACED,
            "InputDataConfig[0].S3DataType: ManifestFile needs SageMaker: hosts are given",
        ),
        (sharded, PLACED, "InputDataConfig[0].S3DataDistributionType: ShardedByS3Key needs SageMaker: let the script"),
        (isolated, PLACED, "EnableNetworkIsolation: cannot be promised there"),
        (no_source, PLACED, "HyperParameters.sagemaker_submit_directory: there is no folder"),
    ],
)
def test_what_is_refused(
    job: JobFile, refused: Shoal, change: Callable[[JobFile], None], options: tuple[str, ...], expected: str
) -> None:
    change(job)
    assert expected in refused("submit", job.write(), *options)
