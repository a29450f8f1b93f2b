"""A private package index for pip: the AWS CodeArtifact repository that CA_REPOSITORY_ARN names."""

from __future__ import annotations

import re
from typing import Mapping
from urllib.parse import quote, urlsplit, urlunsplit

from shoal_entrypoint.outcome import JobError

__all__ = ["VARIABLE", "environment"]

VARIABLE = "CA_REPOSITORY_ARN"
_ARN = re.compile(r"arn:aws[a-z-]*:codeartifact:([a-z0-9-]+):([0-9]{12}):repository/([^/\s]+)/([^/\s]+)")


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What pip needs to know. In its environment, not among its arguments: these are shown in lists of processes."""
    arn = environ[VARIABLE]
    found = _ARN.fullmatch(arn)
    if found is None:
        raise JobError(
            f"{VARIABLE}: {arn!r}: arn:aws:codeartifact:<region>:<account>:repository/<domain>/<repository> was"
            " expected"
        )
    region, owner, domain, repository = found.groups()
    try:
        import boto3  # 0.1 s and 20 MB, paid only by jobs with such an index
    except ImportError:
        raise JobError(f"{VARIABLE}: {arn}: needs boto3 in the image: pip install boto3") from None
    try:
        client = boto3.client("codeartifact", region_name=region)
        token = client.get_authorization_token(domain=domain, domainOwner=owner)["authorizationToken"]
        endpoint = client.get_repository_endpoint(
            domain=domain, domainOwner=owner, repository=repository, format="pypi"
        )["repositoryEndpoint"]
    except Exception as error:  # whatever the network, the credentials or the service have to say
        reason = " ".join(str(error).split())
        raise JobError(f"{VARIABLE}: {arn}: no access to the package index: {reason}") from None
    url = urlsplit(endpoint)
    address = f"aws:{quote(token, safe='')}@{url.netloc}"
    return {"PIP_INDEX_URL": urlunsplit((url.scheme, address, url.path.rstrip("/") + "/simple/", "", ""))}
