"""The three JSON files: what is read from them, and the one line that says what is wrong with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest
from shoal_entrypoint.configuration import load_job, load_resource
from shoal_entrypoint.outcome import JobError

RESOURCE = {"current_host": "algo-1", "hosts": ["algo-1", "algo-2"]}


def write(
    config: Path,
    resource: Mapping[str, object] | None = None,
    hyperparameters: str | Mapping[str, str] | None = None,
) -> None:
    (config / "resourceconfig.json").write_text(json.dumps(resource or RESOURCE))
    (config / "hyperparameters.json").write_text(
        hyperparameters if isinstance(hyperparameters, str) else json.dumps(hyperparameters or {})
    )


@pytest.mark.parametrize(
    ("resource", "error"),
    [
        ({"hosts": ["algo-1"]}, "current_host: missing"),
        ({"current_host": "algo-1"}, "hosts: missing"),
        ({"current_host": "algo-1", "hosts": "algo-1"}, 'hosts: list was expected, not "algo-1"'),
        ({"current_host": "algo-1", "hosts": []}, "hosts: a list of host names was expected, not []"),
        ({"current_host": "algo-3", "hosts": ["algo-1", "algo-2"]}, "algo-3 is not one of hosts algo-1, algo-2"),
        ({**RESOURCE, "instance_groups": [{"hosts": []}]}, 'instance_groups: {"hosts": []} has no instance_group_name'),
    ],
)
def test_what_is_wrong_with_resourceconfig_is_named(tmp_path: Path, resource: dict[str, object], error: str) -> None:
    write(tmp_path, resource)
    with pytest.raises(JobError) as caught:
        load_resource(tmp_path)
    assert caught.value.text.startswith(f"{tmp_path}/resourceconfig.json: ")
    assert error in caught.value.text
    assert "\n" not in caught.value.text


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{\n  "lr": "1",\n  oops\n}', ": line 3, column 3: not JSON: "),
        ("[1]", ": a JSON object was expected, not list"),
        ('{"lr": "1"}', ": sagemaker_program: missing. Name the script to run"),
        (
            '{"sagemaker_program": "a.py", "sagemaker_container_log_level": "loud"}',
            ": sagemaker_container_log_level: a number was expected, not 'loud'",
        ),
    ],
)
def test_what_is_wrong_with_hyperparameters_is_named(tmp_path: Path, text: str, error: str) -> None:
    write(tmp_path, hyperparameters=text)
    with pytest.raises(JobError) as caught:
        load_job(tmp_path, load_resource(tmp_path), {})
    assert caught.value.text.startswith(f"{tmp_path}/hyperparameters.json{error}")
    assert caught.value.exit_code == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(JobError, match=r"resourceconfig\.json: not found"):
        load_resource(tmp_path)


def test_the_environment_names_the_program_and_honours_what_it_says(tmp_path: Path) -> None:
    write(tmp_path, hyperparameters={"sagemaker_program": "a.py"})
    environ = {
        "SAGEMAKER_PROGRAM": "b.py",
        "SAGEMAKER_SUBMIT_DIRECTORY": "/somewhere",
        "SAGEMAKER_CONTAINER_LOG_LEVEL": "10",
        "TRAINING_JOB_NAME": "job-7",
        "AWS_REGION": "eu-west-1",
    }
    job = load_job(tmp_path, load_resource(tmp_path), environ)
    assert (job.program, job.submit_directory, job.log_level) == ("b.py", "/somewhere", 10)
    assert (job.job_name, job.region) == ("job-7", "eu-west-1")


GROUPS = [
    {"instance_group_name": "gpu", "instance_type": "ml.p4d.24xlarge", "hosts": ["algo-1", "algo-3"]},
    {"instance_group_name": "data", "instance_type": "ml.c5.xlarge", "hosts": ["algo-2"]},
]


@pytest.mark.parametrize(
    ("current", "group", "hyperparameters", "hosts", "master"),
    [
        ("algo-1", "gpu", {}, (), "algo-1"),
        ("algo-1", "gpu", {"sagemaker_mpi_enabled": "true"}, ("algo-1", "algo-3"), "algo-1"),
        ("algo-2", "data", {"sagemaker_mpi_enabled": "true"}, ("algo-2",), "algo-2"),
        (
            "algo-2",
            "data",
            {"sagemaker_mpi_enabled": "true", "sagemaker_distribution_instance_groups": '["gpu"]'},
            ("algo-1", "algo-3"),
            "algo-1",
        ),
        (
            "algo-2",
            "data",
            {"sagemaker_distribution_instance_groups": '["data", "gpu"]'},
            ("algo-1", "algo-3", "algo-2"),
            "algo-1",
        ),
    ],
)
def test_which_hosts_take_part(
    tmp_path: Path, current: str, group: str, hyperparameters: dict[str, str], hosts: tuple[str, ...], master: str
) -> None:
    resource = {
        "current_host": current,
        "current_group_name": group,
        "hosts": ["algo-1", "algo-2", "algo-3"],
        "instance_groups": GROUPS,
    }
    write(tmp_path, resource, {"sagemaker_program": "a.py", **hyperparameters})
    job = load_job(tmp_path, load_resource(tmp_path), {})
    assert job.distribution_hosts == hosts
    assert job.master == master
