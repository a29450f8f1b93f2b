"""From a request to what each host gets, and what a local run refuses."""

import json
from pathlib import Path
from typing import Any

import pytest

from shoal.job import local, spec
from shoal.job.plan import Kept, Mount, Plan, make_plan
from shoal.job.spec import JobFile
from shoal.submit import portable

Request = dict[str, Any]


def plan_of(request: Request, folder: Path = Path("/jobs")) -> Plan:
    return make_plan(JobFile(folder / "job.json", request), request)


def config(plan: Plan, host: int, name: str) -> Any:
    return json.loads(plan.hosts[host].config[f"{name}.json"])


def test_hosts_files_and_paths(request_: Request) -> None:
    plan = plan_of(request_)
    assert [host.name for host in plan.hosts] == ["algo-1", "algo-2"]
    assert plan.run_folder == Path("/jobs/runs/job")
    assert plan.hosts[1].mounts == (Mount(Path("/jobs/data"), "/opt/ml/input/data/train"),)
    assert (plan.entrypoint, plan.command) == (None, ("train",))
    assert config(plan, 1, "resourceconfig") == {
        "current_group_name": "homogeneousCluster",
        "current_host": "algo-2",
        "current_instance_type": "ml.c5.xlarge",
        "hosts": ["algo-1", "algo-2"],
        "instance_groups": [
            {
                "hosts": ["algo-1", "algo-2"],
                "instance_group_name": "homogeneousCluster",
                "instance_type": "ml.c5.xlarge",
            }
        ],
        "network_interface_name": "eth0",
        "topology": None,
    }
    assert config(plan, 0, "inputdataconfig") == {
        "train": {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
    }


def test_instance_groups_number_hosts_across_groups_and_restrict_channels(request_: Request) -> None:
    request_["ResourceConfig"] = {
        "InstanceGroups": [
            {"InstanceGroupName": "gpu", "InstanceType": "ml.p4d.24xlarge", "InstanceCount": 2},
            {"InstanceGroupName": "data", "InstanceType": "ml.c5.xlarge", "InstanceCount": 1},
        ]
    }
    request_["InputDataConfig"][0]["DataSource"]["S3DataSource"]["InstanceGroupNames"] = ["data"]
    plan = plan_of(request_)
    last = config(plan, 2, "resourceconfig")
    assert (last["current_host"], last["current_group_name"]) == ("algo-3", "data")
    assert last["current_instance_type"] == "ml.c5.xlarge"
    assert [group["hosts"] for group in last["instance_groups"]] == [["algo-1", "algo-2"], ["algo-3"]]
    assert [list(config(plan, i, "inputdataconfig")) for i in range(3)] == [[], [], ["train"]]
    assert [len(host.mounts) for host in plan.hosts] == [0, 0, 1]


@pytest.mark.parametrize("written", ["file://src", '"file://src"'])
def test_the_source_folder_becomes_opt_ml_code(request_: Request, written: str) -> None:
    request_["HyperParameters"] = {"sagemaker_submit_directory": written, "epochs": "3"}
    plan = plan_of(request_)
    assert plan.code == "file:///jobs/src"
    assert config(plan, 0, "hyperparameters") == {"sagemaker_submit_directory": '"/opt/ml/code"', "epochs": "3"}


def test_other_hyperparameters_are_sent_as_they_are(request_: Request) -> None:
    request_["HyperParameters"] = {
        "a": '"x"',
        "b": "1e-05",
        "c": "[1, 2]",
        "sagemaker_submit_directory": "/opt/ml/code",
    }
    plan = plan_of(request_)
    assert plan.code is None
    assert config(plan, 0, "hyperparameters") == request_["HyperParameters"]


def test_the_environment_cannot_hide_the_name_of_the_job(request_: Request) -> None:
    request_["Environment"] = {"A": "b c", "TRAINING_JOB_NAME": "other"}
    environment = plan_of(request_).environment
    assert environment["A"] == "b c"
    assert environment["TRAINING_JOB_NAME"] == "job"
    assert environment["TRAINING_JOB_ARN"].endswith(":training-job/job")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ContainerEntrypoint": ["/bin/bash"], "ContainerArguments": ["-c", "x"]}, (("/bin/bash",), ("-c", "x"))),
        ({"ContainerEntrypoint": ["/start"]}, (("/start",), ())),
        ({"ContainerArguments": ["serve"]}, (None, ("serve",))),
    ],
)
def test_entrypoint_and_arguments(request_: Request, fields: Request, expected: object) -> None:
    request_["AlgorithmSpecification"].update(fields)
    plan = plan_of(request_)
    assert (plan.entrypoint, plan.command) == expected


def test_a_channel_of_one_file_is_a_folder_with_it(request_: Request, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("one object")
    plan = plan_of(request_, tmp_path)
    assert plan.hosts[0].mounts == (Mount(tmp_path / "data", "/opt/ml/input/data/train/data"),)


def test_what_the_command_line_says_wins_and_the_file_stays(request_: Request, tmp_path: Path) -> None:
    request_["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3Uri"] = "s3://bucket/data"
    request_["OutputDataConfig"]["S3OutputPath"] = "s3://bucket/runs"
    folder = tmp_path / "with space"
    changed = local.override(request_, name="other", output=tmp_path / "out", source=folder, channels={"train": folder})
    assert local.refusals(changed, {"train": folder}) == []
    plan = plan_of(changed)
    assert plan.name == "other"
    assert plan.run_folder == tmp_path / "out" / "other"
    assert plan.code == folder.as_uri()
    assert plan.hosts[0].mounts[0].source == folder
    assert request_["TrainingJobName"] == "job"


def test_a_channel_cannot_be_mounted_over_its_parents(request_: Request) -> None:
    request_["InputDataConfig"][0]["ChannelName"] = ".."
    assert [str(p) for p in local.refusals(request_, {})] == ["InputDataConfig[0].ChannelName: '..' names no folder"]


def test_a_submit_directory_is_text_however_it_looks(request_: Request) -> None:
    request_["HyperParameters"] = {"sagemaker_submit_directory": "[" * 2500}
    assert local.submit_directory(request_) == "[" * 2500


def test_a_serverless_job_has_no_hosts(request_: Request) -> None:
    for field in ("AlgorithmSpecification", "ResourceConfig", "StoppingCondition"):
        del request_[field]
    model = "arn:aws:sagemaker:us-east-1:aws:hub-content/Hub/Model/m/1.0.0"
    request_["ServerlessJobConfig"] = {"BaseModelArn": model, "JobType": "FineTuning"}
    assert spec.problems(request_) == []
    for refusals in (local.refusals, portable.refusals):
        (found,) = refusals(request_, {})
        assert str(found).startswith("ServerlessJobConfig: has no hosts and no image of its own: only ")
    assert local.instance_groups(request_) == []


def test_what_else_a_local_run_refuses(request_: Request) -> None:
    request_["InputDataConfig"][0]["DataSource"]["S3DataSource"]["S3DataType"] = "Converse"
    request_["OutputDataConfig"] = {"S3OutputPath": "https://b/k"}
    request_["HyperParameters"] = {"sagemaker_submit_directory": '"ftp://b/sourcedir.tar.gz"'}
    found = [str(problem) for problem in local.refusals(request_, {"trian": Path("x")})]
    assert [text.split(":")[0] for text in found] == [
        "InputDataConfig[0].DataSource.S3DataSource.S3DataType",
        "--channel",
        "OutputDataConfig.S3OutputPath",
        "HyperParameters.sagemaker_submit_directory",
    ]


def test_fields_without_effect_are_named(request_: Request) -> None:
    request_["VpcConfig"] = {"Subnets": ["a"], "SecurityGroupIds": ["b"]}
    request_["StoppingCondition"]["MaxWaitTimeInSeconds"] = 99
    request_["ResourceConfig"]["KeepAlivePeriodInSeconds"] = 60
    request_["OutputDataConfig"]["KmsKeyId"] = "key"
    request_["ProfilerConfig"] = {"DisableProfiler": True, "S3OutputPath": "s3://b/p"}
    assert local.without_effect(request_) == [
        "VpcConfig",
        "ResourceConfig.KeepAlivePeriodInSeconds",
        "StoppingCondition.MaxWaitTimeInSeconds",
        "ProfilerConfig.S3OutputPath",
        "OutputDataConfig.KmsKeyId",
    ]


@pytest.mark.parametrize(
    ("config", "environment", "expected"),
    [
        (None, {}, {}),
        ({"DisableProfiler": False}, {}, {}),
        ({"DisableProfiler": True}, {}, {"SHOAL_PROFILE": "0"}),
        ({"DisableProfiler": True}, {"SHOAL_PROFILE": "1"}, {"SHOAL_PROFILE": "1"}),
        ({"ProfilingIntervalInMilliseconds": 200}, {"A": "b"}, {"A": "b", "SHOAL_PROFILE_INTERVAL_MS": "200"}),
    ],
)
def test_the_sampler_is_steered_by_variables(
    request_: Request, config: Request | None, environment: dict[str, str], expected: dict[str, str]
) -> None:
    request_["Environment"] = environment
    if config is not None:
        request_["ProfilerConfig"] = config
    of_job = {"TRAINING_JOB_NAME", "TRAINING_JOB_ARN"}
    assert {k: v for k, v in plan_of(request_).environment.items() if k not in of_job} == expected


@pytest.mark.parametrize(
    ("hyperparameters", "environment", "problems"),
    [
        ({"sagemaker_program": "train.py"}, {}, 1),
        ({"sagemaker_program": "-m package.train"}, {}, 0),
        ({"sagemaker_program": "train.py", "sagemaker_command": '["sh"]'}, {}, 0),
        ({"sagemaker_program": "train.py"}, {"SHOAL_COMMAND": "sh"}, 0),
    ],
)
def test_only_a_program_must_be_a_file_of_the_source(
    request_: Request, tmp_path: Path, hyperparameters: dict[str, str], environment: dict[str, str], problems: int
) -> None:
    request_["HyperParameters"] = {"sagemaker_submit_directory": "file://source", **hyperparameters}
    request_["Environment"] = environment
    del request_["InputDataConfig"]
    (tmp_path / "source").mkdir()
    assert len(local.missing_folders(JobFile(tmp_path / "job.json", request_), request_)) == problems


def test_checkpoints_have_their_default_place(request_: Request) -> None:
    assert plan_of(request_).kept == ()
    request_["CheckpointConfig"] = {"S3Uri": "file://kept"}
    plan = plan_of(request_)
    assert plan.kept == (Kept("checkpoints", "file:///jobs/kept", "/opt/ml/checkpoints", True),)
    assert config(plan, 0, "checkpointconfig") == {"LocalPath": "/opt/ml/checkpoints"}
    request_["CheckpointConfig"] = {"S3Uri": "s3://b/kept", "LocalPath": "/mine/"}
    request_["TensorBoardOutputConfig"] = {"S3OutputPath": "file://boards"}
    plan = plan_of(request_)
    assert plan.kept == (
        Kept("checkpoints", "s3://b/kept", "/mine", True),
        Kept("TensorBoard's files", "file:///jobs/boards/job/tensorboard-output", "/opt/ml/output/tensorboard", False),
    )
    assert config(plan, 0, "tensorboardoutputconfig") == {"LocalPath": "/opt/ml/output/tensorboard"}


@pytest.mark.parametrize(
    "path", ["/", "/opt", "/opt/ml/model", "/opt/ml/input/data/x", "relative", "/a/../opt/ml/model"]
)
def test_checkpoints_have_no_place_of_something_else(request_: Request, path: str) -> None:
    request_["CheckpointConfig"] = {"S3Uri": "file://kept", "LocalPath": path}
    [problem] = local.refusals(request_, {})
    assert str(problem).startswith(f"CheckpointConfig.LocalPath: {path!r} cannot be kept: the default")


def test_a_channel_keeps_what_the_file_says_when_its_folder_is_given(request_: Request, tmp_path: Path) -> None:
    source = request_["InputDataConfig"][0]["DataSource"]["S3DataSource"]
    source.update({"S3DataType": "ManifestFile", "S3Uri": "s3://b/m", "S3DataDistributionType": "ShardedByS3Key"})
    [given] = local.override(request_, name=None, output=None, source=None, channels={"train": tmp_path})[
        "InputDataConfig"
    ]
    assert given["DataSource"]["S3DataSource"] == {
        "S3DataType": "S3Prefix",
        "S3Uri": tmp_path.as_uri(),
        "S3DataDistributionType": "ShardedByS3Key",
    }
    (tmp_path / "m").write_text("[]")
    [given] = local.override(request_, name=None, output=None, source=None, channels={"train": tmp_path / "m"})[
        "InputDataConfig"
    ]
    assert given["DataSource"]["S3DataSource"]["S3DataType"] == "ManifestFile"
