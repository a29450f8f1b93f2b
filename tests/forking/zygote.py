"""A process that has imported what ranks need, as torch, and forks them: one then starts in milliseconds, not seconds.

    python -c "import zygote; zygote.serve()" MODULE ...

Reads one JSON object a line from stdin: {"argv", "env", "out", "err"}; answers {"pid"}. Says {"pid", "code"} for each
child that ends, with the code that subprocess would have. Ends, with all its children, when stdin does.
"""

from __future__ import annotations

import builtins
import gc
import importlib
import json
import os
import random
import selectors
import signal
import sys
from pathlib import Path
from typing import Any


def serve() -> None:
    """Imports the modules named by the arguments, then forks until stdin ends."""
    for name in sys.argv[1:]:
        importlib.import_module(name)
    # Else each rank's collector copies the pages of all these objects: a second at its end.
    gc.collect()
    gc.freeze()
    ended, wake = os.pipe()
    os.set_blocking(wake, False)
    os.set_blocking(ended, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(sys.stdin, selectors.EVENT_READ, data=sys.stdin)
    selector.register(ended, selectors.EVENT_READ)
    alive: set[int] = set()
    _say({"ready": True})
    while True:
        for key, _ in selector.select():
            if key.data:
                line = key.data.readline()
                if not line:
                    for pid in alive:
                        os.killpg(pid, signal.SIGKILL)
                    return
                pid = _fork(json.loads(line))
                alive.add(pid)
                _say({"pid": pid})
            else:
                os.read(ended, 4096)
                for pid in list(alive):
                    found, status = os.waitpid(pid, os.WNOHANG)
                    if found:
                        alive.discard(pid)
                        _say({"pid": pid, "code": os.waitstatus_to_exitcode(status)})


def _say(what: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


def _fork(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(order[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    os.environ.clear()
    os.environ.update(order["env"])
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    random.seed()
    script, *arguments = order["argv"]
    sys.argv = [script, *arguments]
    sys.path[0] = str(Path(script).parent)
    sys.stdin = open(0)  # noqa: SIM115 - the rank's own, for its whole life
    _become(script)
    raise AssertionError("not reached")


def _become(script: str) -> None:
    """Run the script as `python script` would: in the module __main__, ending as an interpreter ends."""
    main = sys.modules["__main__"].__dict__
    main.clear()
    main |= {"__name__": "__main__", "__file__": script, "__builtins__": builtins, "__spec__": None, "__doc__": None}
    exec(compile(Path(script).read_bytes(), script, "exec"), main)
    sys.exit(0)
