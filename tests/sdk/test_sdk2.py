"""SDK v2's local mode: entry points, packages, S3, and jobs that fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from bucket import Bucket
from sdk_process import Fit
from user_scripts import PLAIN, WHEEL, Source, wheel

pytestmark = [pytest.mark.image, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_shell_script(fit2: Fit, source: Source) -> None:
    script = 'echo "$SM_HP_EPOCHS $*" >"$SM_MODEL_DIR/shell"\nexit 0\n'
    ended = fit2(
        entry_point="train.sh",
        source_dir=str(source(**{"train.sh": script})),
        instance_count=1,
        hyperparameters={"epochs": 3},
    )
    assert not ended.error, ended.log
    assert ended.model == {"shell": "3 --epochs 3\n"}


def test_requirements_dependencies_and_channels_through_s3(
    fit2: Fit, source: Source, bucket: Bucket, tmp_path: Path
) -> None:
    """The container fetches the code by itself: the endpoint comes in the environment."""
    bucket.put(**{"digits/0": b"zero", "digits/1": b"one"})
    (tmp_path / "helper").mkdir()
    (tmp_path / "helper" / "__init__.py").write_text("WORD = 'from a dependency'\n")
    script = """
import os, pathlib, greeting, helper
data = sorted(pathlib.Path(os.environ["SM_CHANNEL_DIGITS"]).iterdir())
text = "\\n".join([greeting.WORD, helper.WORD, *(f"{path.name} {path.read_text()}" for path in data)])
pathlib.Path(os.environ["SM_MODEL_DIR"], "found").write_text(text)
"""
    folder = source(**{"train.py": script, "requirements.txt": f"./{WHEEL}\n", WHEEL: wheel()})
    ended = fit2(
        bucket=bucket,
        entry_point="train.py",
        source_dir=str(folder),
        dependencies=[str(tmp_path / "helper")],
        instance_count=2,
        distribution={"mpi": {"enabled": True, "processes_per_host": 1}},
        inputs={"digits": f"s3://{bucket.name}/digits"},
    )
    assert not ended.error, ended.log
    assert ended.model == {"found": "from a wheel\nfrom a dependency\n0 zero\n1 one"}
    assert ended.value["model_data"].startswith(f"s3://{bucket.name}/results/")


@pytest.mark.parametrize("failing", [1, 2])
def test_a_host_that_fails_fails_the_job_at_once_and_says_why(fit2: Fit, source: Source, failing: int) -> None:
    """The other host would go on for longer than this test may."""
    then = f"if number == {failing}: raise ValueError('no such digit')\ntime.sleep(600)"
    ended = fit2(
        entry_point="train.py",
        source_dir=str(source(**{"train.py": PLAIN.format(sleep="0", then=then)})),
        instance_count=2,
    )
    assert ended.error.startswith("RuntimeError: Failed to run: ["), ended.log
    assert ended.error.endswith("Process exited with code: 1")
    assert "ValueError: no such digit" in ended.output["failure"]
    assert ended.output["failure"].startswith(
        'ExecuteUserScriptError:\nExitCode 1\nErrorMessage "ValueError: no such digit'
    )
    assert ended.model == {}


def test_the_rank_that_failed_is_named(fit2: Fit, source: Source) -> None:
    script = """
import os, sys, time
if os.environ["RANK"] == "3":
    sys.exit(7)
time.sleep(600)
"""
    ended = fit2(
        entry_point="train.py",
        source_dir=str(source(**{"train.py": script})),
        instance_count=2,
        distribution={"mpi": {"enabled": True, "processes_per_host": 2}},
    )
    assert ended.error.endswith("Process exited with code: 7"), ended.log
    assert ended.output["failure"].startswith("ExecuteUserScriptError:\nExitCode 7\n")
    assert "rank 3 on algo-2" in ended.output["failure"]
