"""What may be written after --to, and what an error of a push means: tables."""

import pytest

from shoal.errors import ShoalError
from shoal.image.push.destination import Destination, EcrAddress, parse
from shoal.image.push.transport import Verdict, judge


@pytest.mark.parametrize(
    ("to", "host", "repository", "ecr"),
    [
        ("localhost:5000", "localhost:5000", "pytorch-training", None),
        ("localhost", "localhost", "pytorch-training", None),
        ("docker.io/me", "docker.io", "me/pytorch-training", None),
        ("registry.example.com/a/b/", "registry.example.com", "a/b/pytorch-training", None),
        ("registry.example.com/a/pytorch-training", "registry.example.com", "a/pytorch-training", None),
        ("registry:5000", "registry:5000", "pytorch-training", None),
        ("[::1]:5000", "[::1]:5000", "pytorch-training", None),
        ("ecr", None, "pytorch-training", EcrAddress()),
        ("ecr/team", None, "team/pytorch-training", EcrAddress()),
        *(
            (host, host, "pytorch-training", EcrAddress("123456789012", region))
            for host, region in (
                ("123456789012.dkr.ecr.us-west-2.amazonaws.com", "us-west-2"),
                ("123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn", "cn-north-1"),
                ("123456789012.dkr.ecr-fips.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
                ("123456789012.dkr-ecr.eu-west-1.on.aws", "eu-west-1"),
            )
        ),
        ("public.ecr.aws/a1b2c3", "public.ecr.aws", "a1b2c3/pytorch-training", None),
    ],
)
def test_where_it_leads(to: str, host: str | None, repository: str, ecr: EcrAddress | None) -> None:
    assert parse(to) == Destination(host, repository, ecr)


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("", "--to : '' is no registry's host: say ecr"),
        ("me", "--to me: 'me' is no registry's host: say ecr"),
        ("https://a.example", "--to https://a.example: leave https:// out"),
        ("a.example/Team", "--to a.example/Team: 'Team' cannot be part of a repository's name"),
        ("a.example/team:1", "between them; tags follow from the row"),
        ("a.example//team", "'' cannot be part of a repository's name"),
        ("a example", "'a example' is no registry's host"),
    ],
)
def test_what_names_no_registry(to: str, said: str) -> None:
    with pytest.raises(ShoalError) as caught:
        parse(to)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("message", "verdict"),
    [
        ('Get "http://127.0.0.1:5977/v2/": dial tcp 127.0.0.1:5977: connect: connection refused', Verdict.AGAIN),
        ("EOF", Verdict.AGAIN),
        ("write tcp 10.0.0.2:34567->10.0.0.3:443: write: connection reset by peer", Verdict.AGAIN),
        ("received unexpected HTTP status: 503 Service Unavailable", Verdict.AGAIN),
        ("toomanyrequests: Rate exceeded", Verdict.AGAIN),
        ("net/http: TLS handshake timeout", Verdict.AGAIN),
        ("no basic auth credentials", Verdict.LOGIN),
        ("denied: Your authorization token has expired. Reauthenticate and try again.", Verdict.LOGIN),
        ("unauthorized: authentication required", Verdict.LOGIN),
        ("denied: requested access to the resource is denied", Verdict.FINAL),
        ("name unknown: The repository with name 'a' does not exist in the registry with id '1'", Verdict.FINAL),
        (
            "tag invalid: The image tag 'a' already exists in the 'b' repository and cannot be overwritten because the"
            " tag is immutable.",
            Verdict.FINAL,
        ),
        ("500 Internal Server Error: unknown error: No space left on device", Verdict.FINAL),
        ('Get "https://a.example/v2/": http: server gave HTTP response to HTTPS client', Verdict.FINAL),
        ("x509: certificate signed by unknown authority", Verdict.FINAL),
    ],
)
def test_what_an_error_means(message: str, verdict: Verdict) -> None:
    assert judge(message) is verdict
