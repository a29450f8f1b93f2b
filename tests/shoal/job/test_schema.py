"""The JSON schema of job files and the file `shoal init` writes: of the model, of this moment, and valid."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from job_folder import shoal

from shoal.errors import ShoalError
from shoal.job import commands, distribution, spec, template
from shoal.job.schema import job_schema

ROOT = Path(__file__).parents[3]
COMMITTED = ROOT / "docs" / "job.schema.json"


def test_the_committed_schema_is_that_of_the_model() -> None:
    done = shoal("schema")
    assert done.returncode == 0
    assert done.stdout == COMMITTED.read_text(), "run `shoal schema > docs/job.schema.json`"


def test_the_schema_says_what_the_model_and_the_rules_say() -> None:
    schema = job_schema()
    definitions = schema["definitions"]
    assert sorted(schema["required"]) == ["OutputDataConfig", "RoleArn", "TrainingJobName"]
    assert set(schema["properties"]["distribution"]["properties"]) > {"mpi", "pytorchddp", "smdistributed"}
    assert definitions["TrainingInstanceCount"] == {"type": "integer", "minimum": 1}
    assert definitions["TrainingInputMode"]["enum"] == ["Pipe", "File", "FastFile"]
    assert definitions["HyperParameters"]["maxProperties"] == 100
    assert not definitions["S3DataSource"]["additionalProperties"]
    uri = re.compile(definitions["S3Uri"]["pattern"])
    assert [bool(uri.search(text)) for text in ("s3://bucket/x", "file://x", "x", "xs3://b/k")] == [
        *(True, True, False, False)
    ]


def test_every_reference_has_its_definition_and_every_pattern_compiles() -> None:
    schema = job_schema()
    text = json.dumps(schema)
    names = set(re.findall(r'"#/definitions/(\w+)"', text))
    assert names == set(schema["definitions"])
    for definition in schema["definitions"].values():
        re.compile(definition.get("pattern", ""))


@pytest.mark.parametrize("options", [(), ("--hosts", "2", "--name", "other", "--image", "mine:1")])
def test_what_init_writes_is_valid(tmp_path: Path, options: tuple[str, ...]) -> None:
    file = tmp_path / "job.yaml"
    done = shoal("init", str(file), *options)
    assert (done.returncode, done.stdout) == (0, "")
    request = spec.load(file).request
    assert request["ResourceConfig"]["InstanceCount"] == (2 if options else 1)
    assert request["AlgorithmSpecification"]["TrainingImage"] == ("mine:1" if options else template.IMAGE)
    assert request["HyperParameters"]["sagemaker_distributed_dataparallel_enabled"] == "true"


def test_what_init_leaves_out_in_comments_is_valid_too(tmp_path: Path) -> None:
    text = template.job_file("job", "image:1", 1)
    begins = "CheckpointConfig:|Environment:|  S3Uri:|  NCCL|MetricDefinitions:|  - Name|    Regex"
    fields = re.sub(rf"^( *)# (?={begins})", r"\1", text, flags=re.MULTILINE)
    request: dict[str, Any] = yaml.safe_load(fields)
    assert {"CheckpointConfig", "Environment"} <= request.keys()
    assert "MetricDefinitions" in request["AlgorithmSpecification"]
    del request[distribution.FIELD]
    assert spec.problems(request) == []


def test_the_image_of_init_is_that_of_the_examples() -> None:
    example = json.loads((ROOT / "examples" / "digits-lightning" / "job.json").read_text())
    assert example["AlgorithmSpecification"]["TrainingImage"] == template.IMAGE


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "a_b"}, "shoal init: TrainingJobName: 'a_b' does not match"),
        ({"hosts": 0}, "shoal init: ResourceConfig.InstanceCount: 0 is less than 1"),
        ({"job_file": Path("job.json")}, "job.json: comments need YAML: give a name that ends in .yaml"),
        ({"job_file": Path("there.yaml")}, "there.yaml: cannot be written: File exists: give another name"),
        ({"job_file": Path("no/such.yaml")}, "no/such.yaml: cannot be written: No such file or directory"),
    ],
)
def test_init_writes_nothing_that_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.yaml").write_text("mine")
    with pytest.raises(ShoalError) as raised:
        commands.init(**arguments)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["there.yaml"]
    assert (tmp_path / "there.yaml").read_text() == "mine"


def test_validate_shows_the_request_as_it_would_be_sent(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(template.job_file("job", "image:1", 1))
    done = shoal("validate", "--show", str(file))
    assert json.loads(done.stdout) == spec.load(file).request
