"""The job file against the service's model: every rule is a row."""

import json
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from botocore.validate import ParamValidator

from shoal.errors import ShoalError
from shoal.job import spec
from shoal.job.parse import parse
from shoal.job.shape import python_pattern

Request = dict[str, Any]
ROLE = "RoleArn"
EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*/job.json"))


def put(*path: str | int, value: object) -> Callable[[Request], None]:
    def change(request: Any) -> None:
        for key in path[:-1]:
            request = request[key]
        request[path[-1]] = value

    return change


def drop(*path: str | int) -> Callable[[Request], None]:
    def change(request: Any) -> None:
        for key in path[:-1]:
            request = request[key]
        del request[path[-1]]

    return change


GROUP = {"InstanceType": "ml.c5.xlarge", "InstanceCount": 1, "InstanceGroupName": "g"}
S3 = ("InputDataConfig", 0, "DataSource", "S3DataSource")
BROKEN = [
    (put("HyperParametrs", value={}), "HyperParametrs: no such field: did you mean HyperParameters?"),
    (put("hyperparameters", value={}), "hyperparameters: no such field: did you mean HyperParameters?"),
    (
        put("ResourceConfig", "InstanceCount", value="two"),
        "ResourceConfig.InstanceCount: 'two' is not an integer",
    ),
    (put("ResourceConfig", "InstanceCount", value=True), "ResourceConfig.InstanceCount: True is not an integer"),
    (put("ResourceConfig", "InstanceCount", value=0), "ResourceConfig.InstanceCount: 0 is less than 1"),
    (
        put("ResourceConfig", "InstanceType", value="ml.c5.xlrge"),
        "ResourceConfig.InstanceType: 'ml.c5.xlrge' is not one of 225 known values: did you mean ml.c5.xlarge?",
    ),
    (put("ResourceConfig", "InstanceCount", value=-1), "ResourceConfig.InstanceCount: -1 is less than 1"),
    (put("Environment", value={"A": "x\0"}), "Environment.A: 'x\\x00' has a zero byte"),
    (
        put("AlgorithmSpecification", "ContainerArguments", value=["a", "\0"]),
        "AlgorithmSpecification.ContainerArguments[1]: '\\x00' has a zero byte",
    ),
    (
        put(*S3, "InstanceGroupNames", value=["gpu"]),
        "InputDataConfig[0].DataSource.S3DataSource.InstanceGroupNames: 'gpu' is no group",
    ),
    (
        put("HyperParameters", value={"on": date(2026, 1, 2)}),
        'HyperParameters.on: datetime.date(2026, 1, 2) is not a string: write "2026-01-02"',
    ),
    (
        put("ResourceConfig", value={"VolumeSizeInGB": 1, "InstanceGroups": []}),
        "ResourceConfig.InstanceGroups: has 0 items: at least 1",
    ),
    (
        put("ResourceConfig", value={"VolumeSizeInGB": 1, "InstanceGroups": [GROUP, GROUP]}),
        "ResourceConfig.InstanceGroups[1].InstanceGroupName: 'g' is there twice",
    ),
    (
        put("ResourceConfig", value={"VolumeSizeInGB": 1, "InstanceGroups": [GROUP], "KeepAlivePeriodInSeconds": 60}),
        "ResourceConfig.KeepAlivePeriodInSeconds: does not go with ResourceConfig.InstanceGroups: keep one",
    ),
    (
        put("ResourceConfig", "VolumeSizeInGB", value=1 << 31),
        "ResourceConfig.VolumeSizeInGB: 2147483648 is more than 2147483647",
    ),
    (
        put("InputDataConfig", 0, "ShuffleConfig", value={"Seed": -(1 << 63) - 1}),
        "InputDataConfig[0].ShuffleConfig.Seed: -9223372036854775809 is less than -9223372036854775808",
    ),
    (
        put("ProfilerConfig", value={"ProfilingIntervalInMilliseconds": 300}),
        "ProfilerConfig.ProfilingIntervalInMilliseconds: 300 is not one of 100, 200, 500, 1000, 5000, 60000",
    ),
    (
        put("ResourceConfig", "InstanceCount", value="2"),
        "ResourceConfig.InstanceCount: '2' is not an integer: write 2, without quotes",
    ),
    (
        put("EnableNetworkIsolation", value="yes"),
        "EnableNetworkIsolation: 'yes' is not true or false: write true, without quotes",
    ),
    (
        put("AlgorithmSpecification", "TrainingImage", value="a\ud800"),
        "AlgorithmSpecification.TrainingImage: 'a\\ud800' is no text: half of a character is in it",
    ),
    (put("HyperParameters", value={"x": "a\rb"}), "HyperParameters.x: 'a\\rb' does not match .*"),
    (put(ROLE, value="arn:aws:iam::٠٠٠٠٠٠٠٠٠٠٠٠:role/local"), "RoleArn: 'arn:aws:iam::٠"),
    (drop(ROLE), "RoleArn: is required and missing"),
    (put(ROLE, value="me"), "RoleArn: has 2 characters: at least 20 are needed"),
    (put("TrainingJobName", value="a_b"), "TrainingJobName: 'a_b' does not match [a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}"),
    (put("HyperParameters", value={"epochs": 3}), 'HyperParameters.epochs: 3 is not a string: write "3"'),
    (put("HyperParameters", value={"on": True}), 'HyperParameters.on: True is not a string: write "true"'),
    (put("HyperParameters", value={"a b": 3}), "HyperParameters['a b']: 3 is not a string: write \"3\""),
    (
        put("HyperParameters", value={"x": "y" * 2501}),
        "HyperParameters.x: has 2501 characters: at most 2500 are allowed",
    ),
    (put("HyperParameters", value={str(i): "" for i in range(101)}), "HyperParameters: has 101 entries: at most 100"),
    (put("Environment", value={"1A": "x"}), "Environment.1A: as a key: '1A' does not match [a-zA-Z_][a-zA-Z0-9_]*"),
    (
        put("AlgorithmSpecification", "TrainingInputMode", value="Files"),
        "AlgorithmSpecification.TrainingInputMode: 'Files' is not one of Pipe, File, FastFile: did you mean File?",
    ),
    (drop("AlgorithmSpecification", "TrainingImage"), "AlgorithmSpecification: needs TrainingImage or AlgorithmName"),
    (drop(*S3, "S3Uri"), "InputDataConfig[0].DataSource.S3DataSource.S3Uri: is required and missing"),
    (put(*S3, "S3Uri", value="data"), "InputDataConfig[0].DataSource.S3DataSource.S3Uri: 'data' does not match"),
    (put("InputDataConfig", 0, "DataSource", value={}), "InputDataConfig[0].DataSource: needs exactly one source"),
    (put("InputDataConfig", value=[]), "InputDataConfig: has 0 items: at least 1 are needed"),
    (put("InputDataConfig", value={}), "InputDataConfig: {} is not a list"),
    (drop("ResourceConfig", "InstanceCount"), "ResourceConfig: needs InstanceType and InstanceCount"),
    (drop("StoppingCondition"), "StoppingCondition: is required and missing"),
    (
        put("StoppingCondition", "MaxRuntimeInSeconds", value=0),
        "StoppingCondition.MaxRuntimeInSeconds: 0 is less than 1",
    ),
]


@pytest.mark.parametrize(
    ("wait", "found"),
    [
        (None, ["is missing: EnableManagedSpotTraining needs it, at least 120"]),
        (119, ["119 is less than MaxRuntimeInSeconds, 120"]),
        (120, []),
    ],
)
def test_spot_jobs_have_a_time_to_wait(request_: Request, wait: int | None, found: list[str]) -> None:
    request_["EnableManagedSpotTraining"] = True
    if wait is not None:
        request_["StoppingCondition"]["MaxWaitTimeInSeconds"] = wait
    problems = spec.problems(request_)
    assert [problem.text for problem in problems] == found
    assert {problem.path for problem in problems} <= {"StoppingCondition.MaxWaitTimeInSeconds"}


@pytest.mark.parametrize(("change", "expected"), BROKEN, ids=[text.split(":")[0] for _change, text in BROKEN])
def test_each_rule_is_told(request_: Request, change: Callable[[Request], None], expected: str) -> None:
    change(request_)
    found = [str(problem) for problem in spec.problems(request_)]
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_a_valid_request_has_no_problems(request_: Request) -> None:
    assert spec.problems(request_) == []


def test_all_problems_are_told_at_once_each_with_the_file(tmp_path: Path, request_: Request) -> None:
    for change, _text in BROKEN[:3]:
        change(request_)
    file = tmp_path / "job.json"
    file.write_text(json.dumps(request_))
    with pytest.raises(ShoalError) as raised:
        spec.load(file)
    lines = str(raised.value).splitlines()
    assert len(lines) == 3
    assert all(line.startswith(f"{file}: ") for line in lines)


def test_a_channel_twice_is_told(request_: Request) -> None:
    request_["InputDataConfig"] *= 2
    assert [str(p) for p in spec.problems(request_)] == ["InputDataConfig[1].ChannelName: 'train' is there twice"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "is not JSON: Expecting property name"),
        ("[]", "[] is not a CreateTrainingJob request"),
        ('{"RoleArn": "a", "RoleArn": "b"}', "'RoleArn' is there twice in one object"),
        ("\udcff", "cannot be read"),
    ],
)
def test_what_is_not_a_request_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "job.json"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ShoalError) as raised:
        spec.load(file)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RoleArn: a\nRoleArn: b\n", "line 2: 'RoleArn' is there twice in one object"),
        ("a:\n  b: {c: 1, c: 2}\n", "line 2: 'c' is there twice in one object"),
        ("a: [", "is not YAML: line 1: expected the node content"),
        ("? [a]\n: b\n", "found unhashable key"),
    ],
)
def test_what_yaml_cannot_mean_is_one_line(tmp_path: Path, text: str, expected: str) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(ShoalError) as raised:
        parse(file)
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_plain_words_of_yaml_are_text_as_they_stand_there(tmp_path: Path) -> None:
    words = {"yes": "yes", "off": "NO", "day": "2026-13-45", "mode": "010", "time": "12:30", "much": "1_000", "is": "="}
    lines = "".join(f"  {name}: {word}\n" for name, word in words.items())
    (tmp_path / "job.YAML").write_text(f"Environment:\n{lines}Others: [true, 3, -0.5, 1.0e-5, null, .inf]\n")
    read = parse(tmp_path / "job.YAML")
    assert read["Environment"] == words
    assert read["Others"] == [True, 3, -0.5, 1e-5, None, float("inf")]


@pytest.mark.parametrize("suffix", ["json", "yaml"])
def test_a_mark_before_the_first_letter_is_none_of_the_text(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"job.{suffix}").write_text('{"RoleArn": "é"}\r\n', encoding="utf-8-sig")
    assert parse(tmp_path / f"job.{suffix}") == {"RoleArn": "é"}


def test_a_key_may_stand_over_one_that_is_merged(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  x: 3\n")
    assert parse(tmp_path / "job.yaml")["b"] == {"x": 3, "y": 2}


def test_of_very_many_problems_the_first_are_told_and_the_rest_counted(tmp_path: Path, request_: Request) -> None:
    request_["InputDataConfig"] = [3] * 5000
    (tmp_path / "job.json").write_text(json.dumps(request_))
    with pytest.raises(ShoalError) as raised:
        spec.load(tmp_path / "job.json")
    lines = str(raised.value).splitlines()
    assert len(lines) == 21
    assert lines[0].endswith("InputDataConfig: has 5000 items: at most 20 are allowed")
    assert lines[-1] == f"{tmp_path / 'job.json'}: and 4981 more like these"


def test_yaml_and_json_give_the_same_request(tmp_path: Path, request_: Request) -> None:
    (tmp_path / "job.json").write_text(json.dumps(request_))
    yaml = tmp_path / "job.yaml"
    yaml.write_text(
        "TrainingJobName: job\n"
        + "".join(f"{k}: {json.dumps(v)}\n" for k, v in request_.items() if k != "TrainingJobName")
    )
    assert spec.load(yaml).request == spec.load(tmp_path / "job.json").request


def test_every_pattern_of_the_model_is_one_python_knows() -> None:
    patterns = set(_patterns(spec.operation_shape("CreateTrainingJob", "input"), set()))
    assert len(patterns) > 20
    for pattern in patterns:
        python_pattern(pattern)
    tag = python_pattern(r"([\p{L}\p{Z}\p{N}_.:/=+\-@]*)")
    assert tag.fullmatch("Übung 3: a=b")
    assert not tag.fullmatch("a;b")
    assert not tag.fullmatch("a\tb")  # no separator to Java


def test_a_warm_pool_is_not_of_spot_capacity(request_: Request) -> None:
    request_["ResourceConfig"]["KeepAlivePeriodInSeconds"] = 60
    assert spec.problems(request_) == []
    request_["EnableManagedSpotTraining"] = True
    request_["StoppingCondition"]["MaxWaitTimeInSeconds"] = 120
    assert [problem.path for problem in spec.problems(request_)] == ["ResourceConfig.KeepAlivePeriodInSeconds"]


def _patterns(shape: Any, seen: set[str]) -> list[str]:
    if shape.name in seen:
        return []
    seen.add(shape.name)
    inner = list(shape.members.values()) if shape.type_name == "structure" else []
    inner += [shape.member] if shape.type_name == "list" else []
    inner += [shape.key, shape.value] if shape.type_name == "map" else []
    own = [shape.metadata["pattern"]] if "pattern" in shape.metadata else []
    return own + [pattern for each in inner for pattern in _patterns(each, seen)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.parent.name)
def test_examples_are_valid_and_need_only_their_file_uris_changed(example: Path) -> None:
    job = spec.load(example)
    assert spec.file_uris(job.request)
    remote = json.loads(json.dumps(job.request).replace("file://", "s3://"))
    assert spec.problems(remote) == []
    assert not ParamValidator().validate(remote, spec.operation_shape("CreateTrainingJob", "input")).has_errors()
