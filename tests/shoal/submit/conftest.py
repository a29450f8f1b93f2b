"""Fixtures: a job's folder, and the command in this process."""

import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # test modules are imported by file: they find helpers no other way
from job_file import REQUEST, JobFile

from shoal.cli import app
from shoal.errors import ShoalError


@pytest.fixture
def job(tmp_path: Path) -> JobFile:
    """A folder with a job file and its script."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "train.py").write_text("print('hello')\n")
    return JobFile(tmp_path, copy.deepcopy(REQUEST))


class Command:
    """The command in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self.err = ""  # what the last one printed on stderr

    def __call__(self, *arguments: str, exit_code: int = 0) -> str:
        """Run it; return what it printed on stdout."""
        code: Any = app(list(arguments), standalone_mode=False)
        out, self.err = self._capsys.readouterr()
        assert (code or 0) == exit_code
        return out


@pytest.fixture
def shoal(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run the command; return what it printed on stdout."""
    return Command(capsys)


@pytest.fixture
def refused() -> Callable[..., str]:
    """Run the command; return the one line it refuses with."""

    def run(*arguments: str) -> str:
        with pytest.raises(ShoalError) as raised:
            app(list(arguments), standalone_mode=False)
        assert raised.value.exit_code != 0
        assert "\n" not in str(raised.value)
        return str(raised.value)

    return run
