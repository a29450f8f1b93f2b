"""What hosts print: bytes in the files, whole lines with the host's name for the user."""

import io
import os
from pathlib import Path

from rich.console import Console

from shoal.job.logs import Printer, follow

CHUNKS = [b"one\ntw", b"o [bold]not markup[/] \xff\n", b"10%\r50%\r100%\n", b"\tindented  \n", b"no end"]


def printed(console: Console, tmp_path: Path) -> str:
    follow("algo-1", CHUNKS, tmp_path / "log", Printer(console, ["algo-1", "algo-10"]))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_lines_are_data(tmp_path: Path) -> None:
    text = printed(Console(file=io.StringIO(), width=20), tmp_path)
    lines = ["one", "two [bold]not markup[/] \ufffd", "100%", "\tindented  ", "no end"]
    assert text == "".join(f"algo-1  | {line}\n" for line in lines)
    assert (tmp_path / "log").read_bytes() == b"".join(CHUNKS)


def test_on_a_terminal_only_the_name_is_coloured(tmp_path: Path) -> None:
    text = printed(Console(file=io.StringIO(), force_terminal=True, no_color=False), tmp_path)
    assert text.splitlines()[0] == "\x1b[36malgo-1 \x1b[0m | one"


def test_a_reader_that_has_gone_does_not_lose_the_log(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as stream:
        printer = Printer(Console(file=stream), ["algo-1"])
        os.close(reader)
        follow("algo-1", CHUNKS, tmp_path / "log", printer)
        stream.flush()  # as the interpreter does at exit: it must not fail any more
    assert (tmp_path / "log").read_bytes() == b"".join(CHUNKS)


def test_output_without_newlines_is_passed_on_in_pieces(tmp_path: Path) -> None:
    screen = io.StringIO()
    piece = b"x" * 65536
    follow("algo-1", [piece] * 40, tmp_path / "log", Printer(Console(file=screen), ["algo-1"]))
    assert (tmp_path / "log").read_bytes() == piece * 40
    assert [len(line) for line in screen.getvalue().splitlines()] == [
        len("algo-1 | ") + size for size in (1 << 20, 1 << 20, 8 * 65536)
    ]


def test_what_a_terminal_cannot_show_is_replaced(tmp_path: Path) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    follow("algo-1", ["héllo\nlast\n".encode()], tmp_path / "log", Printer(Console(file=stream), ["algo-1"]))
    assert raw.getvalue() == b"algo-1 | h?llo\nalgo-1 | last\n"
    assert (tmp_path / "log").read_text() == "héllo\nlast\n"
