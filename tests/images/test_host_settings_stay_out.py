"""The host's package settings reach a build, and nothing that leaves it holds them: no layer, no configuration."""

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import docker
import jinja2
import pytest
from rich.console import Console
from saved import Pattern, search

from shoal.image import base, buildkit, host_settings
from shoal.image.progress import Progress
from shoal.image.versions_file import load

pytestmark = pytest.mark.image

ROOT = Path(__file__).resolve().parents[2]
NAME = "2.13-cpu"
CANARY = "canary-9f3b61d0"


@pytest.fixture
def canary_image(client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Build a small image through the template's own macros, every kind of host setting carrying the canary."""
    versions = load(ROOT / "versions.yaml")
    system = versions.bases[versions.row(NAME).base]
    base.ensure(client, versions.row(NAME).base, system, host_settings.apt_settings(), tmp_path / "base.log")
    loader = jinja2.ChoiceLoader(
        [jinja2.FileSystemLoader(ROOT / "images" / "templates"), jinja2.FileSystemLoader(Path(__file__).parent)]
    )
    environment = jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, trim_blocks=True)
    template = environment.get_template("canary.Dockerfile.j2")
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(template.render(canary=CANARY, base=system, name=NAME))
    bundle = tmp_path / "ca.pem"
    bundle.write_text(f"# {CANARY}\n")
    monkeypatch.setenv("PIP_INDEX_URL", f"https://user:{CANARY}@packages.example/simple")
    apt = host_settings.AptSettings(
        f"http://mirror.example/{CANARY}", None, (f'Acquire::http::User-Agent "{CANARY}";',)
    )
    monkeypatch.setattr(host_settings, "apt_settings", lambda: apt)
    settings = {"https_proxy": f"http://user:{CANARY}@proxy.example:3128", "PIP_CERT": str(bundle)}
    tag = "shoal-test:canary"
    with host_settings.secrets(system.suite, {**os.environ, **settings}) as secrets:
        arguments = ["--no-cache", "--file", str(dockerfile), "--tag", tag, *secrets, str(ROOT)]
        buildkit.build(arguments, tmp_path / "build.log", Progress(Console(file=io.StringIO())))
    yield tag
    client.images.remove(tag, force=True)


def test_a_build_sees_every_setting_and_keeps_none(client: docker.DockerClient, canary_image: str) -> None:
    word = CANARY.encode()
    # The build itself failed unless each of the five settings was there (canary.Dockerfile.j2).
    assert client.containers.run(canary_image, ["cat", "/seen"], remove=True) == b"5\n"
    assert search(client, canary_image, {"canary": Pattern((word,), re.compile(word))}) == []
