"""Details of the contract as tables. Each expectation was measured with the existing toolkit on the same files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from shoal_entrypoint import environment, plan
from shoal_entrypoint.capture import Capture
from shoal_entrypoint.code import Entry, Kind, installs
from shoal_entrypoint.configuration import Job, load_job, load_resource
from shoal_entrypoint.devices import Devices
from shoal_entrypoint.explain import explain
from shoal_entrypoint.hyperparameters import to_arguments
from shoal_entrypoint.launchers import mpirun, settings
from shoal_entrypoint.outcome import JobError
from shoal_entrypoint.paths import Paths


def job(
    config: Path,
    hyperparameters: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    resource: Mapping[str, object] | None = None,
) -> Job:
    described = {"current_host": "algo-1", "hosts": ["algo-1"], **(resource or {})}
    (config / "resourceconfig.json").write_text(json.dumps(described))
    (config / "hyperparameters.json").write_text(json.dumps({"sagemaker_program": "a.py", **(hyperparameters or {})}))
    return load_job(config, load_resource(config), environ or {})


@pytest.mark.parametrize(
    ("hyperparameters", "environ", "exported", "job_name"),
    [
        ({}, {}, "", None),
        ({"sagemaker_job_name": '"sdk-name"'}, {}, "sdk-name", None),
        ({"sagemaker_job_name": '"sdk-name"'}, {"TRAINING_JOB_NAME": "job-1"}, "sdk-name", "job-1"),
        ({}, {"TRAINING_JOB_NAME": "job-1", "SAGEMAKER_JOB_NAME": "older"}, "", "job-1"),
    ],
)
def test_the_job_has_one_name_from_the_platform_and_one_from_the_sdk(
    tmp_path: Path, hyperparameters: dict[str, str], environ: dict[str, str], exported: str, job_name: str | None
) -> None:
    described = job(tmp_path, hyperparameters, environ)
    assert environment.host_environment(described, "algo-1")["SAGEMAKER_JOB_NAME"] == exported
    assert described.job_name == job_name


@pytest.mark.parametrize(
    ("hyperparameters", "environ", "region"),
    [
        ({"sagemaker_region": '"eu-west-1"'}, {"AWS_DEFAULT_REGION": "us-east-1"}, "eu-west-1"),
        ({"sagemaker_region": '""'}, {"AWS_DEFAULT_REGION": "us-east-1"}, ""),
        ({}, {"AWS_DEFAULT_REGION": "us-east-1", "AWS_REGION": "us-east-2"}, "us-east-1"),
        ({}, {}, ""),
    ],
)
def test_the_region(tmp_path: Path, hyperparameters: dict[str, str], environ: dict[str, str], region: str) -> None:
    described = job(tmp_path, hyperparameters, environ)
    assert environment.host_environment(described, "algo-1")["SAGEMAKER_REGION"] == region


@pytest.mark.parametrize("value", ["true", "True", '"true"', '"True"', "TRUE", "1", "yes", "[1]", "on"])
def test_flags_that_are_on(tmp_path: Path, value: str) -> None:
    assert settings.choose(job(tmp_path, {"sagemaker_mpi_enabled": value})) == settings.MPI


@pytest.mark.parametrize("value", ["false", "False", '"false"', "", '""', "0", "0.0", "null", "[]", "{}", "no", "None"])
def test_flags_that_are_off(tmp_path: Path, value: str) -> None:
    """The toolkit takes "False", which is no JSON, for on."""
    assert settings.choose(job(tmp_path, {"sagemaker_mpi_enabled": value})) == settings.PROCESS


def test_an_empty_list_of_groups_means_no_distribution(tmp_path: Path) -> None:
    described = job(tmp_path, {"sagemaker_mpi_enabled": "true", "sagemaker_distribution_instance_groups": "[]"})
    assert (described.distribution_groups, settings.choose(described)) == ((), settings.PROCESS)


def test_a_key_without_letters_is_an_empty_argument() -> None:
    assert to_arguments({"": 5}) == ["", "5"]


def test_the_installed_torch_counts_and_then_what_the_environment_says(tmp_path: Path) -> None:
    said = {"SM_DLC_TORCH_VERSION": "1.2"}
    assert plan.torch_version(said, [str(tmp_path)]) == "1.2"
    (tmp_path / "torch-2.13.0+cpu.dist-info").mkdir()
    assert plan.torch_version(said, [str(tmp_path)]) == "2.13.0+cpu"


@pytest.mark.parametrize(
    ("text", "parameters"),
    [
        (None, {}),
        ("", {}),
        ("{}", {}),
        ('{"partitions":2}', {"partitions": 2}),
    ],
)
def test_model_parallel_jobs_are_known_by_the_variable(text: str | None, parameters: dict[str, object]) -> None:
    env = {} if text is None else {"SM_HP_MP_PARAMETERS": text}
    assert plan.model_parallel(settings.MPI, env) == parameters
    assert plan.model_parallel(settings.TORCHRUN, env) == {}


@pytest.mark.parametrize("text", ["auto", "[]", "5"])
def test_mp_parameters_that_are_no_object_are_refused(text: str) -> None:
    with pytest.raises(JobError, match="mp_parameters: a JSON object was expected"):
        plan.model_parallel(settings.MPI, {"SM_HP_MP_PARAMETERS": text})


@pytest.mark.parametrize(
    ("hyperparameters", "groups", "launcher"),
    [
        ({}, (), settings.PROCESS),
        ({"sagemaker_mpi_enabled": "true"}, ("homogeneousCluster",), settings.MPI),
        (
            {"sagemaker_mpi_enabled": "true", "sagemaker_distribution_instance_groups": '["other"]'},
            ("other",),
            settings.PROCESS,
        ),
    ],
)
def test_without_groups_in_the_file_all_hosts_are_those_of_the_distribution(
    tmp_path: Path, hyperparameters: dict[str, str], groups: tuple[str, ...], launcher: str
) -> None:
    described = job(tmp_path, hyperparameters, resource={"hosts": ["algo-1", "algo-2"]})
    assert described.distribution_hosts == ("algo-1", "algo-2")
    assert (described.distribution_groups, settings.choose(described)) == (groups, launcher)


def variables(described: Job) -> dict[str, str]:
    devices = Devices(cpus=2, gpus=0, neurons=0, efa=False, infiniband=False)
    return environment.sm_environment(described, Paths.from_environment({}), devices, "eth0", {}, [])


@pytest.mark.parametrize(
    ("submitted", "told"),
    [
        ({}, "/opt/ml/code"),
        ({"sagemaker_submit_directory": '"s3://bucket/source.tar.gz"'}, "s3://bucket/source.tar.gz"),
        ({"sagemaker_submit_directory": "/opt/ml/src/"}, "/opt/ml/src/"),
    ],
)
def test_the_module_directory_is_where_the_code_is_from(tmp_path: Path, submitted: dict[str, str], told: str) -> None:
    found = variables(job(tmp_path, submitted))
    assert found["SM_MODULE_DIR"] == told
    assert json.loads(found["SM_TRAINING_ENV"])["module_dir"] == told


@pytest.mark.parametrize(("given", "told"), [(None, None), ("{}", False), ('{"partitions":2}', True)])
def test_model_parallel_is_told_by_the_environment_that_train_was_given(
    tmp_path: Path, given: str | None, told: bool | None
) -> None:
    environ = {} if given is None else {"SM_HP_MP_PARAMETERS": given}
    found = variables(job(tmp_path, {"mp_parameters": '{"ddp":true}'}, environ))
    assert json.loads(found["SM_TRAINING_ENV"])["is_modelparallel_enabled"] is told


def test_without_groups_in_the_file_the_host_s_group_has_no_hosts(tmp_path: Path) -> None:
    assert variables(job(tmp_path))["SM_CURRENT_INSTANCE_GROUP_HOSTS"] == "[]"


@pytest.mark.parametrize("topology", [[], {}, None, [{"hostName": "algo-1", "capacityUnitId": "u"}]])
def test_the_topology_is_told_as_given(tmp_path: Path, topology: object) -> None:
    found = variables(job(tmp_path, resource={"topology": topology}))
    assert json.loads(found["SM_TRAINING_ENV"])["topology"] == topology
    assert ("SM_TOPOLOGY" in found) is bool(topology)


def test_a_host_in_no_group_does_not_run_the_job_alone(tmp_path: Path) -> None:
    groups = [{"instance_group_name": "gpu", "hosts": ["algo-1"]}]
    resource = {"instance_groups": groups, "current_group_name": "gpus"}
    assert settings.choose(job(tmp_path, resource=resource)) == settings.PROCESS
    with pytest.raises(JobError, match=r"current_group_name: gpus: algo-1 is in no such group .* \(gpu\)"):
        settings.choose(job(tmp_path, {"sagemaker_torch_distributed_enabled": "true"}, resource=resource))


@pytest.mark.parametrize(("kind", "first"), [(Kind.PROGRAM, "-r"), (Kind.PACKAGE, ".")])
def test_pip_s_command_is_the_known_one(tmp_path: Path, kind: str, first: str) -> None:
    (tmp_path / "requirements.txt").write_text("")
    ((_, argv),) = installs(Entry(kind, "train.py"), tmp_path)
    assert argv[1:5] == ["-m", "pip", "install", first]
    assert argv[-2:] == ["-r", "requirements.txt"]


def test_a_shell_s_command_is_the_known_one() -> None:
    assert Entry(Kind.COMMAND, "train.sh").argv([]) == ["/bin/sh", "-c", "./train.sh "]
    assert Entry(Kind.COMMAND, "train.sh").argv(["--a", "x y"])[2] == "./train.sh --a 'x y'"


def test_words_after_two_dashes_are_mpirun_s() -> None:
    debug, words = mpirun.custom_options("-x A --NCCL_DEBUG WARN -- --NCCL_DEBUG B", {})
    assert (debug, words) == ("WARN", ["-x", "A", "--", "--NCCL_DEBUG", "B"])


@pytest.mark.parametrize("options", [["-x"], 5, True])
def test_custom_options_that_are_no_text_are_refused(options: object) -> None:
    with pytest.raises(JobError, match="custom_mpi_options: a text"):
        mpirun.custom_options(options, {})


def test_a_script_that_cannot_be_read_is_explained_by_the_error_first() -> None:
    stderr = Capture()
    stderr.feed(b'  File "/opt/ml/code/train.py", line 1\n    def (\n        ^\nSyntaxError: invalid syntax\n')
    message = explain(Capture(), stderr, None).splitlines()
    assert message[:2] == ["SyntaxError: invalid syntax", '  File "/opt/ml/code/train.py", line 1']
