"""Where the platform puts a job's files: the fixed tree under /opt/ml, and a private directory for this run's keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Mapping, NamedTuple

from shoal_entrypoint.outcome import JobError

__all__ = ["Paths"]


class Paths(NamedTuple):
    """The container contract's directories. `base` is /opt/ml unless SAGEMAKER_BASE_DIR says otherwise."""

    base: Path
    run: Path
    run_is_chosen: bool = False  # by SHOAL_RUN_DIR

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Paths:
        """Read SAGEMAKER_BASE_DIR and SHOAL_RUN_DIR."""
        chosen = environ.get("SHOAL_RUN_DIR")
        return cls(Path(environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml"), Path(chosen or "/run/shoal"), bool(chosen))

    @property
    def code(self) -> Path:
        """User code: working directory of the user's process."""
        return self.base / "code"

    @property
    def input(self) -> Path:
        """Everything the platform hands in."""
        return self.base / "input"

    @property
    def config(self) -> Path:
        """The JSON files that describe the job."""
        return self.input / "config"

    @property
    def model(self) -> Path:
        """What becomes model.tar.gz."""
        return self.base / "model"

    @property
    def output(self) -> Path:
        """Holds `success` or `failure`, and the user's own output."""
        return self.base / "output"

    @property
    def output_data(self) -> Path:
        """What becomes output.tar.gz."""
        return self.output / "data"

    @property
    def intermediate(self) -> Path:
        """Output that is wanted before the job ends."""
        return self.output / "intermediate"

    @property
    def profiler(self) -> Path:
        """What the hardware did, where that is measured."""
        return self.output / "profiler"

    @property
    def failure(self) -> Path:
        """The failure file; the platform shows its first 1024 characters."""
        return self.output / "failure"

    @property
    def success(self) -> Path:
        """Empty marker of a job that ended well."""
        return self.output / "success"

    def channel(self, name: str) -> Path:
        """Where an input channel is mounted."""
        return self.input / "data" / name

    def make(self) -> None:
        """Create what user code may write to. Missing parents are normal outside the platform."""
        for directory in (self.code, self.model, self.output_data):
            try:
                directory.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise JobError(
                    f"{directory}: cannot be made: {error.strerror}. User {os.geteuid()} must be able to write below"
                    f" {self.base}; SAGEMAKER_BASE_DIR names another folder."
                ) from error

    def make_run(self) -> Paths:
        """Make the private directory for keys, which only its owner may look into; with it as it came out to be.

        Where /run is not ours to write, as for a user who is not root, it is a new one in TMPDIR, gone when `train` is.
        """
        try:
            self.run.mkdir(parents=True, exist_ok=True)
            self.run.chmod(0o700)
            return self
        except OSError as error:
            if self.run_is_chosen:
                raise JobError(
                    f"{self.run}: cannot be made for the job's keys: {error}. SHOAL_RUN_DIR names it: a directory that"
                    f" user {os.geteuid()} may write was expected."
                ) from error
        import atexit  # most jobs stay above
        import shutil
        import tempfile

        try:
            run = tempfile.mkdtemp(prefix="shoal-")  # 0700, a name nobody can guess, never one that was there
        except OSError as error:
            raise JobError(
                f"no directory for the job's keys: neither {self.run} nor one in TMPDIR ({tempfile.tempdir or '/tmp'})"
                f" can be made: {error}. SHOAL_RUN_DIR names another one."
            ) from error
        atexit.register(shutil.rmtree, run, ignore_errors=True)
        return self._replace(run=Path(run))
