"""`distribution`: the hyperparameters each form stands for, as read off the Python SDK 2.257.7; what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.errors import ShoalError
from shoal.job import distribution, spec

Form = dict[str, Any]
ON: Form = {"enabled": True}
OFF: Form = {"enabled": False}
TYPE = {"sagemaker_instance_type": '"ml.c5.xlarge"'}
NO_OPTIONS = {"sagemaker_distributed_dataparallel_custom_mpi_options": '""'}
DDP = {"sagemaker_distributed_dataparallel_enabled": "true", **TYPE, **NO_OPTIONS}
NOT_DDP = {"sagemaker_distributed_dataparallel_enabled": "false", **TYPE}
TORCH = {"sagemaker_torch_distributed_enabled": "true", **TYPE}
MPI = {"sagemaker_mpi_enabled": "true", "sagemaker_mpi_custom_mpi_options": '""'}
OPTIONS = "-verbose -x NCCL_DEBUG=VERSION"

# What `PyTorch(image_uri=..., distribution=FORM).hyperparameters()` answered, but for what every job is sent.
SENT: list[tuple[Form, dict[str, str]]] = [
    ({}, {}),
    ({"smdistributed": {"dataparallel": ON}}, DDP),
    (
        {"smdistributed": {"dataparallel": {"enabled": True, "custom_mpi_options": OPTIONS}}},
        {**DDP, "sagemaker_distributed_dataparallel_custom_mpi_options": f'"{OPTIONS}"'},
    ),
    ({"smdistributed": {"dataparallel": OFF}}, NOT_DDP),
    ({"pytorchddp": ON}, DDP),
    ({"pytorchddp": {"enabled": "true"}}, {**DDP, "sagemaker_distributed_dataparallel_enabled": '"true"'}),
    ({"pytorchddp": OFF}, NOT_DDP),
    (
        {"pytorchddp": {"enabled": True, "custom_mpi_options": "-v"}},
        {**DDP, "sagemaker_distributed_dataparallel_custom_mpi_options": '"-v"'},
    ),
    ({"torch_distributed": ON}, TORCH),
    ({"torch_distributed": OFF}, {}),
    (
        {"mpi": {"enabled": True, "processes_per_host": 8, "custom_mpi_options": "-x A"}},
        {
            "sagemaker_mpi_enabled": "true",
            "sagemaker_mpi_num_of_processes_per_host": "8",
            "sagemaker_mpi_custom_mpi_options": '"-x A"',
        },
    ),
    ({"mpi": ON}, MPI),
    ({"mpi": OFF}, {**MPI, "sagemaker_mpi_enabled": "false"}),
    ({"parameter_server": ON}, {"sagemaker_parameter_server_enabled": "true"}),
    ({"mpi": ON, "parameter_server": ON}, {**MPI, "sagemaker_parameter_server_enabled": "true"}),
    ({"mpi": ON, "torch_distributed": ON}, TORCH),
    (
        {
            "smdistributed": {"modelparallel": {"enabled": True, "parameters": {"partitions": 2}}},
            "mpi": {"enabled": True, "processes_per_host": 2},
        },
        {**MPI, "sagemaker_mpi_num_of_processes_per_host": "2", "mp_parameters": '{"partitions": 2}', **NOT_DDP},
    ),
    (
        {"smdistributed": {"modelparallel": {"enabled": True, "parameters": {"hybrid_shard_degree": 2}}}},
        {"mp_parameters": '{"hybrid_shard_degree": 2}', **NOT_DDP},
    ),
    ({"smdistributed": {"modelparallel": {"enabled": False, "parameters": {"partitions": 2}}}}, NOT_DDP),
    ({"smdistributed": {"modelparallel": ON}, "torch_distributed": ON}, {**NOT_DDP, **TORCH}),
    ({"smdistributed": {"dataparallel": ON}, "torch_distributed": ON}, {**DDP, **TORCH}),
]
GROUPS = {
    "InstanceGroups": [
        {"InstanceGroupName": "gpu", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2},
        {"InstanceGroupName": "cpu", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
    ]
}
NAMED = {"sagemaker_distribution_instance_groups": '["gpu"]'}


@pytest.mark.parametrize(("form", "sent"), SENT, ids=[json.dumps(form) for form, _sent in SENT])
def test_each_form_stands_for_what_the_sdk_sends(request_: Form, form: Form, sent: dict[str, str]) -> None:
    assert distribution.problems(form, request_) == []
    assert distribution.hyperparameters(form, request_) == sent


def test_with_instance_groups(request_: Form) -> None:
    request_["ResourceConfig"] = GROUPS
    torch = {"torch_distributed": ON, "instance_groups": ["gpu"]}
    assert distribution.problems(torch, request_) == []
    assert distribution.hyperparameters(torch, request_) == {**NAMED, "sagemaker_torch_distributed_enabled": "true"}
    ddp = {"smdistributed": {"dataparallel": ON}, "instance_groups": ["gpu"]}
    assert distribution.hyperparameters(ddp, request_) == {**NAMED, **DDP, "sagemaker_instance_type": "null"}
    [problem] = distribution.problems({"mpi": ON}, request_)
    assert str(problem).startswith("distribution: the job has several instance groups")


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (3, "distribution: 3 is not an object"),
        ({"pytorchdpp": ON}, "distribution.pytorchdpp: no such form or option: did you mean pytorchddp?"),
        ({"pytorchxla": ON}, "distribution.pytorchxla: the SDK sends it only for images of its own"),
        ({"mpi": True}, "distribution.mpi: True is not an object"),
        ({"mpi": {}}, "distribution.mpi.enabled: is required and missing"),
        ({"mpi": {"enabled": "yes"}}, "distribution.mpi.enabled: 'yes' is not true or false"),
        ({"mpi": {**ON, "processes_per_host": True}}, "distribution.mpi.processes_per_host: True is not an integer"),
        ({"mpi": {**ON, "processes_per_host": 0}}, "distribution.mpi.processes_per_host: 0 is less than 1"),
        ({"smdistributed": {}}, "distribution.smdistributed: {} is not an object with"),
        ({"smdistributed": {"dataparalel": ON}}, "distribution.smdistributed.dataparalel: no such form or option: did"),
        (
            {"smdistributed": {"dataparallel": ON, "modelparallel": ON}},
            "distribution.smdistributed: has dataparallel and modelparallel: only one",
        ),
        ({"mpi": ON, "instance_groups": ["x"]}, "distribution.instance_groups: 'x' is no group"),
        ({"mpi": ON, "instance_groups": ["x", "y"]}, "distribution.instance_groups: ['x', 'y'] is not a list of one"),
    ],
)
def test_what_is_refused(request_: Form, form: object, expected: str) -> None:
    [problem] = distribution.problems(form, request_)
    assert str(problem).startswith(expected)


def test_a_job_file_is_the_request_with_the_hyperparameters(tmp_path: Path, request_: Form) -> None:
    file = tmp_path / "job.json"
    file.write_text(json.dumps({**request_, "HyperParameters": {"epochs": "3"}, "distribution": {"pytorchddp": ON}}))
    assert spec.load(file).request == {**request_, "HyperParameters": {"epochs": "3", **DDP}}
    file.write_text(json.dumps({**request_, "HyperParameters": TYPE, "distribution": {"pytorchddp": ON}}))
    with pytest.raises(ShoalError, match="is there, and distribution sets it too"):
        spec.load(file)
