"""What the hosts of a job must agree on before they can talk."""

from __future__ import annotations

from typing import Mapping, NamedTuple

from shoal_entrypoint.configuration import number
from shoal_entrypoint.control import secret
from shoal_entrypoint.outcome import JobError

__all__ = ["HOST_TIMEOUT_SECONDS", "Terms", "host_timeout"]

DEFAULT_PORT = 7593
DEFAULT_JOIN_SECONDS = 900.0
HOST_TIMEOUT_SECONDS = 30.0
_SHORTEST_HOST_TIMEOUT = 3.0


class Terms(NamedTuple):
    """The settings of the control channel, the same on every host."""

    port: int = DEFAULT_PORT
    join_seconds: float = DEFAULT_JOIN_SECONDS
    host_seconds: float = HOST_TIMEOUT_SECONDS  # a host that is silent for so long is lost
    secret: bytes | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Terms:
        """Read and check them."""
        return cls(
            port=int(number(environ, "SHOAL_CONTROL_PORT", DEFAULT_PORT)),
            join_seconds=number(environ, "SHOAL_JOIN_TIMEOUT", DEFAULT_JOIN_SECONDS),
            host_seconds=host_timeout(environ),
            secret=secret.find(environ),
        )


def host_timeout(environ: Mapping[str, str]) -> float:
    """Seconds after which a host that has vanished from the network is given up."""
    seconds = number(environ, "SHOAL_HOST_TIMEOUT", HOST_TIMEOUT_SECONDS)
    if not _SHORTEST_HOST_TIMEOUT <= seconds <= 24 * 3600:
        raise JobError(f"SHOAL_HOST_TIMEOUT: {seconds:g}: 3 to 86400 seconds were expected")
    return seconds
