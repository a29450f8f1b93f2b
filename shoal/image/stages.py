"""Builds one stage of a row's Dockerfile: the wheel alone, or what a test needs of a builder.

Whoever builds a stage goes through here: a stage mounts what `prepare` fetches, also where the engine has the image
already and a `shoal build` in the same clone has never had to fetch anything.
"""

from collections.abc import Sequence
from pathlib import Path

import docker

from shoal.image import buildkit, host_settings, render
from shoal.image.build import prepare
from shoal.image.children import Children
from shoal.image.progress import Reporter
from shoal.image.versions import Versions


def build_stage(
    client: docker.DockerClient,
    versions: Versions,
    name: str,
    root: Path,
    stage: str,
    output: Sequence[str],
    progress: Reporter,
    children: Children | None = None,
    added: str = "",
) -> None:
    """Have the base and the wheels of row `name`, then build `stage` of its Dockerfile, `added` being its last lines.

    `output` says where to, in the words of `docker build`: `--tag NAME` or `--output WHERE`.

    Raises:
        ShoalError: a step failed.
        StoppedError: `children` were stopped.
    """
    children = children or Children()
    state = root / ".shoal"
    state.mkdir(exist_ok=True)
    prepare(client, versions, name, root, progress, children)
    dockerfile = state / f"{name}-{stage}.Dockerfile"
    dockerfile.write_text(render.render(versions, name, root) + added)
    with host_settings.secrets(versions.bases[versions.row(name).base].suite) as secrets:
        arguments = ["--file", str(dockerfile), "--target", stage, *output, *secrets, str(root)]
        buildkit.build(arguments, state / f"{name}-{stage}.log", progress, children)
