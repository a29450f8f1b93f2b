"""Wrong use of the command, whatever the verb: one line that says what is wrong and where help is."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def shoal(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "shoal", *arguments], capture_output=True, text=True, check=False, cwd=ROOT
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "--jobs", "0"], ["build: Invalid value for '--jobs'", "greater than or equal to 1", "build --help"]),
        (["build", "--jobz", "1"], ["build: No such option: --jobz", "`shoal build --help`"]),
        (["wheel"], ["wheel: Missing argument 'ROW'", "`shoal wheel --help`"]),
        (["size", "2.13-cpu", "more"], ["size: Got unexpected extra argument", "(more)"]),
        (["bulid"], ["No such command 'bulid'", "build", "`shoal --help`"]),
        (["diff", "2.13-cpu", "nothing.json"], ["cannot be read: No such file or directory"]),
    ],
)
def test_wrong_use_is_one_line(arguments: list[str], said: list[str]) -> None:
    done = shoal(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("shoal: ")
    assert [words for words in said if words not in line] == []


def test_without_a_verb_there_is_help_and_nothing_more() -> None:
    done = shoal()
    assert done.returncode == 2
    assert "catalogue" in done.stdout + done.stderr
    assert "shoal:" not in done.stderr


def test_help_is_no_fault() -> None:
    done = shoal("build", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "--changed" in done.stdout
