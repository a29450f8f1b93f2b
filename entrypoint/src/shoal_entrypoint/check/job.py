"""The job's own files: what the configuration says, where the code is, what the input channels hold."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Mapping

from shoal_entrypoint import code, masking
from shoal_entrypoint.check.row import NOTE, OK, PROBLEM, Row
from shoal_entrypoint.configuration import Job
from shoal_entrypoint.outcome import JobError
from shoal_entrypoint.paths import Paths

__all__ = ["AS_TRAIN", "channels", "entry_point", "requirements", "settings", "source"]

AS_TRAIN = "Correct it: `train` ends with this line, exit code 1."
_SHOWN = 5
_SETTINGS = ("NCCL_", "FI_", "GLOO_", "OMP_", "MKL_", "SMDDP_", "SHOAL_", "TORCH_", "PYTORCH_", "CUDA_", "OMPI_MCA_")


def source(job: Job, folder: Path) -> Row:
    """Where the code is from; nothing is fetched."""
    submit = job.submit_directory
    values = {"folder": str(folder), "submit_directory": submit, "fetched": False}
    if _filled(folder):
        unused = f"; not fetched: {submit}" if submit and Path(submit) != folder else ""
        return Row("code", OK, f"{folder}{unused}", "", values)
    if submit is None or Path(submit) == folder:
        advice = "Mount or copy the script there, or set sagemaker_submit_directory."
        return Row("code", NOTE, f"{folder}: empty", advice, values)
    values["fetched"] = True
    text = f"{submit}, at the start: {folder} is empty"
    if submit.startswith("s3://"):
        if importlib.util.find_spec("boto3") is None:
            advice = "pip install boto3 in the image, or put the code into the container."
            return Row("code", PROBLEM, f"{text}; boto3 is not installed", advice, values)
        return Row("code", NOTE, f"{text}. Whether it can be read is not checked", "", values)
    if not Path(submit).exists():
        advice = "Name a local folder, a local tar file, or s3://bucket/key.tar.gz in sagemaker_submit_directory."
        return Row("code", PROBLEM, f"{submit}: no such file or directory", advice, values)
    return Row("code", OK, text, "", values)


def entry_point(job: Job, folder: Path) -> tuple[Row, code.Entry | None]:
    """Whether the script is there, as `train` would look for it."""
    where = _where(job, folder)
    values = {"program": job.program}
    try:
        entry = code.find_entry(job, where or folder)
        is_file = entry.kind not in (code.Kind.MODULE, code.Kind.WORDS)  # these may come with the requirements
        if where is not None and is_file and not (where / entry.name).is_file():
            code.check(entry, where)  # it raises: only a file that is there would be changed
    except JobError as error:
        return Row("entry_point", PROBLEM, error.text, AS_TRAIN, values), None
    if where is None:
        text = f"{entry.name} ({entry.kind}): not looked for before the code is there"
        return Row("entry_point", NOTE, text, "", values), entry
    return Row("entry_point", OK, f"{entry.name} ({entry.kind})", "", {**values, "kind": entry.kind}), entry


def requirements(entry: code.Entry | None, job: Job, folder: Path) -> Row:
    """What pip will be asked to install on every host."""
    where = _where(job, folder)
    if entry is None or where is None:
        return Row("requirements", OK, "not known before the code is there", "", {"install": []})
    wanted = code.installs(entry, where)
    values = {"install": [" ".join(argv[1:]) for _, argv in wanted]}
    if not wanted:
        unread = (where / "requirements.txt").exists()
        text = "requirements.txt is there, but not installed for shell scripts" if unread else "none"
        return Row("requirements", NOTE if unread else OK, text, "", values)
    if importlib.util.find_spec("pip") is None:
        return Row("requirements", PROBLEM, "pip is not installed", "Install pip in the image.", values)
    return Row("requirements", OK, "pip installs them at the start, on every host", "", values)


def channels(job: Job, paths: Paths) -> list[Row]:
    """The input channels: a folder each, with something in it."""
    if not job.inputs:
        return [Row("channels", OK, "none", "", {"channels": []})]
    rows: list[Row] = []
    good: list[str] = []
    for name, described in job.inputs.items():
        path = paths.channel(name)
        pipe = isinstance(described, dict) and described.get("TrainingInputMode") == "Pipe"
        if pipe:  # its FIFOs are <channel>_<epoch>, made when they are needed
            good.append(f"{name} (pipe)")
        elif not path.is_dir():
            advice = "Mount the channel's data there, or take it out of inputdataconfig.json."
            rows.append(Row("channels", PROBLEM, f"{path}: no such folder", advice, {"channel": name}))
        elif not os.access(path, os.R_OK | os.X_OK):
            advice = "Let the job's user read it."
            rows.append(Row("channels", PROBLEM, f"{path}: cannot be read", advice, {"channel": name}))
        elif not _filled(path):
            rows.append(Row("channels", NOTE, f"{path}: empty", "", {"channel": name}))
        else:
            good.append(name)
    values = {"channels": list(job.inputs)}
    more = f" and {len(good) - _SHOWN} more" if len(good) > _SHOWN else ""
    return [Row("channels", OK, ", ".join(good[:_SHOWN]) + more, "", values), *rows] if good else rows


def settings(environ: Mapping[str, str]) -> Row:
    """The variables that steer launchers and collectives, as they were given to the container. Secrets are masked."""
    given = {name: masking.mask(name, environ[name]) for name in sorted(environ) if name.startswith(_SETTINGS)}
    text = ", ".join(f"{name}={value}" for name, value in given.items())
    return Row("settings", OK, text or "none", "", {"variables": given})


def _filled(folder: Path) -> bool:
    try:
        return any(folder.iterdir())
    except OSError:
        return False


def _where(job: Job, folder: Path) -> Path | None:
    """The folder that the code is in now; None where `train` will unpack or fetch it."""
    if _filled(folder) or job.submit_directory is None:
        return folder
    return Path(job.submit_directory) if Path(job.submit_directory).is_dir() else None
