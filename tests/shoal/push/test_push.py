"""`shoal push` to a real registry: what is there afterwards, what is sent, what is refused."""

import json
from collections.abc import Callable

import docker
import pytest
from project import REPOSITORY, Project
from registry_server import RegistryServer, free_port

pytestmark = pytest.mark.engine

KINDS = ("immutable", "full", "short")


def local_names(client: docker.DockerClient, host: str) -> list[str]:
    return [tag for image in client.images.list() for tag in image.tags if tag.startswith(host)]


def test_all_tags_name_the_image_and_the_uri_is_printed(
    project: Project, registry: RegistryServer, client: docker.DockerClient
) -> None:
    image = project.make_image()
    done = project.push("--to", registry.host)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{registry.host}/{project.names.immutable}\n"
    answers = [registry.manifest(REPOSITORY, project.tag(kind)) for kind in KINDS]
    assert {answer.json()["config"]["digest"] for answer in answers} == {image}
    assert len({answer.headers["Docker-Content-Digest"] for answer in answers}) == 1
    puts = [
        path.rpartition("/")[2] for method, path, _ in registry.asked() if "/manifests/" in path and method == "PUT"
    ]
    assert puts == [project.tag(kind) for kind in KINDS]
    assert local_names(client, registry.host) == []


def test_what_was_pushed_can_be_pulled(project: Project, registry: RegistryServer, client: docker.DockerClient) -> None:
    image = project.make_image()
    uri = project.push_json("--to", f"{registry.host}/team/a")["image_uri"]
    assert uri == f"{registry.host}/team/a/{project.names.immutable}"
    project.remove_images()
    assert client.images.pull(uri).id == image


def test_a_second_push_sends_nothing(project: Project, registry: RegistryServer) -> None:
    project.make_image()
    first = project.push_json("--to", registry.host)
    asked = len(registry.asked())
    second = project.push_json("--to", registry.host)
    assert {method for method, _, _ in registry.asked()[asked:]} == {"GET"}
    assert (first["layers_sent"], second["layers_sent"]) == (2, 0)
    assert first["digest"] == second["digest"]
    assert [step["action"] for step in first["steps"]] == ["push", "create", "create"]
    assert [step["action"] for step in second["steps"]] == ["keep", "keep", "keep"]


def test_aliases_move_and_the_immutable_tag_stays(project: Project, registry: RegistryServer) -> None:
    project.make_image()
    old = project.push_json("--to", registry.host)
    old_tag = project.tag("immutable")
    project.change_sources()
    image = project.make_image()
    new = project.push_json("--to", registry.host)
    assert [(step["action"], step["digest_before"]) for step in new["steps"]] == [
        ("push", None),
        ("move", old["digest"]),
        ("move", old["digest"]),
    ]
    assert registry.manifest(REPOSITORY, old_tag).headers["Docker-Content-Digest"] == old["digest"]
    assert registry.manifest(REPOSITORY, project.tag("short")).json()["config"]["digest"] == image


def test_no_aliases(project: Project, registry: RegistryServer) -> None:
    project.make_image()
    project.push_json("--to", registry.host, "--no-aliases")
    assert [registry.manifest(REPOSITORY, project.tag(kind)).status_code for kind in KINDS] == [200, 404, 404]


def test_an_immutable_tag_is_never_overwritten(project: Project, registry: RegistryServer) -> None:
    project.make_image()
    there = project.push_json("--to", registry.host)["digest"]
    other = project.make_image()  # another build of the same sources
    asked = len(registry.asked())
    done = project.push("--to", registry.host)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"shoal: {registry.host}/{project.names.immutable}: names another image already ({there}), and an immutable"
        f" tag is never overwritten; this machine's is {other}, another build of the same sources: use the one that is"
        " there (--keep), or push to another repository\n"
    )
    assert {method for method, _, _ in registry.asked()[asked:]} == {"GET"}


def test_another_build_of_the_same_sources_can_be_kept(project: Project, registry: RegistryServer) -> None:
    first = project.make_image()
    there = project.push_json("--to", registry.host, "--no-aliases")["digest"]
    project.make_image()
    done = project.push_json("--to", registry.host, "--keep")
    assert (done["digest"], done["image_id"], done["layers_sent"]) == (there, first, 0)
    assert [step["action"] for step in done["steps"]] == ["keep", "create", "create"]
    assert registry.manifest(REPOSITORY, project.tag("short")).json()["config"]["digest"] == first


@pytest.mark.parametrize("pushed_before", [False, True])
def test_a_dry_run_changes_nothing(project: Project, registry: RegistryServer, pushed_before: bool) -> None:
    project.make_image()
    if pushed_before:
        project.push_json("--to", registry.host)
        project.change_sources()
        project.make_image()
    asked = len(registry.asked())
    told = project.push("--to", registry.host, "--dry-run")
    planned = project.push_json("--to", registry.host, "--dry-run")
    assert {method for method, _, _ in registry.asked()[asked:]} == {"GET"}
    assert [line.split("127")[0].strip() for line in told.stdout.splitlines()] == (
        ["push", "move tag", "move tag"] if pushed_before else ["push", "new tag", "new tag"]
    )
    done = project.push_json("--to", registry.host)
    assert (planned["dry_run"], done["dry_run"]) == (True, False)
    assert {key: value for key, value in planned.items() if key != "dry_run"}.items() <= done.items()


def test_the_login_of_docker_is_used(project: Project, start_registry: Callable[..., RegistryServer]) -> None:
    registry = start_registry(users={"ann": "right"})
    image = project.make_image()
    project.log_in(registry.host, "ann", "right")
    project.push_json("--to", registry.host)
    assert registry.manifest(REPOSITORY, project.tag("short")).json()["config"]["digest"] == image


@pytest.mark.parametrize(
    ("password", "said"),
    [
        (None, "the registry wants a login, and there is none"),
        ("wrong", "the registry refuses user 'ann' (401 Unauthorized: authentication required)"),
    ],
)
def test_a_login_that_is_refused(
    project: Project, start_registry: Callable[..., RegistryServer], password: str | None, said: str
) -> None:
    registry = start_registry(users={"ann": "right"})
    project.make_image()
    if password is not None:
        project.log_in(registry.host, "ann", password)
    done = project.push("--to", registry.host)
    assert done.returncode == 3
    assert done.stderr.startswith(f"shoal: {registry.host}: {said}")
    assert done.stderr.endswith(f": run `docker login {registry.host}`\n")
    assert done.stderr.count("\n") == 1


def test_a_registry_that_is_not_there(project: Project) -> None:
    project.make_image()
    host = f"127.0.0.1:{free_port()}"
    done = project.push("--to", host)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"shoal: {host}: the registry does not answer: Connection refused\n"


def test_an_image_that_is_not_there(project: Project, registry: RegistryServer) -> None:
    done = project.push("--to", registry.host)
    assert done.returncode == 2
    assert done.stderr == (
        f"shoal: 2.13-cpu: no image of today's sources ({project.names.immutable}): run `shoal build 2.13-cpu`\n"
    )


def test_every_image_that_is_here(project: Project, registry: RegistryServer) -> None:
    project.make_image()
    project.flavour = "ec2"
    ec2 = project.make_image()
    done = project.push("--to", registry.host, "--all", row="2.13-cpu")
    assert done.returncode == 2  # rows, or all
    answer = json.loads(project.run("--to", registry.host, "--all", "--json").stdout)
    assert [image["image_id"] for image in answer["images"]] == project.made
    assert registry.manifest(REPOSITORY, project.tag("short")).json()["config"]["digest"] == ec2
    assert project.tag("short").endswith("-ec2")


def test_no_image_at_all(project: Project, registry: RegistryServer) -> None:
    done = project.run("--to", registry.host, "--all")
    assert (done.returncode, done.stderr) == (
        2,
        "shoal: push --all: no row has an image of today's sources here: run `shoal build`\n",
    )


def test_a_row_that_is_not_there(project: Project, registry: RegistryServer) -> None:
    done = project.push("--to", registry.host, row="2.12-cpuu")
    assert done.returncode == 2
    assert "no row '2.12-cpuu'; did you mean" in done.stderr


def test_docker_settings_that_cannot_be_read(project: Project, registry: RegistryServer) -> None:
    project.make_image()
    (project.folder / "config.json").write_text(json.dumps({"credHelpers": {registry.host: "not-installed"}}))
    done = project.push("--to", registry.host)
    assert done.returncode == 3
    assert f"{registry.host}: Docker's configuration has no usable login" in done.stderr
    assert "Traceback" not in done.stderr
