"""SDK v2's `estimator.fit(wait=True, logs=True)` against `shoal serve`, by the settings that it prints and no other."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sdk_environments import python_of
from sdk_process import Sdk, with_archives
from user_scripts import PLAIN, Source

sys.path.insert(0, str(Path(__file__).parents[1] / "shoal" / "serve"))
from endpoint import Endpoint

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    started = Endpoint(tmp_path / "state", "--jobs", "2")
    yield started
    started.end()


@pytest.fixture
def sdk(endpoint: Endpoint, tmp_path: Path) -> Iterator[Sdk]:
    keys = {"AWS_ACCESS_KEY_ID": "shoal", "AWS_SECRET_ACCESS_KEY": "shoal", "AWS_ENDPOINT_URL": endpoint.url}
    (tmp_path / "sdk").mkdir()
    started = Sdk(python_of("sdk2"), "sdk2_service", tmp_path / "sdk", **keys)
    yield started
    started.close()


def test_fit_follows_a_job_to_its_end(sdk: Sdk, endpoint: Endpoint, image: str, source: Source, tmp_path: Path) -> None:
    s3 = endpoint.client("s3")
    s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "x").write_text("1")
    script = PLAIN.format(sleep="0", then="print(f'loss={number / 4}', flush=True)")
    folder = source(**{"train.py": script, "fail.py": "raise ValueError('no such digit')\n"})
    estimator: dict[str, Any] = {
        "image_uri": image,
        "source_dir": str(folder),
        "instance_count": 2,
        "hyperparameters": {"epochs": 3},
        "metric_definitions": [{"Name": "loss", "Regex": r"loss=([0-9.]+)"}],
    }
    job = {"bucket": "bucket", "data": str(tmp_path / "data"), "estimator": estimator}
    ended = sdk.run(job, tmp_path / "log")
    assert not ended.error, ended.log
    told = ended.value
    assert told["model_data"] == f"s3://bucket/{told['name']}/output/model.tar.gz"
    assert told["metrics"]["loss"] in (0.25, 0.5)
    assert "Failed. Reason: ExecuteUserScriptError" in told["why"]
    assert "no such digit" in told["why"]
    assert told["attached"] == [told["model_data"], 2, [{"Key": "team", "Value": "digits"}], "3"]
    for words in ("loss=0.25", "loss=0.5", "Training - ", "Completed - "):  # of both hosts, and the stages
        assert words in ended.log
    archive = s3.get_object(Bucket="bucket", Key=f"{told['name']}/output/model.tar.gz")["Body"].read()
    model = with_archives(ended, {"model.tar.gz": archive}).model
    assert {name: json.loads(text)["data"] for name, text in model.items()} == {"host-1": ["x"], "host-2": ["x"]}
