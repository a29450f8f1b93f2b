"""A container of the image that runs one command and is gone."""

from collections.abc import Callable
from typing import Any, NamedTuple

import docker
import pytest
import requests

LIMIT_SECONDS = 90


class Done(NamedTuple):
    """How a command in a container ended."""

    rc: int
    out: str
    err: str


Run = Callable[..., Done]


def run(
    client: docker.DockerClient,
    command: list[str] | None = None,
    *,
    image: str,
    limit_seconds: float = LIMIT_SECONDS,
    **options: Any,
) -> Done:
    """Run `command` in a new container of `image`, without a network unless `options` say otherwise."""
    container = client.containers.run(image, command, detach=True, **{"network_mode": "none", **options})
    try:
        code = int(container.wait(timeout=limit_seconds)["StatusCode"])
        return Done(code, container.logs(stderr=False).decode(), container.logs(stdout=False).decode())
    except requests.RequestException:  # wait()'s own limit; what has been said so far says why
        pytest.fail(f"{command} has not ended in {limit_seconds} s: {container.logs(tail=60).decode()}")
    finally:
        container.remove(force=True)
