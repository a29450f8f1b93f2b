"""Several images at once on a real engine. The images are small ones: a shell script answers for their `python`."""

import io
import json
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import docker
import pytest
from rich.console import Console

from shoal import engine
from shoal.image import measure, names
from shoal.image.board import Board
from shoal.image.build import candidate_of, record_stem
from shoal.image.build_many import Outcome, Workshop, build_many
from shoal.image.children import Children
from shoal.image.lock import lock_names
from shoal.image.names import FLAVOURS
from shoal.image.targets import Target
from shoal.image.versions import Versions
from shoal.image.versions_file import load

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[3]
REPOSITORY = f"shoal-test-{uuid.uuid4().hex[:8]}"
# Rows by what happens to them; a torch version each, so that each has tags of its own.
ROWS = {"works": "2.13.0", "works-too": "2.12.1", "fails": "2.11.0", "sleeps": "2.10.0", "lies": "2.9.1"}
DRIVER = f"""
import sys
from pathlib import Path
from shoal import cli
from shoal.image import build_command, names
from shoal.image.versions import Versions
names.REPOSITORY = {REPOSITORY!r}
build_command.load = lambda path: Versions.model_validate_json((path.parent / "versions.json").read_text())
sys.argv[0] = "shoal"
cli.main()
"""

DOCKERFILE = """
{%- set answer = MEASURED -%}
FROM shoal-base:debian12 AS base
# RUN_ID
RUN cat /proc/sys/kernel/random/uuid > /shared
FROM base AS runtime
RUN printf '%s' '{{ answer | tojson }}' > /measured.json \\
    && printf '#!/bin/sh\\ncat /measured.json\\n' > /usr/bin/python && chmod +x /usr/bin/python
{% if name == "fails" %}
RUN echo "error: no such header: torch.h" >&2; exit 7
{% elif name == "sleeps" %}
RUN sleep 86399
{% endif %}
FROM runtime AS ec2
RUN echo ec2 > /flavour
FROM runtime AS sagemaker
RUN echo sagemaker > /flavour
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a repository of small images, with rows that fail in their own ways."""
    row = load(ROOT / "versions.yaml").row("2.13-cpu")
    declared = {key: f"row.{key}" for key in measure.DECLARED}
    measured = ", ".join(f'"{key}": {value}' for key, value in declared.items())
    answer = '{"smddp": name != "lies", "smp": "1.0", "packages": {}, "licenses": {}, "debian": {}, ' + measured + "}"
    template = DOCKERFILE.replace("MEASURED", answer).replace("RUN_ID", uuid.uuid4().hex)
    for folder in ("images/templates", "images/locks", "images/scripts", "wheelhouse"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "images/templates/Dockerfile.j2").write_text(template)
    (tmp_path / "images/probe.py").write_text("")
    (tmp_path / ".dockerignore").write_text((ROOT / ".dockerignore").read_text())
    (tmp_path / "versions.yaml").write_text("")
    rows = {name: row.model_copy(update={"torch": torch}) for name, torch in ROWS.items()}
    for name, one in rows.items():
        for lock in lock_names(name, one):
            (tmp_path / "images/locks" / lock).write_text("# nothing\n")
    bases = {row.base: load(ROOT / "versions.yaml").bases[row.base]}
    (tmp_path / "versions.json").write_text(Versions(bases=bases, rows=rows).model_dump_json())
    return tmp_path


@pytest.fixture
def client(clone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[docker.DockerClient]:
    monkeypatch.setattr(names, "REPOSITORY", REPOSITORY)
    client = engine.connect()
    yield client
    candidates = {candidate_of(record_stem(row, flavour), clone) for row in ROWS for flavour in FLAVOURS}
    for tag in [*tags(client), *(candidates & set(tags(client, "shoal-candidate")))]:
        client.images.remove(tag, force=True)


def tags(client: docker.DockerClient, repository: str = REPOSITORY) -> list[str]:
    return [tag for image in client.images.list(name=repository) for tag in image.tags]


def releases(client: docker.DockerClient) -> set[str]:
    """Return the torch versions in the tags there are."""
    return {tag.partition(":")[2].partition("-")[0] for tag in tags(client)}


def build(client: docker.DockerClient, clone: Path, *targets: Target) -> tuple[list[Outcome], str]:
    versions = Versions.model_validate_json((clone / "versions.json").read_text())
    screen = io.StringIO()
    with Board(Console(file=screen, width=200), [target.label for target in targets]) as board:
        outcomes = build_many(Workshop(client, versions, clone, Children()), targets, 2, board)
    return outcomes, screen.getvalue()


def content(client: docker.DockerClient, outcome: Outcome, path: str) -> str:
    assert outcome.built is not None
    said: bytes = client.containers.run(
        outcome.built.names.immutable, ["cat", path], remove=True, network_disabled=True
    )
    return said.decode()


def test_a_failed_row_shows_its_last_lines_and_does_not_stop_the_others(
    client: docker.DockerClient, clone: Path
) -> None:
    targets = [Target(row, "sagemaker") for row in ("works", "fails", "lies", "works-too")]
    outcomes, screen = build(client, clone, *targets)
    assert [outcome.result for outcome in outcomes] == ["built", "failed", "failed", "built"]
    assert "error: no such header: torch.h" in outcomes[1].tail
    assert re.search(r"fails +\| error: no such header: torch\.h", screen)
    assert re.search(r"fails +failed: docker build failed: error: no such header: torch\.h \(all of it: .*", screen)
    assert outcomes[2].error == "lies: smddp: not registered with torch.distributed"
    assert releases(client) == {ROWS["works"], ROWS["works-too"]}


def test_rows_of_one_base_share_its_stage(client: docker.DockerClient, clone: Path) -> None:
    outcomes, _ = build(client, clone, Target("works", "sagemaker"), Target("works-too", "sagemaker"))
    assert len({content(client, outcome, "/shared") for outcome in outcomes}) == 1


def test_what_has_not_changed_is_not_built_again(client: docker.DockerClient, clone: Path) -> None:
    target = Target("works", "sagemaker")
    shop = Workshop(client, Versions.model_validate_json((clone / "versions.json").read_text()), clone, Children())
    assert shop.missing(target)
    assert [outcome.result for outcome in build(client, clone, target)[0]] == ["built"]
    assert not shop.missing(target)
    assert [outcome.result for outcome in build(client, clone, target)[0]] == ["unchanged"]
    (clone / "images/scripts/new.sh").write_text("")
    assert shop.missing(target)


def test_an_image_without_a_record_is_measured_and_not_built_again(client: docker.DockerClient, clone: Path) -> None:
    build(client, clone, Target("works", "sagemaker"))
    before = {tag: client.images.get(tag).id for tag in tags(client)}
    (clone / ".shoal/works.json").unlink()
    [outcome], _ = build(client, clone, Target("works", "sagemaker"))
    assert outcome.result == "unchanged"
    assert {tag: client.images.get(tag).id for tag in tags(client)} == before
    assert json.loads((clone / ".shoal/works.json").read_text())["measured"]["torch"] == ROWS["works"]


def test_flavours_are_images_of_their_own(client: docker.DockerClient, clone: Path) -> None:
    outcomes, _ = build(client, clone, Target("works", "sagemaker"), Target("works", "ec2"))
    assert [content(client, outcome, "/flavour") for outcome in outcomes] == ["sagemaker\n", "ec2\n"]
    assert json.loads((clone / ".shoal/works-ec2.json").read_text())["names"]["full"].endswith("-ec2")
    assert json.loads((clone / ".shoal/works.json").read_text())["names"]["full"].endswith("-sagemaker")


def running(client: docker.DockerClient) -> bool:
    """Whether the step of the row that sleeps runs in the engine."""
    processes = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return "sleep 86399" in processes


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_stops_all_and_tags_nothing(
    client: docker.DockerClient, clone: Path, number: signal.Signals
) -> None:
    command = [sys.executable, "-c", DRIVER, "build", "works", "sleeps", "works-too", "--jobs", "1"]
    with subprocess.Popen(command, cwd=clone, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not running(client):
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        stdout, stderr = process.communicate()
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert stderr.endswith("shoal: stopped: what was not finished has no tag; a second run continues\n")
    assert re.search(r"^works +built .*\nsleeps +stopped .*\nworks-too +stopped ", stderr, re.MULTILINE)
    assert sorted(stdout.split()) == sorted(tags(client))
    assert releases(client) == {ROWS["works"]}
    while running(client):  # the engine takes the step back
        time.sleep(0.1)


def test_the_command_ends_with_a_table_and_exit_code_1(client: docker.DockerClient, clone: Path) -> None:
    command = [sys.executable, "-c", DRIVER, "build", "works", "fails", "--json"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    images = {image["row"]: image for image in json.loads(done.stdout)["images"]}
    assert images["works"]["result"] == "built"
    assert images["works"]["names"]["immutable"] in tags(client)
    assert images["fails"]["error"].startswith("docker build failed: error: no such header: torch.h")
    assert re.search(r"^image +result +MB +seconds\nworks +built +\d+ +\d+\nfails +failed +- +\d+$", done.stderr, re.M)
    assert done.stderr.endswith("shoal: 1 of 2 images not built: fails\n")


def test_changed_builds_what_has_no_image(client: docker.DockerClient, clone: Path) -> None:
    build(client, clone, Target("works", "sagemaker"))
    command = [sys.executable, "-c", DRIVER, "build", "works", "works-too", "--changed"]
    done = subprocess.run(command, cwd=clone, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.startswith("1 of 2 unchanged\n")
    assert f"{REPOSITORY}:{ROWS['works-too']}" in done.stdout
    assert f"{REPOSITORY}:{ROWS['works']}" not in done.stdout
