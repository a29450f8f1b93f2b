"""docker-bake.json: what it says of every image; where this machine has buildx, what buildx reads in it."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from shoal.image.render import rendered_path
from shoal.image.versions_file import load

ROOT = Path(__file__).resolve().parents[3]
VERSIONS = load(ROOT / "versions.yaml")
# The fields of a target that this project uses, as https://docs.docker.com/build/bake/reference/ types them.
FIELDS = {
    "context": str,
    "contexts": dict,
    "dockerfile": str,
    "target": str,
    "platforms": list,
    "tags": list,
    "secret": list,
}
PLUGINS = ("~/.docker/cli-plugins", "/usr/libexec/docker/cli-plugins", "/usr/lib/docker/cli-plugins")


def bake(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "shoal", "bake", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    content: dict[str, Any] = json.loads(done.stdout)
    return content


def buildx() -> str | None:
    """Return the program of buildx, if there is one: it reads bake files without an engine."""
    folders = [os.environ.get("PATH", ""), *(str(Path(folder).expanduser()) for folder in PLUGINS)]
    return shutil.which("docker-buildx", path=os.pathsep.join(folders))


def test_every_target_is_an_image_that_the_dockerfiles_have() -> None:
    content = bake()
    assert set(content) == {"group", "target"}
    assert content["group"]["default"]["targets"] == list(content["target"])
    for name, target in content["target"].items():
        assert {key: type(value) for key, value in target.items()} == FIELDS, name
        dockerfile = (ROOT / target["dockerfile"]).read_text()
        assert f"FROM runtime AS {target['target']}\n" in dockerfile
        assert all(f"FROM {base} AS base\n" in dockerfile for base in target["contexts"])
        assert len(target["contexts"]) == 1
    tags = [tag for target in content["target"].values() for tag in target["tags"]]
    assert len(set(tags)) == len(tags)


def test_groups_are_rows_and_flavours() -> None:
    groups = bake("2.13-cpu")["group"]
    assert groups == {
        name: {"targets": [f"2_13-cpu-{flavour}" for flavour in flavours]}
        for name, flavours in {
            "default": ("sagemaker", "ec2"),
            "2_13-cpu": ("sagemaker", "ec2"),
            "sagemaker": ("sagemaker",),
            "ec2": ("ec2",),
        }.items()
    }


def test_a_registry_goes_before_every_tag() -> None:
    target = bake("2.13-cpu", "--registry", "registry.example:5000/team/")["target"]["2_13-cpu-ec2"]
    assert all(tag.startswith("registry.example:5000/team/pytorch-training:2.13.0-cpu-") for tag in target["tags"])


def test_secrets_are_this_machine_s_settings_in_a_folder_of_their_own(tmp_path: Path) -> None:
    target = bake("2.13-cpu", "--secrets", str(tmp_path))["target"]["2_13-cpu-sagemaker"]
    secrets = dict(secret.removeprefix("id=").split(",src=") for secret in target["secret"])
    assert {"apt.conf", "pip.conf", "proxy.env", "sources.list"} <= set(secrets)
    assert all(Path(path).is_file() for path in secrets.values())
    assert stat.S_IMODE(Path(secrets["pip.conf"]).parent.stat().st_mode) == 0o700
    dockerfile = rendered_path("2.13-cpu", ROOT).read_text()
    assert all(f"type=secret,id={name}," in dockerfile for name in secrets)


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    command = [sys.executable, "-m", "shoal", "bake", "2.13-cpu", "--secrets", str(tmp_path / "file")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"shoal: --secrets: {tmp_path}/file/bookworm: cannot be written: Not a directory\n"


@pytest.mark.skipif(buildx() is None, reason="no docker-buildx on this machine")
def test_buildx_reads_in_it_what_was_written(tmp_path: Path) -> None:
    content = bake("--secrets", str(tmp_path / "secrets"))
    (tmp_path / "docker-bake.json").write_text(json.dumps(content))
    command = [str(buildx()), "bake", "--file", str(tmp_path / "docker-bake.json"), "--print"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout)["target"] == content["target"]
