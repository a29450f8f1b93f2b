"""ECR's own part of a push: the login, and a repository whose content tags cannot be overwritten."""

import base64
import contextlib
import datetime as dt
import fnmatch
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

from shoal.errors import ShoalError
from shoal.image.push.destination import EcrAddress
from shoal.image.push.login import Login

# A tag that ends in a content hash never moves; aliases (`...-py311`, `...-sagemaker`) do. ECR allows five filters and
# no wildcard but *, so the few that stay are named, not the many that move.
MUTABILITY = "MUTABLE_WITH_EXCLUSION"
FIXED_TAGS = ("*-sagemaker-*", "*-ec2-*")
# A push may begin with a token that is nearly at its end (they live for 12 hours).
_RENEW_BEFORE = dt.timedelta(minutes=30)
_PATIENT = Config(connect_timeout=10, read_timeout=30, retries={"mode": "standard", "total_max_attempts": 4})


@dataclass(frozen=True)
class Repository:
    """A repository as ECR describes it, or as it would be created."""

    name: str
    mutability: str = MUTABILITY
    filters: tuple[str, ...] = FIXED_TAGS
    exists: bool = field(default=True, compare=False)

    def can_move(self, tag: str) -> bool:
        """Return whether ECR lets `tag` name another image than it does."""
        listed = any(fnmatch.fnmatchcase(tag, pattern) for pattern in self.filters)
        return {"IMMUTABLE": False, "IMMUTABLE_WITH_EXCLUSION": listed, MUTABILITY: not listed}.get(
            self.mutability, True
        )


class Ecr:
    """A private registry of ECR; it is a `LoginSource` too."""

    advice = "look at the AWS identity's permissions (ecr:GetAuthorizationToken, and push to the repository)"

    def __init__(self, address: EcrAddress) -> None:
        self._registry = {"registryId": address.account} if address.account else {}
        region = address.region or os.environ.get("AWS_REGION")  # boto3 itself reads AWS_DEFAULT_REGION only
        with self._explained("is not usable"):
            self._client = boto3.client("ecr", region_name=region, config=_PATIENT)
        self._login: Login | None = None
        self._ends = dt.datetime.min.replace(tzinfo=dt.UTC)
        self._endpoint = ""

    @property
    def host(self) -> str:
        """The registry that the login is for."""
        self.current()
        return urlsplit(self._endpoint).netloc

    def current(self) -> Login | None:
        """Return a login that is good for half an hour at least."""
        if self._login is None or dt.datetime.now(tz=dt.UTC) > self._ends - _RENEW_BEFORE:
            self.renew()
        return self._login

    def renew(self) -> bool:
        """Ask for a new token."""
        with self._explained("gives no login"):
            given = self._client.get_authorization_token()["authorizationData"][0]
        username, _, password = base64.b64decode(given["authorizationToken"]).decode().partition(":")
        self._login, self._ends, self._endpoint = Login(username, password), given["expiresAt"], given["proxyEndpoint"]
        return True

    def repository(self, name: str) -> Repository:
        """Return the repository `name`; where there is none, what `create` would make.

        Raises:
            ShoalError: ECR does not say.
        """
        with self._explained(f"does not describe the repository {name}"):
            try:
                found = self._client.describe_repositories(repositoryNames=[name], **self._registry)["repositories"][0]
            except self._client.exceptions.RepositoryNotFoundException:
                return Repository(name, exists=False)
        filters = tuple(entry["filter"] for entry in found.get("imageTagMutabilityExclusionFilters") or ())
        return Repository(name, found.get("imageTagMutability", "MUTABLE"), filters)

    def create(self, repository: Repository) -> None:
        """Create a repository: its content tags cannot be overwritten, and what is pushed is scanned.

        Raises:
            ShoalError: ECR refuses.
        """
        filters = [{"filterType": "WILDCARD", "filter": pattern} for pattern in repository.filters]
        request: dict[str, Any] = {
            "repositoryName": repository.name,
            "imageTagMutability": repository.mutability,
            "imageTagMutabilityExclusionFilters": filters,
            "imageScanningConfiguration": {"scanOnPush": True},
            **self._registry,
        }
        with (
            self._explained(f"does not create the repository {repository.name}"),
            contextlib.suppress(self._client.exceptions.RepositoryAlreadyExistsException),  # by somebody, just now
        ):
            self._client.create_repository(**request)

    @contextlib.contextmanager
    def _explained(self, otherwise: str) -> Iterator[None]:
        """Turn what boto3 raises into one line with what to do."""
        try:
            yield
        except NoRegionError as error:
            raise ShoalError(
                "ECR: no region: set AWS_REGION, or write the registry's host with --to", exit_code=3
            ) from error
        except NoCredentialsError as error:
            raise ShoalError("ECR: no AWS credentials: set AWS_PROFILE, or run `aws configure`", exit_code=3) from error
        except ClientError as error:
            said = error.response.get("Error", {})
            words = " ".join(f"{said.get('Code')}: {said.get('Message')}".split())
            raise ShoalError(f"ECR {otherwise}: {words}", exit_code=3) from error
        except BotoCoreError as error:
            raise ShoalError(f"ECR {otherwise}: {' '.join(str(error).split())}", exit_code=3) from error
