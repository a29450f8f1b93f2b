"""torchrun starts every rank through this script, as its PYTHON_EXEC: it gives the rank pipes of its own for stdout and
stderr, hands their other ends to `train`, and becomes the Python that torchrun would have started.

rank_pipes.py writes it into the run folder, below a first line with an interpreter and `-IS`: a few milliseconds, no
imports beyond the interpreter's own. Whatever fails here, the rank runs, with the streams that torchrun gave it.
"""

from __future__ import annotations

import os
import sys

ADDRESS = b"SHOAL_RANK_PIPES"  # train's socket
THEIRS = b"SHOAL_PYTHON_EXEC"  # the user's own PYTHON_EXEC
_SCM_RIGHTS = 1


def main() -> None:
    """Take pipes, and become the rank; the process that torchrun watches stays the same."""
    environment = dict(os.environb)
    address, theirs = environment.pop(ADDRESS, None), environment.pop(THEIRS, None)
    environment.pop(b"PYTHON_EXEC", None)
    if theirs is not None:
        environment[b"PYTHON_EXEC"] = theirs
    parent = os.getppid()
    python = os.fsdecode(theirs) if theirs else _python_of(parent)
    try:
        if address is not None:
            _take_pipes(address, [stream for stream in (1, 2) if _is_inherited(stream, parent)])
    except OSError:
        pass  # its lines have no prefix then
    try:
        os.execvpe(python, [python, *sys.argv[1:]], environment)
    except OSError as error:
        sys.exit(f"{python}: cannot be started: {error}")


def _is_inherited(stream: int, parent: int) -> bool:
    """Whether the stream is torchrun's own: with --redirects or --tee it has put a file there."""
    theirs, ours = os.stat(f"/proc/{parent}/fd/{stream}"), os.fstat(stream)
    return (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino)


def _take_pipes(address: bytes, streams: list[int]) -> None:
    if not streams:
        return
    # The compiled part alone: the rest of `socket` costs milliseconds.
    import _socket

    pipes = [os.pipe() for _ in streams]
    told = " ".join([os.environ["RANK"], os.environ["LOCAL_RANK"], *map(str, streams)])
    ends = b"".join(reader.to_bytes(4, sys.byteorder) for reader, _ in pipes)
    link = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    link.connect(address)
    link.sendmsg([told.encode()], [(_socket.SOL_SOCKET, _SCM_RIGHTS, ends)])
    for stream, (_, writer) in zip(streams, pipes):
        os.dup2(writer, stream)


def _python_of(parent: int) -> str:
    """torchrun's sys.executable: what its process was started as, if that is what runs there (a virtual environment's
    `python` is a link), else the file that runs."""
    running = os.readlink(f"/proc/{parent}/exe")
    with open(f"/proc/{parent}/cmdline", "rb") as file:
        name = os.fsdecode(file.read().partition(b"\0")[0])
    folders = [""] if "/" in name else os.get_exec_path()
    for folder in folders:
        path = os.path.abspath(os.path.join(folder, name))
        if os.path.realpath(path) == running:
            return path
    return running if os.path.exists(running) else name


if __name__ == "__main__":
    main()
