"""The `shoal` command as a whole: every verb can be asked for, and none waits for the modules of another."""

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from shoal.cli import _VERBS, app

RUNNER = CliRunner()


@pytest.mark.parametrize("verb", _VERBS)
def test_every_verb_has_its_help(verb: str) -> None:
    shown = RUNNER.invoke(app, [verb, "--help"], prog_name="shoal", env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.exception
    assert f"Usage: shoal {verb} " in shown.output
    assert "\\[" not in shown.output


def test_the_help_lists_all_verbs() -> None:
    shown = RUNNER.invoke(app, ["--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    listed = [line.split()[1] for line in shown.output.splitlines() if line.startswith("│ ") and line[2] != " "]
    assert [word for word in listed if not word.startswith("-")] == list(_VERBS)


def test_validating_a_job_waits_for_no_docker_no_images() -> None:
    program = "import sys; from shoal.cli import main\ntry: main()\nfinally: print(sorted(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program, "validate", "/none"], capture_output=True, text=True, check=False
    )
    assert "shoal.job.commands" in done.stdout, done.stderr
    for module in ("docker.client", "shoal.image", "kubernetes", "moto", "cyclonedx"):
        assert f"'{module}'" not in done.stdout
