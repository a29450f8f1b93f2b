"""The Docker engine, through the Docker SDK: everything but `docker build` (see shoal.image.buildkit)."""

import docker
from docker.errors import DockerException

from shoal.errors import ShoalError


def connect() -> docker.DockerClient:
    """Return a client of the engine that DOCKER_HOST (or the default socket) names.

    Raises:
        ShoalError: no engine answers there.
    """
    try:
        client = docker.from_env()
        client.ping()
    except (DockerException, ValueError) as error:  # ValueError: a DOCKER_HOST that is no address
        raise ShoalError(
            f"no Docker engine answers ({error}): start one, set DOCKER_HOST, or run `make engine`", exit_code=3
        ) from error
    return client
