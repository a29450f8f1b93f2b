"""Where `shoal push --to` sends an image: the text a user gives, taken apart. Pure: no network, no Docker."""

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from shoal.errors import ShoalError
from shoal.image.names import REPOSITORY

# Private registries of ECR: https://docs.aws.amazon.com/AmazonECR/latest/userguide/Registries.html (dual stack: on.aws)
_ECR = re.compile(
    r"^(?P<account>\d{12})\.dkr[.-]ecr(-fips)?\.(?P<region>[a-z0-9-]+)\.(amazonaws\.com(\.cn)?|on\.(aws|amazonwebservices\.com\.cn))$"
)
_HOST = re.compile(
    r"^(localhost|[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+:\d{1,5}|\[[0-9A-Fa-f:]+\](:\d{1,5})?)(:\d{1,5})?$"
)
# A path component as registries accept it: https://distribution.github.io/distribution/spec/api/
_COMPONENT = re.compile(r"^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*$")
_EXAMPLES = (
    "say ecr (this account's registry), 123456789012.dkr.ecr.us-west-2.amazonaws.com, or HOST[:PORT][/PREFIX]"
    " such as localhost:5000 or docker.io/me"
)


@dataclass(frozen=True)
class EcrAddress:
    """A private registry of ECR; None: the account and region that this machine's AWS settings lead to."""

    account: str | None = None
    region: str | None = None


@dataclass(frozen=True)
class Destination:
    """A registry, and the repository in it."""

    host: str | None  # None: ECR's answer to a login says which
    repository: str
    ecr: EcrAddress | None


def parse(to: str) -> Destination:
    """Take `--to` apart.

    Raises:
        ShoalError: it names no registry.
    """
    if "://" in to:
        raise ShoalError(
            f"--to {to}: leave {urlsplit(to).scheme}:// out; whether to use TLS is the Docker engine's setting"
        )
    host, _, prefix = to.strip("/").partition("/")
    repository = _repository(to, prefix)
    if host == "ecr":
        return Destination(None, repository, EcrAddress())
    if not _HOST.match(host):
        raise ShoalError(f"--to {to}: {host!r} is no registry's host: {_EXAMPLES}")
    found = _ECR.match(host)
    return Destination(host, repository, EcrAddress(found["account"], found["region"]) if found else None)


def _repository(to: str, prefix: str) -> str:
    components = prefix.split("/") if prefix else []
    for component in components:
        if not _COMPONENT.match(component):
            hint = "; tags follow from the row" if ":" in component or "@" in component else ""
            raise ShoalError(
                f"--to {to}: {component!r} cannot be part of a repository's name: lower-case letters, digits, and"
                f" single . _ - between them{hint}"
            )
    if components[-1:] != [REPOSITORY]:
        components.append(REPOSITORY)
    return "/".join(components)
