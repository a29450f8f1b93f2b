"""What both SDKs' programs share: jobs come as lines of JSON, the SDK runs them one after another, an answer each.

One process for many jobs, because an SDK takes seconds to import. Run by the SDK's own interpreter, not by the tests'.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def serve(run: Callable[[dict[str, Any]], Any]) -> None:
    """Answer each line of stdin with {"value": what `run` returned} or {"error": what it raised}.

    Answers go to the pipe whose number is the first argument. What the SDK and its children write to stdout and stderr
    meanwhile goes to the job's file `log`.
    """
    answers = os.fdopen(int(sys.argv[1]), "w")
    for line in sys.stdin:
        job = json.loads(line)
        with Path(job.pop("log")).open("w") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        try:
            answer = {"value": run(job)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.flush()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
