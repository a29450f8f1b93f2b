"""Which images `shoal build` takes its arguments to mean, and what a user sees of them meanwhile."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from shoal.errors import ShoalError
from shoal.image.board import Board
from shoal.image.buildkit import BuildFailedError, build
from shoal.image.names import FLAVOURS
from shoal.image.progress import Progress
from shoal.image.targets import Target, choose, locked
from shoal.image.versions_file import load

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = load(ROOT / "versions.yaml")


def test_each_row_in_each_flavour_once() -> None:
    chosen = choose(VERSIONS, ["2.13-cpu", "2.13-gpu", "2.13-cpu"], every=False, flavours=FLAVOURS)
    assert [target.label for target in chosen] == ["2.13-cpu", "2.13-cpu ec2", "2.13-gpu", "2.13-gpu ec2"]


def test_all_are_those_with_locks() -> None:
    chosen = choose(VERSIONS, [], every=True, flavours=["sagemaker"])
    assert [target.row for target in chosen] == [
        name for name, row in VERSIONS.rows.items() if "sagemaker" in row.flavours
    ]
    assert Target("2.13-cpu", "sagemaker") in locked(chosen, VERSIONS, ROOT)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "shoal: say either rows or --all (or --changed): `shoal list` shows the rows\n"),
        (["--all", "2.13-cpu"], "shoal: say either rows or --all (or --changed): `shoal list` shows the rows\n"),
        (["2.13-cpu", "--flavour", "ecs"], "shoal: --flavour: 'ecs' is not one of sagemaker, ec2\n"),
    ],
)
def test_arguments_that_mean_nothing(arguments: list[str], message: str) -> None:
    command = [sys.executable, "-m", "shoal", "build", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_no_jobs_at_all() -> None:
    command = [sys.executable, "-m", "shoal", "build", "2.13-cpu", "--jobs", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2
    assert "--jobs" in done.stderr
    assert done.stdout == ""


def test_a_row_has_its_flavours_only() -> None:
    only = VERSIONS.rows["2.13-cpu"].model_copy(update={"flavours": ("ec2",)})
    versions = VERSIONS.model_copy(update={"rows": {"only-ec2": only}})
    with pytest.raises(ShoalError, match="only-ec2: --flavour sagemaker: this row has ec2 only"):
        choose(versions, ["only-ec2"], every=False, flavours=["sagemaker"])


def test_without_a_terminal_lines_begin_with_the_image() -> None:
    screen = io.StringIO()
    with Board(Console(file=screen, width=100), ["a", "b ec2"]) as board:
        board.reporter("b ec2").busy("torch: pip-install.sh")
        board.reporter("a").done("torch: pip-install.sh (8 s)")
    assert [line.split(maxsplit=2)[2] for line in screen.getvalue().splitlines()] == ["a  torch: pip-install.sh (8 s)"]


def test_on_a_terminal_a_table_says_what_each_image_is_at() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=60, record=True)
    board = Board(console, ["2.13-cpu", "2.14-gpu", "2.15-gpu"])
    board.reporter("2.13-cpu").busy("torch: pip-install.sh a-very-long-name-that-does-not-fit-into-the-line.txt")
    board.reporter("2.14-gpu").busy("base: debian12")
    board.end("2.14-gpu", "built")
    console.print(board.table())
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines[0] == ["image", "stage", "seconds"]
    assert lines[1][:3] == ["2.13-cpu", "torch", "pip-install.sh"]
    assert lines[1][-2].endswith("…")
    assert lines[2] == ["2.14-gpu", "built", "0"]
    assert lines[3] == ["2.15-gpu", "waiting"]


def test_a_live_table_leaves_nothing_but_what_was_said() -> None:
    screen = io.StringIO()
    with Board(Console(file=screen, force_terminal=True, width=60), ["a"]) as board:
        board.reporter("a").busy("torch: pip-install.sh")
        board.say("a", "failed: no such header")
    shown = screen.getvalue()
    assert "torch" in shown
    assert "failed: no such header" in shown
    assert shown.rstrip().endswith(
        "\x1b[?25h\r\x1b[1A\x1b[2K\x1b[1A\x1b[2K"
    )  # cursor back, both lines of the table gone


def test_a_failed_step_s_own_last_lines_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        '#5 [base 2/3] RUN echo "error: this is only the command"',
        "#6 [torch 1/1] RUN other",
        "#5 0.1 first",
        "#6 0.1 error: of a step that was stopped",
        "#5 0.2 error: the cause",
        "#5 ERROR: executor failed running",
        "------",
        "executor failed running",
    ]
    script = tmp_path / "docker"
    printed = "".join(f"echo '{line}'\n" for line in lines)
    script.write_text(f'#!/bin/sh\n[ "$1" = buildx ] && exit 0\n{printed}exit 1\n')
    script.chmod(0o755)
    monkeypatch.setenv("DOCKER", str(script))
    with pytest.raises(BuildFailedError, match="docker build failed: error: the cause") as caught:
        build(["."], tmp_path / "log", Progress(Console(file=io.StringIO())))
    assert caught.value.tail == ("first", "error: the cause")
