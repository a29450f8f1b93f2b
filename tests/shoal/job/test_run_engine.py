"""Runs whose engine is killed in the middle: on an engine of the test's own, for others use the machine's."""

import importlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_folder import LOOP, JobFolder, script, things_of
from tiny_image import IMAGE, root_file_system

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("dockerd") is None, reason="needs root and a dockerd"),
]


@pytest.fixture
def own_engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """An engine with the tiny image, which commands of the test use."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "image")
    engine = importlib.import_module("own_engine").OwnEngine(megabytes=64)
    try:
        repository, _, tag = IMAGE.partition(":")
        engine.client.api.import_image_from_data(root_file_system(), repository, tag=tag, changes=["ENV PATH=/bin"])
        monkeypatch.setenv("DOCKER_HOST", engine.address)
        yield engine
    finally:
        engine.close()


def test_a_job_goes_on_when_its_engine_is_back_and_else_has_failed(job: JobFolder, own_engine: Any) -> None:
    script(job, f"trap 'exit 0' TERM; if [ -e /opt/ml/checkpoints/once ]; then echo again; exit 0; fi; {LOOP}", hosts=1)
    job.request["RetryStrategy"] = {"MaximumRetryAttempts": 1}
    job.request["CheckpointConfig"] = {"S3Uri": "file://kept"}
    process = job.start()
    job.until_logged("ready", hosts=("algo-1",))
    (job.path / "kept").mkdir(exist_ok=True)
    (job.path / "kept" / "once").touch()
    own_engine.kill()
    own_engine.start()
    assert process.wait(100) == 0
    assert job.log("algo-1") == "ready\nagain\n"
    stages = [stage["Status"] for stage in job.described["SecondaryStatusTransitions"]]
    assert stages == ["Starting", "Training", "Restarting", "Training", "Uploading", "Completed"]
    assert things_of(own_engine.client, job.request["TrainingJobName"]) == []

    job.request["TrainingJobName"] += "-2"
    del job.request["RetryStrategy"], job.request["CheckpointConfig"]
    process = job.start()
    job.until_logged("ready", hosts=("algo-1",))
    own_engine.kill()
    assert process.wait(100) == 3
    assert job.described["FailureReason"].startswith("InternalServerError: the Docker engine failed: ")
    own_engine.start()
    script(job, "true", hosts=1)
    last = job.shoal("run", "--job-name", "last")
    assert last.returncode == 0, last.stderr
    assert things_of(own_engine.client, job.request["TrainingJobName"]) == []
