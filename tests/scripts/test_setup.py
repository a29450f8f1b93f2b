"""What the set-up scripts say where they may not install: one sentence, exit code 3, nothing done."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
NOBODY = 65534
SENTENCE = (
    "shoal: a Docker engine is needed and none answers: install Docker and start it, or run this as root on Debian\n"
)
NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent.sock"}


@pytest.fixture
def clone() -> Iterator[Path]:
    """Return a folder with the scripts that anybody may read, wherever this repository lies."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        root.chmod(0o755)
        shutil.copytree(SCRIPTS, root / "scripts")
        yield root


def path_with(folder: Path, *programs: str) -> str:
    """Return a PATH on which only these programs of the system are found."""
    (folder / "bin").mkdir()
    for program in programs:
        found = shutil.which(program, path="/usr/bin:/bin")
        assert found is not None
        (folder / "bin" / program).symlink_to(found)
    return str(folder / "bin")


def run(
    script: Path, *arguments: str, user: int | None = None, environ: Mapping[str, str] = NO_ENGINE
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **environ}
    extra_groups: list[int] | None = None if user is None else []
    return subprocess.run(
        [str(script), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        user=user,
        extra_groups=extra_groups,
    )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a script as somebody else")
def test_without_engine_and_not_root(clone: Path) -> None:
    done = run(clone / "scripts/engine.sh", "start", user=NOBODY)
    assert (done.returncode, done.stderr) == (3, SENTENCE)
    assert not (clone / ".shoal").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="as somebody else the other sentence comes first")
def test_without_engine_and_not_debian(clone: Path) -> None:
    path = path_with(clone, "sh", "dirname", "id", "grep")
    done = run(clone / "scripts/engine.sh", "start", environ={**NO_ENGINE, "PATH": path})
    assert (done.returncode, done.stderr) == (3, SENTENCE)


@pytest.mark.engine
def test_an_engine_that_answers_is_used(clone: Path) -> None:
    assert run(clone / "scripts/engine.sh", "answers", environ={}).returncode == 0, "make test has an engine for this"
    done = run(clone / "scripts/engine.sh", "start", environ={})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(os.geteuid() != 0, reason="somebody else is told before that an engine is needed")
def test_the_last_words_of_an_engine_that_ended_are_kept(clone: Path) -> None:
    """Of an engine that ended once, and of a second one that ends at once."""
    state = clone / ".shoal"
    state.mkdir()
    ended = subprocess.run(["sh", "-c", "echo $$"], capture_output=True, text=True, check=True)
    (state / "dockerd.pid").write_text(ended.stdout)
    (state / "dockerd.log").write_text("level=info\nfatal error: concurrent map writes\n")
    path = path_with(clone, "sh", "dirname", "id", "cat", "rm", "mv", "tail", "mkdir", "readlink", "setsid", "sleep")
    (clone / "bin/dockerd").write_text("#!/bin/sh\necho no space left\n")
    (clone / "bin/dockerd").chmod(0o755)
    (clone / "bin/apt-get").symlink_to("/bin/true")
    done = run(clone / "scripts/engine.sh", "start", environ={**NO_ENGINE, "PATH": path})
    assert done.returncode == 3
    assert "has ended by itself; it said last" in done.stderr
    assert "fatal error: concurrent map writes\n" in done.stderr
    assert done.stderr.endswith("dockerd ended at once: no space left\n")
    assert "concurrent map" in (state / "dockerd.log.ended").read_text()


def test_stop_stops_no_engine_it_did_not_start(clone: Path) -> None:
    assert run(clone / "scripts/engine.sh", "stop").returncode == 0


def test_another_python_is_refused(clone: Path) -> None:
    path = path_with(clone, "sh", "dirname")
    python = clone / "bin" / "python3"
    python.write_text("#!/bin/sh\necho 3.12\n")
    python.chmod(0o755)
    done = run(clone / "scripts/venv.sh", environ={"PATH": path})
    assert done.returncode == 3
    assert done.stderr == ("shoal: Python 3.11 is needed as python3 (found: 3.12): on Debian 12, install python3\n")
    assert not (clone / ".venv").exists()
