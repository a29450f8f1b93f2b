"""Details of the contract as tables. Each expectation was measured with the existing toolkit on the same files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from shoal_entrypoint import environment, plan
from shoal_entrypoint.configuration import Job, load_job, load_resource
from shoal_entrypoint.hyperparameters import to_arguments
from shoal_entrypoint.launchers import settings
from shoal_entrypoint.outcome import JobError


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
