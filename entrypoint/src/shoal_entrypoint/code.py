"""The user's code: where it comes from, what kind of entry point it is, and what must be installed first."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from shoal_entrypoint.configuration import Job
from shoal_entrypoint.log import log
from shoal_entrypoint.outcome import JobError

__all__ = ["Entry", "Kind", "check", "check_installed", "fetch", "find_entry", "installs"]

_NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._+-]*(/[A-Za-z0-9._+-]+)*")

_LONGEST_NAME = 255

# `-m package.module` as the program: no file name that was ever accepted begins like this.
_MODULE = re.compile(r"-m\s+([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)")


class Kind:
    """What the entry point is."""

    PROGRAM = "program"  # train.py
    PACKAGE = "package"  # a setup.py stands beside it
    COMMAND = "command"  # train.sh or any executable
    MODULE = "module"  # -m package.module
    WORDS = "words"  # a command of the user's own, word by word


class Entry(NamedTuple):
    """An entry point and the ways to start it."""

    kind: str
    name: str
    words: tuple[str, ...] = ()  # of a command of the user's own

    @property
    def module(self) -> str:
        """The module name of a package's entry point."""
        return self.name[: -len(".py")] if self.name.endswith(".py") else self.name

    @property
    def is_python(self) -> bool:
        """Whether the process that is started is the user's own Python, not something that starts it."""
        if self.kind == Kind.WORDS:
            return Path(self.words[0]).name.startswith("python")
        return self.kind != Kind.COMMAND

    def argv(self, arguments: list[str]) -> list[str]:
        """Start it as one process."""
        if self.kind == Kind.WORDS:
            return [*self.words, *arguments]
        if self.kind == Kind.COMMAND:
            # One blank after the name even without arguments: tools compare the line with what they know.
            return ["/bin/sh", "-c", f"./{shlex.quote(self.name)} {' '.join(map(shlex.quote, arguments))}"]
        return [sys.executable, *(self._module or ["--", self.name]), *arguments]

    def mpi_argv(self, arguments: list[str]) -> list[str]:
        """Start it as one rank of an MPI job: mpi4py aborts all ranks when one raises."""
        if self.kind in (Kind.COMMAND, Kind.WORDS):
            return self.argv(arguments)
        return [sys.executable, "-m", "mpi4py", *(self._module or [self.name]), *arguments]

    def torchrun_argv(self, arguments: list[str]) -> list[str]:
        """What torchrun is given to start as each of its ranks."""
        if self.kind == Kind.WORDS:
            return ["--no-python", *self.argv(arguments)]
        return [*(self._module or [self.name]), *arguments]

    @property
    def _module(self) -> list[str]:
        return ["-m", self.module] if self.kind in (Kind.PACKAGE, Kind.MODULE) else []


def fetch(job: Job, code: Path) -> None:
    """Fill the code folder. Code that is already there (in the image, or mounted) wins."""
    if any(code.iterdir()):
        if (job.submit_directory or "").startswith("s3://"):
            log(f"{code} is not empty: using it, not fetching {job.submit_directory}")
        return
    source = job.submit_directory
    if source is None or Path(source) == code:
        return
    if source.startswith("s3://"):
        _fetch_s3(source, os.environ.get("AWS_REGION") or job.region, code)
    elif Path(source).is_dir():
        shutil.copytree(source, code, dirs_exist_ok=True)
    elif not Path(source).is_file():
        from shoal_entrypoint.masking import mask_text  # a URL may have a password in it

        raise JobError(
            f"sagemaker_submit_directory: {mask_text(source)}: no such file or directory (s3://, a local"
            " directory, or a local tar file is expected)"
        )
    else:
        _unpack_or_copy(Path(source), code)


def find_entry(job: Job, code: Path) -> Entry:
    """Decide what kind of entry point the job names."""
    if job.command:
        from shoal_entrypoint import command  # few jobs have one

        return Entry(Kind.WORDS, job.program, command.place(job.command, code, os.environ.get("PATH")))
    name = job.program
    module = _MODULE.fullmatch(name)
    if module:
        return Entry(Kind.MODULE, module.group(1))
    if name.startswith("-m"):
        raise JobError(f"sagemaker_program: {name!r}: after -m, a module's name was expected, as in -m package.train")
    parts = name.split("/")
    if not _NAME.fullmatch(name) or any(part in (".", "..") or len(part) > _LONGEST_NAME for part in parts):
        raise JobError(
            f"sagemaker_program: {name!r} is not a file name below {code}: letters, digits and . _ + - only, with"
            f" single slashes between folders, {_LONGEST_NAME} at most in each name"
        )
    if name.endswith(".sh"):
        return Entry(Kind.COMMAND, name)
    if (code / "setup.py").exists():
        return Entry(Kind.PACKAGE, name)
    return Entry(Kind.PROGRAM if name.endswith(".py") else Kind.COMMAND, name)


def check(entry: Entry, code: Path) -> None:
    """Make sure that the entry point is there before anything is started, and executable if it is run as a command."""
    if entry.kind in (Kind.MODULE, Kind.WORDS):
        return  # may come with the requirements: see check_installed
    path = code / entry.name
    # A package's module may live anywhere that its setup.py says; Python starts a directory by its __main__.py.
    found = path.is_file() or (entry.kind == Kind.PROGRAM and (path / "__main__.py").is_file())
    if not found and entry.kind != Kind.PACKAGE:
        suffix = ".sh" if entry.name.endswith(".sh") else ".py"
        names = sorted(str(file.relative_to(code)) for file in code.glob("**/*" + suffix))[:20]
        there = f"{suffix} files there: {', '.join(names)}" if names else f"there are no {suffix} files there"
        raise JobError(f"{entry.name}: no such file in {code}; {there}. Set sagemaker_program to one of them.")
    if entry.kind == Kind.COMMAND:
        real = path.resolve()
        if code.resolve() not in real.parents:
            raise JobError(
                f"{entry.name}: is a link to {real}, outside of {code}. Set sagemaker_program to a file in it;"
                " a command of the image goes into sagemaker_command."
            )
        _make_executable(path)


def _make_executable(path: Path) -> None:
    if os.access(path, os.X_OK):
        return
    try:
        path.chmod(path.stat().st_mode | 0o111)
    except OSError as error:
        raise JobError(
            f"{path}: is not executable, and cannot be made so: {error.strerror}. Run chmod +x on it before the job."
        ) from error


def check_installed(entry: Entry, code: Path, path: str | None) -> None:
    """Make sure, once the requirements are installed, that the words of a command begin with one on this host."""
    if entry.kind == Kind.WORDS:
        from shoal_entrypoint import command  # few jobs have one

        command.require(entry.words, code, path)


def installs(entry: Entry, code: Path) -> list[tuple[str, list[str]]]:
    """The pip commands to run in the code folder first, each with the error class its failure is reported as."""
    pip = [sys.executable, "-m", "pip", "install"]
    requirements = ["-r", "requirements.txt"] if (code / "requirements.txt").exists() else []
    packaged = entry.kind in (Kind.MODULE, Kind.WORDS) and (code / "setup.py").exists()
    if entry.kind == Kind.PACKAGE or packaged:
        return [("InstallModuleError", [*pip, ".", *requirements])]
    if entry.kind != Kind.COMMAND and requirements:
        return [("InstallRequirementsError", [*pip, *requirements])]
    return []


def _unpack_or_copy(source: Path, code: Path) -> None:
    from shoal_entrypoint import archive  # most jobs bring none, and each import costs milliseconds

    if archive.is_archive(source):
        archive.extract(source, code, str(source))
    else:
        shutil.copy(source, code)


def _fetch_s3(source: str, region: str, code: Path) -> None:
    import tempfile

    from shoal_entrypoint import archive

    try:
        import boto3  # 0.1 s and 20 MB, paid only by jobs whose code is in S3
    except ImportError:
        raise JobError(f"sagemaker_submit_directory: {source}: needs boto3 in the image: pip install boto3") from None

    bucket, _, key = source[len("s3://") :].partition("/")
    client = boto3.client("s3", region_name=region or None, endpoint_url=os.environ.get("S3_ENDPOINT_URL"))
    with tempfile.TemporaryDirectory() as directory:
        packed = Path(directory) / "source.tar.gz"
        try:
            client.download_file(bucket, key, str(packed))
        except Exception as error:
            raise JobError(f"sagemaker_submit_directory: {source}: cannot be downloaded: {error}") from error
        archive.extract(packed, code, source)
