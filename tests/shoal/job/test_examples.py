"""Every job file of the examples is one that `shoal run` takes, but for channels that are prepared first."""

from pathlib import Path

import pytest

from shoal.job import local, spec

EXAMPLES = sorted((Path(__file__).parents[3] / "examples").glob("*/*.json"))


@pytest.mark.parametrize("path", EXAMPLES, ids=[f"{path.parent.name}/{path.stem}" for path in EXAMPLES])
def test_an_example_s_job_is_valid(path: Path) -> None:
    job = spec.load(path)
    assert spec.problems(job.request) == []
    assert local.refusals(job.request, {}) == []
    assert [problem for problem in local.missing_folders(job, job.request) if "InputData" not in problem.path] == []
