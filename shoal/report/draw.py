"""Draw plots, half of them in a second process: matplotlib uses one core, and a page of many hosts takes it seconds."""

import contextlib
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from shoal.report.plots import Plot

_FEWEST_HOSTS = 3  # for fewer, a second process begins to draw when the first is done
_PROGRAM = "import sys; sys.path.insert(0, sys.argv.pop(1)); from shoal.report import draw; draw.serve()"


class Drawing(NamedTuple):
    """A plot to be drawn: what draws it, and of what. Both can be pickled."""

    how: "Callable[..., Plot]"
    what: tuple[Any, ...]


Draw = Callable[[Sequence[Drawing]], "list[Plot]"]


def here(drawings: Sequence[Drawing]) -> "list[Plot]":
    """Draw in this process."""
    return [drawing.how(*drawing.what) for drawing in drawings]


@contextlib.contextmanager
def drawing(hosts: int) -> Iterator[Draw]:
    """Return what draws the plots of so many hosts. Enter early: the second process takes a while to start."""
    if hosts < _FEWEST_HOSTS or (os.cpu_count() or 1) < 2:
        yield here
        return
    root = str(Path(__file__).resolve().parents[2])
    argv = [sys.executable, "-c", _PROGRAM, root]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as helper:
        try:
            yield lambda drawings: _halves(drawings, helper)
        finally:
            helper.kill()  # it has ended, unless something failed here


def _halves(drawings: Sequence[Drawing], helper: "subprocess.Popen[bytes]") -> "list[Plot]":
    """Draw one half while the helper draws the other; that too, if the helper cannot."""
    half = len(drawings) // 2
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(helper.communicate, pickle.dumps(drawings[:half]))
        ours = here(drawings[half:])
        output, _ = answer.result()
    theirs = pickle.loads(output) if helper.returncode == 0 else here(drawings[:half])
    return [*theirs, *ours]


def serve() -> None:
    """Be the helper: draw what comes on stdin, when all of it is there."""
    from shoal.report import plots  # noqa: F401 - matplotlib is imported while nothing is there yet to draw

    drawn = here(pickle.loads(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(pickle.dumps(drawn))
