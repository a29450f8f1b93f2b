"""buildspec.yml: what CodeBuild would accept, and commands that exist.

The model has the parts of the reference that a build of ours may use:
https://docs.aws.amazon.com/codebuild/latest/userguide/build-spec-ref.html
"""

import re
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer.main
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typer.core import TyperGroup

from shoal.cli import app

ROOT = Path(__file__).resolve().parents[3]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Phase(Strict):
    run_as: str = Field("root", alias="run-as")
    on_failure: Literal["ABORT", "CONTINUE"] = Field("ABORT", alias="on-failure")
    runtime_versions: dict[str, str] = Field({}, alias="runtime-versions")
    commands: Annotated[list[str], Field(min_length=1)]
    final: list[str] = Field([], alias="finally")


class Phases(Strict):
    install: Phase | None = None
    pre_build: Phase | None = None
    build: Phase
    post_build: Phase | None = None


class Environment(Strict):
    shell: Literal["bash", "/bin/sh"] = "/bin/sh"
    variables: dict[str, str] = {}


class Artifacts(Strict):
    files: Annotated[list[str], Field(min_length=1)]
    name: str = ""
    base_directory: str = Field("", alias="base-directory")
    discard_paths: Literal["yes", "no"] = Field("no", alias="discard-paths")


class BuildSpec(Strict):
    version: float = Field(ge=0.2, le=0.2)
    env: Environment = Environment()
    phases: Phases
    artifacts: Artifacts | None = None

    def commands(self) -> list[str]:
        phases = [self.phases.install, self.phases.pre_build, self.phases.build, self.phases.post_build]
        return [command for phase in phases if phase for command in (*phase.commands, *phase.final)]


def unknown(command: str, makefile: str) -> str | None:
    """Return what is wrong with a command: a verb or an option that there is not; None when it is right."""
    program, *words = shlex.split(command)
    if program == "make":
        goals = set(re.findall(r"^([a-z-]+):.*## ", makefile, re.MULTILINE))
        return next((f"make: no verb {word}" for word in words if word not in goals), None)
    if program != ".venv/bin/shoal":
        return f"neither make nor shoal: {program}"
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    verb = group.get_command(typer.Context(group), words[0])
    if verb is None:
        return f"shoal: no verb {words[0]}"
    options = {option for parameter in verb.params for option in parameter.opts}
    return next((f"{words[0]}: no option {word}" for word in words[1:] if word[0] == "-" and word not in options), None)


def data() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "buildspec.yml").read_text())
    return loaded


def test_codebuild_would_accept_it_and_every_command_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = BuildSpec.model_validate(data()).commands()
    assert [wrong for command in commands if (wrong := unknown(command, makefile))] == []


def test_nothing_is_pushed_that_has_failed_its_tests() -> None:
    """CodeBuild runs post_build after a failed build, and ends a phase at the first command that fails."""
    phases = BuildSpec.model_validate(data()).phases
    verbs = [" ".join(shlex.split(command)[:2]) for command in phases.build.commands]
    assert verbs == [".venv/bin/shoal build", "make test-images", ".venv/bin/shoal push"]
    assert phases.post_build is not None
    assert not [command for command in phases.post_build.commands if "push" in command]


@pytest.mark.parametrize(
    ("command", "wrong"),
    [
        ("make venv", None),
        (".venv/bin/shoal push --all", None),
        ("make everything", "make: no verb everything"),
        (".venv/bin/shoal polish", "shoal: no verb polish"),
        (".venv/bin/shoal push --force", "push: no option --force"),
        ("curl example.com", "neither make nor shoal: curl"),
    ],
)
def test_a_command_that_does_not_exist_is_found(command: str, wrong: str | None) -> None:
    assert unknown(command, "venv: ## Make .venv\n") == wrong


@pytest.mark.parametrize("part", ["phase", "artifacts", "version"])
def test_a_mistake_is_found(part: str) -> None:
    spec = data()
    spec["version"] = 0.1 if part == "version" else spec["version"]
    spec["phases"]["deploy" if part == "phase" else "pre_build"] = {"commands": ["true"]}
    spec["artifacts"]["files"] = [] if part == "artifacts" else spec["artifacts"]["files"]
    with pytest.raises(ValidationError):
        BuildSpec.model_validate(spec)
