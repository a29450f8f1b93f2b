"""What a killed `shoal run` has left in folders, which the labels of its network name.

Labels are anybody's to write, so nothing is touched but what only `shoal run` makes.
"""

import contextlib
import json
import os
import shutil
from datetime import UTC, datetime
from pathlib import Path

from shoal.job import staging
from shoal.job.artifacts import UNFINISHED, finished_or_absent

LOST = "InternalServerError: shoal run ended before the job did (killed, or the machine restarted)"


def tidy(staged: str, kept: str) -> None:
    """Remove what there is, and describe the job as failed.

    `staged` is the folder of its inputs in its run folder, `kept` a JSON list of folders it has written files to.
    """
    folder = Path(staged)
    if folder.name != staging.FOLDER or not (folder.parent / "job.json").is_file():
        return
    staging.clear(folder)
    with contextlib.suppress(ValueError, TypeError):
        for each in [str(folder.parent), *json.loads(kept or "[]")]:
            _remove_unfinished(Path(each))
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        _mark(folder.parent / "job.json")


def _remove_unfinished(folder: Path) -> None:
    for path, folders, names in os.walk(folder):
        for name in [name for name in folders if name.endswith(UNFINISHED)]:
            shutil.rmtree(Path(path, name), ignore_errors=True)
        for name in names:
            if name.endswith(UNFINISHED):
                with contextlib.suppress(OSError):
                    Path(path, name).unlink()


def _mark(file: Path) -> None:
    described = json.loads(file.read_text())
    if described["TrainingJobStatus"] != "InProgress":
        return
    now = datetime.now(UTC).isoformat()
    stages = described["SecondaryStatusTransitions"]
    stages[-1].setdefault("EndTime", now)
    stages.append({"Status": "Failed", "StartTime": now, "StatusMessage": LOST})
    ended = {"TrainingJobStatus": "Failed", "SecondaryStatus": "Failed", "FailureReason": LOST, "LastModifiedTime": now}
    with finished_or_absent(file) as stream:
        stream.write((json.dumps({**described, **ended}, indent=2) + "\n").encode())
