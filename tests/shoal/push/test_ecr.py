"""`shoal push` to ECR: the API is moto's, the layers go to a real registry that its login names."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ecr_server import EcrServer
from project import REPOSITORY, ROW, Project
from registry_server import RegistryServer

from shoal.image.names import names
from shoal.image.push.ecr import FIXED_TAGS, Repository
from shoal.image.versions_file import load

VERSIONS = load(Path(__file__).resolve().parents[3] / "versions.yaml")


@pytest.fixture
def registry(start_registry: Callable[..., RegistryServer]) -> RegistryServer:
    return start_registry(users={"AWS": "one"})


@pytest.fixture
def start_ecr(registry: RegistryServer, project: Project) -> Iterator[Callable[..., EcrServer]]:
    servers: list[EcrServer] = []

    def start(*passwords: str, **settings: float) -> EcrServer:
        servers.append(EcrServer(registry, *passwords, **settings))
        project.environment.update(servers[-1].environment)
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@pytest.mark.parametrize(
    ("mutability", "filters", "movable"),
    [
        ("MUTABLE", (), True),
        ("IMMUTABLE", (), False),
        ("IMMUTABLE_WITH_EXCLUSION", ("*-py311",), True),
        ("IMMUTABLE_WITH_EXCLUSION", ("*-py310",), False),
        ("MUTABLE_WITH_EXCLUSION", ("2.13*",), False),
        ("MUTABLE_WITH_EXCLUSION", ("2.12*",), True),
        ("WHATEVER_COMES_NEXT", (), True),
    ],
)
def test_which_tags_can_move(mutability: str, filters: tuple[str, ...], movable: bool) -> None:
    assert Repository("a", mutability, filters).can_move("2.13.0-cpu-py311") is movable


def test_in_a_repository_of_ours_content_tags_stay_and_all_others_move() -> None:
    images = [(name, flavour) for name, row in VERSIONS.rows.items() for flavour in row.flavours]
    for name, flavour in images:
        tags = names(VERSIONS, name, "0123456789abcdef", flavour)
        fixed = [tag for tag in tags.every if not Repository("a").can_move(tag.partition(":")[2])]
        assert fixed == [tags.immutable]


@pytest.mark.engine
def test_the_repository_is_created_and_the_image_pushed(
    project: Project, registry: RegistryServer, start_ecr: Callable[..., EcrServer]
) -> None:
    ecr = start_ecr("one")
    image = project.make_image()
    done = project.push_json("--to", "ecr/team")
    (made,) = ecr.client.describe_repositories()["repositories"]
    assert made["repositoryName"] == done["create_repository"] == f"team/{REPOSITORY}"
    assert made["imageTagMutability"] == "MUTABLE_WITH_EXCLUSION"
    assert tuple(entry["filter"] for entry in made["imageTagMutabilityExclusionFilters"]) == FIXED_TAGS
    assert made["imageScanningConfiguration"] == {"scanOnPush": True}
    assert done["image_uri"] == f"{registry.host}/team/{project.names.immutable}"
    assert registry.manifest(f"team/{REPOSITORY}", project.tag("short")).json()["config"]["digest"] == image
    assert ecr.tokens_given == 1
    assert project.push_json("--to", "ecr/team")["create_repository"] is None


@pytest.mark.engine
def test_a_dry_run_creates_no_repository(
    project: Project, registry: RegistryServer, start_ecr: Callable[..., EcrServer]
) -> None:
    ecr = start_ecr("one")
    project.make_image()
    done = project.push("--to", "ecr", "--dry-run")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines[0] == ["new", "repository", f"{registry.host}/{REPOSITORY}"]
    assert lines[1] == ["push", f"{registry.host}/{project.names.immutable}"]
    assert ecr.client.describe_repositories()["repositories"] == []


@pytest.mark.engine
def test_a_token_near_its_end_is_renewed(project: Project, start_ecr: Callable[..., EcrServer]) -> None:
    ecr = start_ecr("one", token_hours=0.1)
    project.make_image()
    project.push_json("--to", "ecr")
    assert ecr.tokens_given > 1


@pytest.mark.engine
@pytest.mark.slow
def test_a_token_that_ends_in_the_middle_of_a_push(
    project: Project, registry: RegistryServer, start_ecr: Callable[..., EcrServer]
) -> None:
    """The password changes as soon as the small layer is there: the request after the large one's bytes is refused."""
    ecr = start_ecr("one", "two")
    image = project.make_image(50_000, 60_000_000)
    process = project.start(ROW, "--to", "ecr")
    while not registry.blobs_confirmed():
        assert process.poll() is None, process.communicate()
    registry.users = {"AWS": "two"}
    registry.let_in(registry.users)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert stdout == f"{registry.host}/{project.names.immutable}\n"
    assert "logged in anew" in stderr
    assert ecr.tokens_given == 2
    assert registry.manifest(REPOSITORY, project.tag("short")).json()["config"]["digest"] == image


@pytest.mark.engine
def test_aliases_in_a_repository_where_nothing_moves(
    project: Project, registry: RegistryServer, start_ecr: Callable[..., EcrServer]
) -> None:
    ecr = start_ecr("one")
    ecr.client.create_repository(repositoryName=REPOSITORY, imageTagMutability="IMMUTABLE")
    project.make_image()
    project.push_json("--to", "ecr")
    project.change_sources()
    project.make_image()
    asked = len(registry.asked())
    done = project.push("--to", "ecr")
    assert done.returncode == 1
    assert done.stderr == (
        f"shoal: {registry.host}/{project.names.full}: names another image, and the repository's setting IMMUTABLE lets"
        " no tag like it move: push with --no-aliases, or change it (`aws ecr put-image-tag-mutability`)\n"
    )
    assert {method for method, _, _ in registry.asked()[asked:]} == {"GET"}
    assert project.push("--to", "ecr", "--no-aliases").returncode == 0


@pytest.mark.engine
@pytest.mark.parametrize(
    ("actions", "said"),
    [
        (["ecr:DescribeRepositories"], "ECR gives no login: "),
        (["ecr:GetAuthorizationToken"], "ECR does not describe the repository pytorch-training: "),
        (
            ["ecr:GetAuthorizationToken", "ecr:DescribeRepositories"],
            "ECR does not create the repository pytorch-training: ",
        ),
    ],
)
def test_an_identity_that_may_not(
    project: Project, start_ecr: Callable[..., EcrServer], actions: list[str], said: str
) -> None:
    project.environment.update(start_ecr("one").allow_only(*actions))
    project.make_image()
    done = project.push("--to", "ecr")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"shoal: {said}")
    assert "is not authorized to perform: ecr:" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.engine
@pytest.mark.parametrize(
    ("environment", "to", "said"),
    [
        ({}, "ecr", "ECR: no region: set AWS_REGION, or write the registry's host with --to"),
        (
            {"AWS_EC2_METADATA_DISABLED": "true"},
            "123456789012.dkr.ecr.us-west-2.amazonaws.com",
            "ECR: no AWS credentials: set AWS_PROFILE, or run `aws configure`",
        ),
        ({"AWS_PROFILE": "nobody"}, "ecr", "ECR is not usable: The config profile (nobody) could not be found"),
        (
            {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL_ECR": "http://127.0.0.1:1"},
            "123456789012.dkr.ecr.us-west-2.amazonaws.com",
            'ECR does not describe the repository pytorch-training: Could not connect to the endpoint URL: "http://127.0.0.1:1/"',
        ),
    ],
)
def test_aws_settings_that_lead_nowhere(project: Project, environment: dict[str, str], to: str, said: str) -> None:
    project.make_image()
    project.environment.update(environment)
    done = project.push("--to", to)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", f"shoal: {said}\n")
