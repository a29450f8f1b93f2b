"""A rank that speaks the driver's protocol and does nothing: ``small_rank.py RANK [WORD...]``.

``shares NAME``: map a new file of shared memory of that name. ``daemon``: start a process that leaves the session, as a
launcher's daemon does. ``stuck``: do not obey ``quit``.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

rank, words = sys.argv[1], sys.argv[2:]
folder = Path(os.environ["BENCH_CHANNEL"])
if "shares" in words:
    with Path("/dev/shm", words[words.index("shares") + 1]).open("w+b") as file:
        file.truncate(4096)
        shared = mmap.mmap(file.fileno(), 4096)
if "daemon" in words:
    subprocess.Popen(["sleep", "600"], start_new_session=True)
with (folder / f"in.{rank}").open() as commands, (folder / f"out.{rank}").open("w", buffering=1) as replies:
    print("ready", os.getpid(), file=replies)
    for line in commands:
        if line.strip() == "quit":
            break
if "stuck" in words:
    time.sleep(600)
(folder / f"left.{rank}").touch()
