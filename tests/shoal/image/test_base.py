"""The bootstrapped base: a failed bootstrap leaves nothing, an older recipe is made anew."""

import stat
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest

from shoal import engine
from shoal.errors import ShoalError
from shoal.image import base
from shoal.image.host_settings import AptSettings
from shoal.image.render import base_reference
from shoal.image.versions import Base

pytestmark = pytest.mark.engine

NAME = "test-base"
# A registry name that resolves nowhere: the pull fails at once.
SYSTEM = Base(pull="registry.invalid/debian:none", suite="bookworm", python="3.11", openmpi="4.1.4")
APT = AptSettings("http://mirror.example/private", None, ('Acquire::Retries "7";',))


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    client = engine.connect()
    yield client
    for image in client.images.list(name="shoal-base"):
        for tag in image.tags:
            if tag.startswith(base_reference(NAME)):
                client.images.remove(tag, force=True)


def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a mmdebstrap on PATH that writes its arguments to a file and runs `script`."""
    program = tmp_path / "bin" / "mmdebstrap"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/arguments\n{script}\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin:/usr/sbin:/sbin")


def tags(client: docker.DockerClient) -> list[str]:
    return [tag for image in client.images.list(name="shoal-base") for tag in image.tags if NAME in tag]


def test_a_bootstrap_that_fails_half_way_leaves_no_image(
    client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, "cd /etc && tar c hostname; echo 'E: signature is not valid' >&2; exit 1")
    with pytest.raises(
        ShoalError, match=r"bootstrapping Debian bookworm failed: E: signature is not valid \(all of it"
    ):
        base.ensure(client, NAME, SYSTEM, APT, tmp_path / "log")
    assert tags(client) == []


def test_a_private_mirror_serves_the_bootstrap_and_is_left_behind(
    client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, "cd /etc && tar c hostname")
    said = base.ensure(client, NAME, SYSTEM, APT, tmp_path / "log")
    assert said.startswith("bootstrapped from Debian bookworm, signatures checked")
    arguments = (tmp_path / "arguments").read_text().splitlines()
    assert "deb http://mirror.example/private bookworm main" in arguments
    assert '--aptopt=Acquire::Retries "7";' in arguments
    assert '--customize-hook=rm -f "$1/etc/apt/sources.list"' in arguments
    assert '--customize-hook=rm -f "$1/etc/apt/apt.conf.d/99mmdebstrap"' in arguments
    assert tags(client) == [base_reference(NAME)]


def test_one_of_an_older_recipe_is_made_anew(
    client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch, "cd /etc && tar c hostname")
    base.ensure(client, NAME, SYSTEM, APT, tmp_path / "log")
    assert base.ensure(client, NAME, SYSTEM, APT, tmp_path / "log").startswith("there already")
    monkeypatch.setattr(base, "VARIANT", "essential")
    assert base.ensure(client, NAME, SYSTEM, APT, tmp_path / "log").startswith("bootstrapped")


def test_without_registry_and_mmdebstrap_one_sentence_says_what_to_install(
    client: docker.DockerClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ShoalError, match=r"cannot be pulled .* cannot be bootstrapped: install mmdebstrap") as caught:
        base.ensure(client, NAME, SYSTEM, APT, tmp_path / "log")
    assert caught.value.exit_code == 3
