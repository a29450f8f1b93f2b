"""The batch script of a job: one `train` on each node, in a container of pyxis or Apptainer, or in none. No effects.

Everything that the nodes read and write lies in the job's run folder, on a file system that they share.
"""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from shoal.errors import ShoalError
from shoal.job.plan import CODE, ML
from shoal.submit.portable import JOB_SECRET_FILE, Portable

Container = Literal["pyxis", "apptainer", "none"]
CONTAINERS: tuple[Container, ...] = get_args(Container)
_GRACE_S = 120  # as on SageMaker; `train` gives the script 110 of them
SECRET = "secret"
_CONFIG = ("hyperparameters.json", "inputdataconfig.json")


@dataclass(frozen=True)
class Options:
    """Where and how the nodes run it."""

    run: Path  # the job's folder
    container: Container
    channels: Mapping[str, Path]
    checkpoints: Path | None
    sbatch: tuple[str, ...]  # more options of sbatch


def script(job: Portable, options: Options) -> str:
    """Return the batch script.

    Raises:
        ShoalError: a path or an option cannot stand in it.
    """
    lines = ["#!/bin/bash", *(f"#SBATCH {option}" for option in _directives(job, options)), "set -u"]
    lines += [f"export {name}={shlex.quote(text)}" for name, text in _environment(job, options).items()]
    if options.checkpoints is not None:
        lines.append(f"mkdir -p {shlex.quote(str(options.checkpoints))}")
    if options.container == "none":
        lines += _bare_host(job, options)
    else:
        lines += _container_host(job, options)
    return "\n".join(lines) + "\n"


def _environment(job: Portable, options: Options) -> dict[str, str]:
    if job.has_secret:
        return job.environment
    seen_at = str(secret_file(options.run)) if options.container == "none" else f"{ML}/input/config/{SECRET}"
    return {**job.environment, JOB_SECRET_FILE: seen_at}


def secret_file(run: Path) -> Path:
    """Return where the job's secret lies on the file system that the nodes share; only its user reads it."""
    return run / "config" / SECRET


def _directives(job: Portable, options: Options) -> list[str]:
    for option in options.sbatch:
        if not option.startswith("-") or any(not character.isprintable() for character in option):
            raise ShoalError(f"--sbatch {option!r}: an option of sbatch was expected, such as --partition=gpu")
    run = str(options.run)
    if any(character in run for character in " \t\n,:%\\\"'"):
        raise ShoalError(f"--output: {run!r}: Slurm takes no path with blanks, quotes, commas, colons, % or \\ in it")
    return [
        f"--job-name={job.name}",
        f"--nodes={job.hosts}",
        "--ntasks-per-node=1",
        # The scripts get SIGTERM when MaxRuntimeInSeconds have passed; the limit leaves them their grace.
        f"--time={-(-job.max_runtime_s // 60) + _GRACE_S // 60}",
        f"--signal=TERM@{_GRACE_S}",
        "--no-requeue",
        f"--chdir={run}",
        f"--output={run}/logs/job.log",
        *options.sbatch,
    ]


def _srun(job: Portable, options: Options, *more: str) -> list[str]:
    """Return the step's command. A failing host ends the others by itself: Slurm must not do it first."""
    return [
        "exec srun",
        f"--nodes={job.hosts} --ntasks-per-node=1 --export=ALL --kill-on-bad-exit=0 --wait=0",
        f"--output={options.run}/logs/%N.log",
        *more,
    ]


def _bare_host(job: Portable, options: Options) -> list[str]:
    """Each node has a tree of its own, as /opt/ml is in a container, with links to what all share."""
    run = shlex.quote(str(options.run))
    links = {"code": "code", "model": "model", "output": "output"}
    body = [
        "set -eu",
        f"base={run}/hosts/$SLURM_NODEID",
        'mkdir -p "$base/input/config" "$base/input/data"',
        f'cp {" ".join(f"{run}/config/{name}" for name in _CONFIG)} "$base/input/config/"',
        *(f'ln -s {run}/{folder} "$base/{name}"' for name, folder in links.items()),
    ]
    if options.checkpoints is not None:
        body.append(f'ln -s {shlex.quote(str(options.checkpoints))} "$base/checkpoints"')
    for name, path in options.channels.items():
        body.append(f'ln -s {shlex.quote(str(path))} "$base/input/data/{name}"')
    body += ['export SAGEMAKER_BASE_DIR="$base"', f"exec {shlex.join([*job.entrypoint, *job.arguments])}"]
    host = shlex.quote("\n".join(body))
    return [" \\\n    ".join(_srun(job, options, f"bash -c {host}"))]


def _container_host(job: Portable, options: Options) -> list[str]:
    words = shlex.join([*job.entrypoint, *job.arguments])
    mounts = ",".join(_mounts(job, options))
    if options.container == "pyxis":
        step = [
            f"--container-image={shlex.quote(_enroot_image(job.image))}",
            "--container-writable --no-container-mount-home",
            f"--container-mounts={shlex.quote(mounts)}",
            # The image's own values of these would win otherwise.
            f"--container-env={','.join(_environment(job, options))}",
            words,
        ]
    else:
        image = job.image if _is_file(job.image) else f"docker://{job.image}"
        step = [
            "apptainer exec --nv --writable-tmpfs --no-home",
            f"--bind {shlex.quote(mounts)}",
            f"{shlex.quote(image)} {words}",
        ]
    return [" \\\n    ".join(_srun(job, options, *step))]


def _mounts(job: Portable, options: Options) -> list[str]:
    run = options.run
    mounts = [(run / "config" / name, f"{ML}/input/config/{name}", ":ro") for name in _CONFIG]
    mounts += [] if job.has_secret else [(secret_file(run), f"{ML}/input/config/{SECRET}", ":ro")]
    mounts += [(run / "code", CODE, "")] if job.code is not None else []
    mounts += [(run / "model", f"{ML}/model", ""), (run / "output", f"{ML}/output", "")]
    mounts += [(path, f"{ML}/input/data/{name}", ":ro") for name, path in options.channels.items()]
    mounts += [(options.checkpoints, job.checkpoints, "")] if options.checkpoints is not None else []
    for source, _target, _mode in mounts:
        if any(character in str(source) for character in ",:\n"):
            raise ShoalError(f"{str(source)!r}: {options.container} mounts no path with a comma or a colon in it")
    return [f"{source}:{target}{mode}" for source, target, mode in mounts]


def _is_file(image: str) -> bool:
    return image.startswith(("/", "./"))


def _enroot_image(image: str) -> str:
    """Return an image's name as enroot writes it: `#` behind the registry."""
    first, slash, rest = image.partition("/")
    is_registry = slash and (first == "localhost" or "." in first or ":" in first)
    return f"{first}#{rest}" if is_registry and not _is_file(image) else image
