"""How every benchmark ends, and how its claims and its JSON line are printed."""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from harness import program, report


@pytest.fixture(autouse=True)
def handler_of_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("sys.argv", ["/somewhere/benchmarks/images.py"])
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


def test_what_main_returns_is_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.run(lambda: 7, (ValueError,)) == 7
    assert capsys.readouterr() == ("", "")


def test_what_cannot_be_measured_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise ValueError("no such thing")

    assert program.run(main, (ValueError,)) == 1
    assert capsys.readouterr().err == "benchmarks/images.py: no such thing\n"
    with pytest.raises(ValueError, match="no such thing"):
        program.run(main, (OSError,))


def test_an_interrupt_says_what_is_left(capsys: pytest.CaptureFixture[str]) -> None:
    def main() -> int:
        raise KeyboardInterrupt

    assert program.run(main, (), "the clone is removed") == 130
    assert capsys.readouterr().err == "benchmarks/images.py: interrupted; the clone is removed\n"


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_unwinds_the_stack(signum: int, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    unwound = []

    def main() -> int:
        try:
            os.kill(os.getpid(), signum)
            return 0
        finally:
            unwound.append(True)

    # As a shell that takes no commands starts `command &`.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert (program.run(main, ()), unwound) == (code, [True])
    assert capsys.readouterr().err == "benchmarks/images.py: interrupted; nothing was left behind\n"


def test_a_claim_in_words() -> None:
    claim = {"what": "size", "unit": "MB", "target": 5600.0, "at_most": True, "measured": 5600.1, "holds": False}
    assert report.verdict(claim) == "DOES NOT HOLD: size: 5600.1 MB (target <= 5600)"
    claim = {"what": "1x2 all_reduce: gloo / smddp", "target": 6, "measured": 7.123, "holds": True}
    assert report.verdict(claim) == "holds: 1x2 all_reduce: gloo / smddp: 7.123 (target >= 6)"


@pytest.mark.parametrize("as_json", [False, True])
def test_the_json_line_is_last_and_is_appended(
    as_json: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "lines"
    output.write_text('{"benchmark": "before"}\n')
    report.emit({"benchmark": "x"}, "a table", argparse.Namespace(json=as_json, output=output))
    printed = capsys.readouterr().out.splitlines()
    assert printed[:-1] == ([] if as_json else ["a table"])
    assert json.loads(printed[-1]) == {"benchmark": "x"}
    assert [json.loads(line)["benchmark"] for line in output.read_text().splitlines()] == ["before", "x"]


def test_figures_are_not_lost_with_a_file_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(IsADirectoryError):
        report.emit({"benchmark": "x"}, "a table", argparse.Namespace(json=True, output=tmp_path))
    assert json.loads(capsys.readouterr().out) == {"benchmark": "x"}
