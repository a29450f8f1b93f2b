"""The run folder of a job on the file system that the nodes share: what they read is put there before, and copied."""

import os
import secrets
import shutil
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shoal.errors import ShoalError
from shoal.job.payload import write_code_archive
from shoal.job.plan import CODE
from shoal.submit.portable import Portable
from shoal.submit.slurm.script import secret_file

_STOPPED = "stopped"  # an empty file: somebody asked for the end


@contextmanager
def made(run: Path, job: Portable, script: str) -> Iterator[Path]:
    """Make the run folder and yield the batch script in it; if the block raises, the folder is gone again.

    Raises:
        ShoalError: there is one already, or it cannot be written.
    """
    try:
        run.mkdir(parents=True)
    except FileExistsError as error:
        raise ShoalError(f"{run}: is there already: give another name with --job-name, or another --output") from error
    except OSError as error:
        raise ShoalError(f"{run}: cannot be made: {error.strerror}") from error
    try:
        try:
            _fill(run, job, script)
        except OSError as error:
            raise ShoalError(f"{run}: cannot be written: {error.strerror or error}") from error
        yield run / "job.sh"
    except BaseException:
        shutil.rmtree(run, ignore_errors=True)
        raise


def _fill(run: Path, job: Portable, script: str) -> None:
    for name in ("config", "code", "model", "output/data", "logs"):
        (run / name).mkdir(parents=True)
    for name, text in job.config(CODE).items():
        (run / "config" / name).write_text(text)
    if not job.has_secret:
        _write_secret(secret_file(run))
    (run / "job.sh").write_text(script)
    if job.code is not None:
        with tempfile.TemporaryFile() as stream:
            write_code_archive(job.code, stream)
            stream.seek(0)
            with tarfile.open(fileobj=stream) as archive:
                # As tarfile's documentation has it: Python 3.11.2, which is Debian 12's, has no filters.
                archive.extraction_filter = getattr(tarfile, "data_filter", lambda member, _path: member)
                archive.extractall(run / "code")


def _write_secret(file: Path) -> None:
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o400), "w") as stream:
        stream.write(secrets.token_hex(32) + "\n")


def mark_stopped(run: Path) -> None:
    """Note that the job was asked to end: Slurm itself does not tell a stopped job from one that failed."""
    try:
        (run / _STOPPED).touch()
    except OSError as error:
        raise ShoalError(f"{run / _STOPPED}: cannot be written: {error.strerror}") from error


def was_stopped(run: Path) -> bool:
    """Whether that was noted."""
    return (run / _STOPPED).exists()


def failure(run: Path) -> str:
    """Return the text of the job's failure file; empty if there is none here."""
    try:
        return (run / "output" / "failure").read_text(errors="replace")[:1024]
    except OSError:
        return ""


def logs(run: Path) -> dict[str, Path]:
    """Return the log of each host that has one; of the batch script itself only if it said something."""
    found = {file.stem: file for file in sorted((run / "logs").glob("*.log"))}
    if "job" in found and found["job"].stat().st_size == 0:
        del found["job"]
    return found
