"""Finding a docker client with BuildKit, and reading its progress."""

import io
import os
import re
from pathlib import Path

import pytest
from rich.console import Console

from shoal.errors import ShoalError
from shoal.image import buildkit
from shoal.image.progress import Progress


def client(folder: Path, *, version: str, buildx: bool) -> str:
    """Write a stand-in that answers the two questions a client is asked."""
    folder.mkdir()
    path = folder / "docker"
    path.write_text(f'#!/bin/sh\ncase "$1" in buildx) exit {0 if buildx else 1} ;; version) echo {version} ;; esac\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def path_of(tmp_path: Path) -> dict[str, str]:
    return {
        "new without buildx": client(tmp_path / "a", version="28.2.2", buildx=False),
        "new with buildx": client(tmp_path / "b", version="28.2.2", buildx=True),
        "old": client(tmp_path / "c", version="20.10.24+dfsg1", buildx=False),
    }


@pytest.mark.parametrize(
    ("on_path", "expected"),
    [
        (["new without buildx", "old"], "old"),
        (["old", "new with buildx"], "new with buildx"),
        (["new without buildx", "new with buildx"], "new with buildx"),
        (["old"], "old"),
    ],
)
def test_the_first_client_that_can(path_of: dict[str, str], on_path: list[str], expected: str) -> None:
    path = os.pathsep.join(str(Path(path_of[name]).parent) for name in on_path)
    assert buildkit.find_client({"PATH": path}) == path_of[expected]


def test_docker_variable_wins(path_of: dict[str, str]) -> None:
    environ = {"DOCKER": path_of["old"], "PATH": str(Path(path_of["new with buildx"]).parent)}
    assert buildkit.find_client(environ) == path_of["old"]


@pytest.mark.parametrize("environ", [{"PATH": "/nonexistent"}, {"DOCKER": "/nonexistent/docker"}])
def test_no_client_is_one_sentence(environ: dict[str, str]) -> None:
    with pytest.raises(ShoalError, match=r"no docker client with BuildKit .* install the docker-buildx plug-in"):
        buildkit.find_client(environ)


def test_a_client_without_buildkit_does_not_count(path_of: dict[str, str]) -> None:
    with pytest.raises(ShoalError, match="no docker client with BuildKit"):
        buildkit.find_client({"PATH": str(Path(path_of["new without buildx"]).parent)})


def builds(folder: Path, monkeypatch: pytest.MonkeyPatch, *lines: str, code: int = 0) -> None:
    """Make $DOCKER a client that has BuildKit, prints these lines as a build's progress and exits with `code`."""
    script = folder / "docker"
    printed = "".join(f"echo '{line}'\n" for line in lines)
    script.write_text(f'#!/bin/sh\n[ "$1" = buildx ] && exit 0\n{printed}exit {code}\n')
    script.chmod(0o755)
    monkeypatch.setenv("DOCKER", str(script))


@pytest.mark.parametrize("says", ["unexpected EOF", "rpc error: code = Unavailable desc = transport is closing"])
def test_an_engine_that_ended_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str) -> None:
    """The client fails whatever it is asked afterwards."""
    builds(tmp_path, monkeypatch, "#5 [base 2/3] RUN sleep 300", f"error: {says}", code=1)
    with pytest.raises(ShoalError, match=r"the Docker engine ended during the build \(error: ") as caught:
        buildkit.build(["."], tmp_path / "build.log", Progress(Console(file=io.StringIO())))
    assert caught.value.exit_code == 3
    assert says in str(caught.value)


def test_a_failed_build_names_the_cause_and_keeps_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    builds(
        tmp_path,
        monkeypatch,
        "#5 [base 2/3] RUN /build/scripts/apt-install.sh gcc",
        "#5 0.512 E: Unable to locate package gcc",
        "#5 ERROR: process did not complete",
        code=1,
    )
    log = tmp_path / "build.log"
    with pytest.raises(ShoalError, match=r"failed: E: Unable to locate package gcc \(all of it: ") as caught:
        buildkit.build(["."], log, Progress(Console(file=io.StringIO())))
    assert caught.value.exit_code == 1
    assert "process did not complete" in log.read_text()


@pytest.mark.parametrize(("worth_a_line_s", "told"), [(0.0, True), (1e6, False)])
def test_steps_that_took_a_while_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worth_a_line_s: float, told: bool
) -> None:
    monkeypatch.setattr(buildkit, "_WORTH_A_LINE_S", worth_a_line_s)
    builds(
        tmp_path,
        monkeypatch,
        "#1 [base 1/3] FROM docker.io/library/shoal-base:debian12",
        "#2 [base 2/3] RUN --mount=type=bind,source=a     /build/scripts/apt-install.sh python3",
        "#2 CACHED",
        "#3 [torch 1/1] RUN --mount=type=bind,source=a     /build/scripts/pip-install.sh /build/x.txt",
        "#3 DONE 3.0s",
    )
    screen = io.StringIO()
    buildkit.build(["."], tmp_path / "log", Progress(Console(file=screen)))
    expected = r" *[\d.]+ s  torch: pip-install\.sh x\.txt \(\d+ s\)\n" if told else ""
    assert re.fullmatch(expected, screen.getvalue())
