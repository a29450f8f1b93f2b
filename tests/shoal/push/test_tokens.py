"""A registry whose logins are tokens of a third party, and which registries are talked to without TLS."""

from collections.abc import Callable
from pathlib import Path

import pytest
from project import REPOSITORY, Project
from registry_server import RegistryServer
from token_server import TokenServer

from shoal.image.push.registry_http import is_insecure

INFO = {
    "RegistryConfig": {
        "InsecureRegistryCIDRs": ["127.0.0.0/8", "10.0.0.0/8"],
        "IndexConfigs": {"plain.example": {"Secure": False}, "docker.io": {"Secure": True}},
    }
}


@pytest.mark.engine
@pytest.mark.parametrize("password", ["right", "wrong"])
def test_tokens_for_the_repository(
    project: Project, start_registry: Callable[..., RegistryServer], tmp_path: Path, password: str
) -> None:
    tokens = TokenServer(tmp_path, "ann", "right")
    registry = start_registry(auth=tokens.settings)
    project.make_image()
    project.log_in(registry.host, "ann", password)
    done = project.push("--to", registry.host)
    tokens.close()
    if password == "wrong":
        assert (done.returncode, done.stderr.count("\n")) == (3, 1)
        assert "the registry refuses user 'ann' (401 Unauthorized" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{registry.host}/{project.names.immutable}\n"
        assert f"repository:{REPOSITORY}:pull,push" in tokens.asked


@pytest.mark.parametrize(
    ("host", "insecure"),
    [
        ("127.0.0.1:5000", True),
        ("localhost", True),
        ("localhost:5000", True),
        ("10.1.2.3", True),
        ("11.1.2.3:5000", False),
        ("plain.example", True),
        ("docker.io", False),
        ("no-such-host.invalid:5000", False),
        ("[::1]:5000", False),
    ],
)
def test_where_the_engine_needs_no_tls(host: str, insecure: bool) -> None:
    assert is_insecure(host, INFO) is insecure
