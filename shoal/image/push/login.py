"""User and password for a registry, from where `docker login` put them. For ECR's, see shoal.image.push.ecr."""

from dataclasses import dataclass
from typing import Protocol

import docker.auth
from docker.errors import DockerException

from shoal.errors import ShoalError


@dataclass(frozen=True)
class Login:
    """A user and a password; a token is a password too."""

    username: str
    password: str

    def as_auth_config(self) -> dict[str, str]:
        """Return it as the Docker SDK wants it."""
        return {"username": self.username, "password": self.password}


class LoginSource(Protocol):
    """Whoever knows the login of one registry."""

    advice: str  # what a user can do when the registry refuses the login

    def current(self) -> Login | None:
        """Return a login that should be good for now; None: there is none, and the registry may need none."""

    def renew(self) -> bool:
        """Look for another login than the one refused; return whether there is one."""


class DockerLogin:
    """What Docker's configuration (auths, credential stores, credential helpers) says of a host."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.advice = f"run `docker login {host}`"
        self._login = self._read()

    def current(self) -> Login | None:
        """Return the login of the configuration as it was last read."""
        return self._login

    def renew(self) -> bool:
        """Read the configuration again: a credential helper hands out tokens that end."""
        before, self._login = self._login, self._read()
        return self._login is not None and self._login != before

    def _read(self) -> Login | None:
        try:
            found = docker.auth.load_config().resolve_authconfig(self._host)
        except DockerException as error:
            raise ShoalError(
                f"{self._host}: Docker's configuration has no usable login: {error}", exit_code=3
            ) from error
        fields = {key.lower(): value for key, value in (found or {}).items()}
        if fields.get("identitytoken"):
            raise ShoalError(
                f"{self._host}: Docker's configuration has an identity token for it, which shoal cannot use: "
                f"run `docker login {self._host}` with a user and a password or access token",
                exit_code=3,
            )
        if not fields.get("username"):
            return None
        return Login(fields["username"], fields.get("password") or "")
